"""Dawid–Skene: known answers, Crowd-Kit's labels, and the published error on real data."""

import os
from itertools import islice

import numpy as np
import pandas as pd
import pytest
from crowdkit.aggregation import DawidSkene as CrowdKitDawidSkene

from labelquorum.errors import StateError
from labelquorum.evaluation import class_conditional_crowd
from labelquorum.evaluation.datasets.load import read_dataset
from labelquorum.ingest.chunks import make_chunk
from labelquorum.ingest.vocabulary import Roster
from labelquorum.learn.aggregator import vote_shares
from labelquorum.learn.methods import dawid_skene as module
from labelquorum.learn.methods._batch import incidence_of
from labelquorum.learn.methods.dawid_skene import dawid_skene


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


@pytest.mark.slow
def test_the_likelihood_never_falls():
    labels = incidence_of(chunk := chunk_of(class_conditional_crowd(120, 12, 4, 4, seed=1)))

    def smooth(counts):
        return counts + 1e-9

    start = module.maximise(vote_shares(chunk), labels, smooth)
    evidence = [
        found.log_evidence.sum() for found in islice(module.rounds(labels, start, smooth), 40)
    ]
    assert (np.diff(evidence) > -1e-6).all()


def test_gold_is_believed_in_every_round():
    labels = incidence_of(chunk := chunk_of(class_conditional_crowd(60, 9, 3, 4, seed=2)))

    def smooth(counts):
        return counts + 1e-5

    gold = module.Gold(np.array([3, 4]), np.array([2, 0]))
    start = module.maximise(gold.correct(vote_shares(chunk)), labels, smooth)
    for found in islice(module.rounds(labels, start, smooth, gold), 5):
        assert found.probs[[3, 4]].tolist() == [[0, 0, 1], [1, 0, 0]]


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
