"""Bayesian weighted average: its formulas worked out label by label, and its authors' figures."""

import os

import numpy as np
import pytest

from labelquorum.errors import StateError
from labelquorum.evaluation.datasets.load import DATA_VARIABLE, read_dataset
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk
from labelquorum.ingest.vocabulary import Roster
from labelquorum.learn.methods.bwa import bwa

CROWD = class_conditional_crowd(15, 5, 3, labels_per_item=4, seed=3)
CHUNK = make_chunk(CROWD.item, CROWD.worker, CROWD.label, n_classes=3)


def learn(aggregator, chunk=CHUNK):
    state, info = aggregator.update(aggregator.init(chunk, 0), chunk)
    return state, info, aggregator.aggregate(state, chunk)


def slow_bwa(chunk, rounds, strength, item_precision):
    """z of every item and v of every worker for each class by itself, by loops."""
    rows = list(zip(chunk.item, chunk.worker, chunk.label, strict=True))
    n_items, n_workers, n_classes = chunk.n_items, len(chunk.workers), chunk.n_classes
    z, v = np.zeros((n_items, n_classes)), np.zeros((n_workers, n_classes))
    for c in range(n_classes):
        for i in range(n_items):
            said = [label == c for item, _, label in rows if item == i]
            z[i, c] = sum(said) / len(said)
        variance = sum(z[item, c] * (1 - z[item, c]) for item, _, _ in rows) / len(rows)
        rate = strength * variance * 4 * (1 - 1 / n_classes)
        for _ in range(rounds):
            mean = sum(z[:, c]) / n_items
            for k in range(n_workers):
                errors = [(z[i, c] - (label == c)) ** 2 for i, who, label in rows if who == k]
                v[k, c] = (strength + len(errors)) / (rate + sum(errors))
            for i in range(n_items):
                top, bottom = item_precision * mean, item_precision
                for item, k, label in rows:
                    if item == i:
                        top, bottom = top + v[k, c] * (label == c), bottom + v[k, c]
                z[i, c] = top / bottom
    return z, v


@pytest.mark.parametrize(("strength", "item_precision"), [(15.0, 1.0), (3.0, 0.2)])
def test_it_agrees_with_the_formulas_done_label_by_label(strength, item_precision):
    aggregator = bwa(strength=strength, item_precision=item_precision, iterations=6, tolerance=0)
    state, info, answer = learn(aggregator)
    z, v = slow_bwa(CHUNK, 6, strength, item_precision)
    assert info.iterations == 6
    np.testing.assert_allclose(state.rows["precision"], v, rtol=1e-9)
    np.testing.assert_allclose(answer.probs, z / z.sum(axis=1, keepdims=True), rtol=1e-5)


def test_the_objective_never_rises():
    crowd = class_conditional_crowd(300, 20, 4, 5, seed=2)
    losses = learn(bwa(tolerance=0, iterations=60), make_chunk(*crowd[:3]))[1].losses
    assert (np.diff(losses) <= 1e-8).all()


def test_a_worker_who_agrees_with_the_others_weighs_more_than_one_who_guesses():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 200)
    item, worker = np.repeat(np.arange(200), 4), np.tile(np.arange(4), 200)
    label = np.where(worker == 3, rng.integers(0, 2, 800), truth[item])
    state, _, answer = learn(bwa(), make_chunk(item, worker, label))
    precision = state.rows["precision"]
    assert (precision[:3] > 10 * precision[3]).all()
    assert answer.aggregated.tolist() == truth.tolist()


def test_where_nobody_disagrees_everybody_is_right():
    chunk = make_chunk([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 2, 2], n_classes=3)
    state, _, answer = learn(bwa(), chunk)
    assert answer.aggregated.tolist() == [0, 2]
    assert np.isfinite(state.rows["precision"]).all()


def test_labels_that_weigh_nothing_leave_every_class_alike():
    chunk = make_chunk([0, 1], [0, 1], [1, 0], weight=[0, 0])
    np.testing.assert_allclose(learn(bwa(), chunk)[2].probs, 0.5)


def test_settings_out_of_range_are_refused():
    for setting in ("strength", "item_precision", "iterations"):
        with pytest.raises(StateError, match=f"`{setting}` of bwa must be a number"):
            bwa(**{setting: 0})
    with pytest.raises(StateError, match="`tolerance` of bwa must be a number"):
        bwa(tolerance=-1)


@pytest.mark.parametrize(
    ("name", "percent"),  # the authors' own figures
    [("bluebird", 24.07), ("rte", 7.25), ("web", 17.75), ("face", 38.18), ("zencrowd_us", 8.92)],
)
def test_the_error_on_real_data_is_the_published_one(name, percent):
    if not os.environ.get(DATA_VARIABLE):
        pytest.skip(f"real data sets are read only where {DATA_VARIABLE} names their folder")
    data, roster = read_dataset(name), Roster()
    intake = roster.read(data.table)
    roster.admit(intake)
    answer = learn(bwa(), intake.chunk)[2].aggregated
    answers = {item: roster.classes[c] for item, c in zip(intake.item_ids, answer, strict=True)}
    wrong = [answers[item] != truth for item, truth in data.truth.items() if item in answers]
    assert 100 * np.mean(wrong) == pytest.approx(percent, abs=0.3)
