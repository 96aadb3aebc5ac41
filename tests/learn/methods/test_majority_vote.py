"""Majority vote: known answers, fair ties, and the same vote as Crowd-Kit."""

import numpy as np
import pandas as pd
import pytest
from crowdkit.aggregation import MajorityVote as CrowdKitVote

import labelquorum as lq
from labelquorum.evaluation import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.methods.majority_vote import majority_vote

VOTE = majority_vote()


def learn(*chunks, seed=0):
    state = VOTE.init(chunks[0], seed)
    for chunk in chunks:
        state, _ = VOTE.update(state, chunk)
    return state


def test_the_class_most_workers_named_wins():
    chunk = make_chunk([0, 0, 0, 1, 1], [0, 1, 2, 0, 1], [1, 1, 0, 2, 2])
    answer = VOTE.aggregate(learn(chunk), chunk)
    assert answer.aggregated.tolist() == [1, 2]
    np.testing.assert_allclose(answer.probs, [[1 / 3, 2 / 3, 0], [0, 0, 1]], rtol=1e-6)


def test_a_label_counts_as_much_as_its_weight():
    chunk = make_chunk([0, 0, 0], [0, 1, 2], [1, 1, 0], weight=[1, 1, 3])
    answer = VOTE.aggregate(learn(chunk), chunk)
    assert answer.aggregated.tolist() == [0]
    np.testing.assert_allclose(answer.probs, [[0.6, 0.4]], rtol=1e-6)


def test_an_item_whose_labels_weigh_nothing_leaves_every_class_alike():
    chunk = make_chunk([0, 1], [0, 1], [1, 0], weight=[0, 1])
    answer = VOTE.aggregate(learn(chunk), chunk)
    assert answer.probs.tolist() == [[0.5, 0.5], [1.0, 0.0]]


def tied_items(n_items):
    item = np.repeat(np.arange(n_items), 2)
    return make_chunk(item, np.tile([0, 1], n_items), np.tile([0, 1], n_items))


def test_ties_fall_to_every_class_as_often_and_always_alike():
    chunk = tied_items(2000)
    first, again, other = (
        VOTE.aggregate(learn(chunk, seed=seed), chunk).aggregated for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert 0.45 < first.mean() < 0.55
    # Another seed decides about half of the ties otherwise.
    assert 0.45 < (first != other).mean() < 0.55


def test_a_tie_is_decided_by_the_item_and_not_by_its_place():
    chunk = tied_items(64)
    state = learn(chunk)
    answer = VOTE.aggregate(state, chunk).aggregated
    moved = chunk._replace(item_keys=chunk.item_keys[::-1])
    assert VOTE.aggregate(state, moved).aggregated.tolist() == answer[::-1].tolist()


def test_confusion_counts_how_labels_went_with_the_vote():
    # Two items voted 0 and one voted 1; worker 2 goes against the first vote.
    chunk = make_chunk(
        [0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 1, 2] * 3, [0, 0, 1, 0, 0, 0, 1, 1, 1], n_classes=2
    )
    confusion = VOTE.confusion(learn(chunk), np.array([0, 2]))
    half = 0.5  # is added to each cell
    np.testing.assert_allclose(confusion[0], [[2.5 / 3, half / 3], [half / 2, 1.5 / 2]], rtol=1e-6)
    np.testing.assert_allclose(confusion[1], [[1.5 / 3, 1.5 / 3], [half / 2, 1.5 / 2]], rtol=1e-6)


def test_a_tied_vote_is_shared():
    chunk = make_chunk([0, 0], [0, 1], [0, 1])
    confusion = VOTE.confusion(learn(chunk), np.array([0]))
    # Half a label for truth 0, half for truth 1, and half a label in each cell.
    np.testing.assert_allclose(confusion[0], [[2 / 3, 1 / 3], [2 / 3, 1 / 3]], rtol=1e-6)


def test_labels_an_earlier_chunk_held_are_not_counted_again():
    chunk = make_chunk([0, 0], [0, 1], [0, 0], n_classes=2)
    again = chunk._replace(known=np.array([True, True]))
    workers = np.array([0, 1])
    once, twice = learn(chunk), learn(chunk, again)
    np.testing.assert_array_equal(VOTE.confusion(once, workers), VOTE.confusion(twice, workers))


def test_class_prior_follows_the_vote():
    chunk = make_chunk([0, 1, 2, 3], [0, 0, 0, 0], [0, 0, 0, 1])
    np.testing.assert_allclose(VOTE.class_prior(learn(chunk)), [3.5 / 5, 1.5 / 5])


def test_a_forgotten_worker_is_as_one_nobody_has_met():
    chunk = make_chunk([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1])
    state = VOTE.forget(learn(chunk), 0)
    np.testing.assert_allclose(VOTE.confusion(state, np.array([0]))[0], np.full((2, 2), 0.5))


@pytest.fixture(scope="module")
def crowd() -> pd.DataFrame:
    simulated = class_conditional_crowd(200, 15, 3, 5, seed=3)
    columns = simulated.item, simulated.worker, simulated.label
    return pd.DataFrame(dict(zip(("task", "worker", "label"), columns, strict=True)))


def test_shares_and_untied_labels_are_those_of_crowd_kit(crowd):
    theirs, ours = CrowdKitVote().fit(crowd), lq.MajorityVote().fit(crowd)
    pd.testing.assert_frame_equal(
        ours.probas_, theirs.probas_, check_dtype=False, check_like=True, atol=1e-6
    )
    top = np.sort(theirs.probas_.to_numpy(), axis=1)
    clear = top[:, -1] > top[:, -2]
    assert clear.sum() > 150
    assert (ours.labels_[clear] == theirs.labels_[clear]).all()


def test_online_and_offline_votes_are_the_same(crowd):
    offline = lq.MajorityVote().fit_predict(crowd)
    online = lq.MajorityVote()
    chunks = [part for _, part in crowd.groupby(crowd.task // 50)]
    emitted = pd.concat([online.partial_fit(chunk).labels_ for chunk in chunks])
    pd.testing.assert_series_equal(emitted, offline)
