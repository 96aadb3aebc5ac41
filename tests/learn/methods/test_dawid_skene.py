"""Dawid–Skene: known answers, Crowd-Kit's labels, and the published error on real data."""

import os

import numpy as np
import pandas as pd
import pytest
from crowdkit.aggregation import DawidSkene as CrowdKitDawidSkene
from hypothesis import given, settings
from hypothesis import strategies as st

from labelquorum import DawidSkene
from labelquorum.errors import StateError
from labelquorum.evaluation import class_conditional_crowd
from labelquorum.evaluation.datasets.load import read_dataset
from labelquorum.ingest.chunks import make_chunk
from labelquorum.ingest.vocabulary import Roster
from labelquorum.learn.methods import _sparse_em
from labelquorum.learn.methods import dawid_skene as module
from labelquorum.learn.methods._batch import has_settled, incidence_of, log_normalise
from labelquorum.learn.methods._cells import cells_of
from labelquorum.learn.methods.dawid_skene import dawid_skene, shares
from labelquorum.learn.model_file import state_arrays, state_from_arrays


def learn(aggregator, chunk, seed=0):
    state, info = aggregator.update(aggregator.init(chunk, seed), chunk)
    return state, info, aggregator.aggregate(state, chunk)


def chunk_of(crowd):
    return make_chunk(crowd.item, crowd.worker, crowd.label, n_classes=len(crowd.class_prior))


def test_a_fixed_point_found_by_hand_is_kept():
    # Both say 0 of item 0; of item 1 worker 0 says 1 and worker 1 says 0. From the votes (1, 0)
    # and (½, ½): π = (¾, ¼), ψ_0 = [[⅔, ⅓], [0, 1]], ψ_1 = [[1, 0], [1, 0]]. The E step gives
    # ¾·⅔·1 : 0 = 1 : 0 and ¾·⅓·1 : ¼·1·1 = ½ : ½, so nothing moves, and each item's labels have
    # probability ½.
    chunk = make_chunk([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 1, 0])
    method = dawid_skene(smoothing=1e-13)
    state, info, answer = learn(method, chunk)
    np.testing.assert_allclose(method.class_prior(state), [3 / 4, 1 / 4], atol=1e-9)
    expected = [[[2 / 3, 1 / 3], [0, 1]], [[1, 0], [1, 0]]]
    np.testing.assert_allclose(method.confusion(state, np.arange(2)), expected, atol=1e-6)
    np.testing.assert_allclose(answer.probs, [[1, 0], [1 / 2, 1 / 2]], atol=1e-6)
    np.testing.assert_allclose(info.losses, 2 * np.log(2), atol=1e-9)


def test_the_likelihood_never_falls():
    chunk = chunk_of(class_conditional_crowd(120, 12, 4, 4, seed=1))
    info = learn(dawid_skene(smoothing=1e-9, tolerance=0, iterations=40), chunk)[1]
    assert (np.diff(info.losses) < 1e-6).all()


def dense_fit(chunk, smoothing=1e-5, rounds=500):
    """EM by its equations, with all matrices (K, C, C) at once: probabilities and losses."""
    probs, losses = chunk.vote_shares, []
    for _ in range(rounds):
        counts = np.zeros((chunk.n_workers, chunk.n_classes, chunk.n_classes))
        said = (chunk.weight[:, None] * probs[chunk.item]).astype(np.float64)
        np.add.at(counts.swapaxes(1, 2), (chunk.worker, chunk.label), said)
        confusion = shares(counts + smoothing)
        prior = shares(probs.sum(axis=0) + smoothing)
        scores = np.tile(np.log(prior), (chunk.n_items, 1))
        evidence = np.log(confusion)[chunk.worker, :, chunk.label] * chunk.weight[:, None]
        np.add.at(scores, chunk.item, evidence)
        probs, log_evidence = log_normalise(scores)
        losses.append(-log_evidence.sum())
        if has_settled(losses, 1e-7):
            break
    return probs, losses


@st.composite
def sparse_chunks(draw):
    """Labels of which most workers gave few, over many classes; some items have one or none."""
    seed, n_classes = draw(st.integers(0, 2**31)), draw(st.integers(1, 30))
    rng = np.random.default_rng(seed)
    n_items, n_workers = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    truth = rng.integers(n_classes, size=n_items)
    per_item = rng.integers(0, n_workers + 1, size=n_items)
    item = np.repeat(np.arange(n_items), per_item)
    worker = np.concatenate([rng.permutation(n_workers)[:n] for n in per_item])
    right = rng.random(len(item)) < draw(st.sampled_from([0.3, 0.7, 0.95]))
    label = np.where(right, truth[item], rng.integers(n_classes, size=len(item)))
    weight = rng.choice([0.5, 1, 2], len(item)) if draw(st.booleans()) else None
    sizes = {"n_items": n_items, "n_workers": n_workers, "n_classes": n_classes}
    return make_chunk(item, worker.astype(int), label, weight=weight, **sizes)


@settings(max_examples=60, deadline=None)
@given(sparse_chunks(), st.sampled_from([0.0, 0.1, 2.0]))
def test_candidates_and_sweeps_find_what_dense_matrices_find(chunk, links):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_sparse_em, "MAX_LINKS", links)  # never candidates, sometimes, always
        cells = cells_of(incidence_of(chunk))
        probs, losses = _sparse_em.fit_probs(chunk.vote_shares, cells, 1e-5, 1e-7, 30)
    expected, expected_losses = dense_fit(chunk, rounds=30)
    if chunk.n_labels:
        np.testing.assert_allclose(losses, expected_losses, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(probs, expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(sparse_chunks(), sparse_chunks())
def test_a_state_of_labels_answers_as_a_state_of_matrices(learned, asked):
    asked = asked._replace(n_classes=max(learned.n_classes, asked.n_classes))
    method, workers = dawid_skene(), np.array([3, 0, 3, 50])
    found = []
    for dense in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_fits", lambda chunk, dense=dense: dense)
            state = method.init(learned, 0)
            state = method.forget(method.update(state, learned)[0], 0)
            state = state_from_arrays(method.state_type, state_arrays(state))
            found.append((method.aggregate(state, asked), method.confusion(state, workers)))
            assert ("probs" in state.shared) == (not dense)
    (expected, matrices), (answer, made_matrices) = found
    np.testing.assert_array_equal(answer.aggregated, expected.aggregated)
    np.testing.assert_allclose(answer.probs, expected.probs, atol=1e-6)
    np.testing.assert_allclose(answer.log_evidence, expected.log_evidence, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(made_matrices, matrices, rtol=1e-5)


def test_many_workers_and_classes_need_no_matrices(tmp_path):
    crowd = class_conditional_crowd(300, 600, 150, 5, seed=6)  # 108 MB of matrices
    table = pd.DataFrame({"task": crowd.item, "worker": crowd.worker, "label": crowd.label})
    model = DawidSkene(open_items=0).fit(table)
    model.save(tmp_path / "model.lq")
    assert (tmp_path / "model.lq").stat().st_size < 3e6
    again = DawidSkene.load(tmp_path / "model.lq")
    pd.testing.assert_series_equal(again.predict(table), model.predict(table))


def test_a_label_of_weight_two_teaches_what_two_labels_teach():
    crowd = class_conditional_crowd(60, 8, 3, 4, seed=4)
    heavy = np.where(np.arange(len(crowd.item)) % 3 == 0, 2, 1)
    twice = np.repeat(np.arange(len(crowd.item)), heavy)
    weighted = make_chunk(crowd.item, crowd.worker, crowd.label, weight=heavy)
    repeated = make_chunk(crowd.item[twice], crowd.worker[twice], crowd.label[twice])
    one, other = (learn(dawid_skene(), chunk)[2].probs for chunk in (weighted, repeated))
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_labels_are_those_of_crowd_kit():
    crowd = class_conditional_crowd(300, 20, 4, 6, seed=5)
    table = pd.DataFrame({"task": crowd.item, "worker": crowd.worker, "label": crowd.label})
    theirs = CrowdKitDawidSkene(n_iter=30).fit_predict(table).sort_index()
    ours = learn(dawid_skene(), chunk_of(crowd))[2].aggregated
    assert np.mean(ours == theirs.to_numpy()) >= 0.99


@pytest.mark.parametrize(
    ("setting", "value"), [("smoothing", 0), ("tolerance", -1), ("iterations", 0)]
)
def test_a_setting_out_of_range_is_named(setting, value):
    with pytest.raises(StateError, match=f"`{setting}` of dawid_skene must be a number"):
        dawid_skene(**{setting: value})


@pytest.mark.skipif(
    "LABELQUORUM_DATA" not in os.environ, reason="LABELQUORUM_DATA names no folder of data sets"
)
@pytest.mark.parametrize(
    ("name", "percent"),  # of the README of the data sets, which fixes the settings too
    [("rte", 7.25), ("bluebird", 10.19), ("web", 17.38), ("adult", 21.67), ("face", 35.96)],
)
def test_the_error_on_real_data_is_the_published_one(name, percent):
    data = read_dataset(name)
    roster = Roster()
    intake = roster.read(data.table)
    roster.admit(intake)
    aggregated = learn(dawid_skene(), intake.chunk)[2].aggregated
    answers = {item: roster.classes[c] for item, c in zip(intake.item_ids, aggregated, strict=True)}
    wrong = [answers[item] != truth for item, truth in data.truth.items() if item in answers]
    assert 100 * np.mean(wrong) == pytest.approx(percent, abs=0.5)


def test_matrices_come_in_the_order_asked_for_however_the_state_is_kept(monkeypatch):
    monkeypatch.setattr(module, "_fits", lambda chunk: False)
    chunk = make_chunk([0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2], [0, 0, 1, 1, 1, 1])
    method = dawid_skene()
    state, _ = method.update(method.init(chunk, 0), chunk)
    one, other = (method.confusion(state, np.array(order)) for order in ([0, 2], [2, 0]))
    np.testing.assert_array_equal(one, other[::-1])
    assert not np.array_equal(one, other)
