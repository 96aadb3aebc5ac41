"""LA one-pass: a worked example, a slow twin, and the published accuracy on RTE."""

import os
from itertools import pairwise

import numpy as np
import pytest

from labelquorum.errors import StateError
from labelquorum.evaluation.datasets.load import DATA_VARIABLE, read_dataset
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.chunks import cut_chunks, make_chunk
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.vocabulary import Roster
from labelquorum.learn.methods.la import la_one_pass

ONE_PASS = la_one_pass()


def learn(*chunks, method=ONE_PASS):
    state = method.init(chunks[0], 0)
    for chunk in chunks:
        state, _ = method.update(state, chunk)
    return state


def qualities(state, n_workers):
    return ONE_PASS.confusion(state, np.arange(n_workers))[:, 0, 0]


# Three items. The first is a plain vote, for every quality is 1/2; then worker 2, who was
# wrong, loses to worker 0 and to worker 1.
EXAMPLE = make_chunk([0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 2, 1, 2], [1, 1, 0, 0, 1, 1, 0])


def test_qualities_follow_the_worked_example():
    state = learn(EXAMPLE)
    # (right + 1) / (labels + 2)
    np.testing.assert_allclose(qualities(state, 3), [3 / 4, 3 / 4, 1 / 5], rtol=1e-6)


def test_answers_are_shares_of_the_weighted_vote():
    answer = ONE_PASS.aggregate(learn(EXAMPLE), EXAMPLE)
    assert answer.aggregated.tolist() == [1, 0, 1]
    expected = [[4 / 34, 30 / 34], [15 / 19, 4 / 19], [4 / 19, 15 / 19]]
    np.testing.assert_allclose(answer.probs, expected, rtol=1e-6)
    np.testing.assert_allclose(answer.log_evidence[:3], [[0, 0.75], [0, 0.75], [0.2, 0]], rtol=1e-6)


def test_a_tied_vote_makes_everyone_right_by_his_share():
    state = learn(make_chunk([0, 0], [0, 1], [0, 1]))
    np.testing.assert_allclose(qualities(state, 2), [0.5, 0.5], rtol=1e-6)


def slow_pass(crowd, weight, credit=1.0):
    """The paper's pass in plain Python; ties are shared."""
    right = dict.fromkeys(range(crowd.worker.max() + 1), credit)
    labels = dict.fromkeys(right, 2 * credit)
    for item in range(len(crowd.truth)):
        rows = np.flatnonzero(crowd.item == item)
        votes = {}
        for row in rows:
            worker, label = crowd.worker[row], crowd.label[row]
            votes.setdefault(label, 0.0)
            votes[label] += weight[row] * right[worker] / labels[worker]
        best = [label for label in votes if votes[label] > max(votes.values()) - 1e-6]
        for row in rows:
            worker, label = crowd.worker[row], crowd.label[row]
            right[worker] += weight[row] * (label in best) / len(best)
            labels[worker] += weight[row]
    return [right[worker] / labels[worker] for worker in right]


@pytest.mark.parametrize("edges", [(0, 150), (0, 7, 64, 150)])
def test_qualities_are_those_of_a_slow_pass_wherever_the_chunks_are_cut(edges):
    crowd = class_conditional_crowd(150, 11, 3, 4, seed=5)
    weight = np.random.default_rng(0).choice([0.5, 1, 2], len(crowd.item))
    chunks = []
    for start, stop in pairwise(edges):
        rows = (crowd.item >= start) & (crowd.item < stop)
        columns = crowd.item[rows] - start, crowd.worker[rows], crowd.label[rows]
        chunks.append(make_chunk(*columns, weight=weight[rows], n_workers=11, n_classes=3))
    np.testing.assert_allclose(qualities(learn(*chunks), 11), slow_pass(crowd, weight), rtol=1e-6)


def test_a_label_an_earlier_chunk_held_votes_but_is_not_counted_again():
    first = make_chunk([0, 0], [0, 1], [1, 1], n_workers=3)
    late = make_chunk([0, 0, 0], [0, 1, 2], [1, 1, 0], known=[True, True, False])
    state = learn(first, late)
    # Worker 2 loses against the two labels held, whose owners are right once and not twice.
    np.testing.assert_allclose(qualities(state, 3), [2 / 3, 2 / 3, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(ONE_PASS.class_prior(state), [0.5 / 2, 1.5 / 2])


def test_a_forgotten_worker_is_as_one_nobody_has_met():
    state = ONE_PASS.forget(learn(EXAMPLE), 2)
    np.testing.assert_allclose(qualities(state, 3), [3 / 4, 3 / 4, 1 / 2], rtol=1e-6)


def test_more_credit_makes_qualities_slower_to_move():
    careful = la_one_pass(right=10, wrong=10)
    confusion = careful.confusion(learn(EXAMPLE, method=careful), np.array([2]))
    np.testing.assert_allclose(confusion[0, 0, 0], 10 / 23, rtol=1e-6)


def test_credit_must_be_positive():
    with pytest.raises(StateError, match="`wrong` of la_one_pass must be a number"):
        la_one_pass(wrong=0)


def test_emitted_error_on_rte_is_near_the_published_one():
    if not os.environ.get(DATA_VARIABLE):
        pytest.skip(f"real data sets are read only where {DATA_VARIABLE} names their folder")
    rte = read_dataset("rte")
    columns = rte.table.item_ids, rte.table.worker_ids, rte.table.labels
    items = list(dict.fromkeys(rte.table.item_ids))
    errors = []
    for order in range(5):
        place = dict(zip(items, np.random.default_rng(order).permutation(len(items)), strict=True))
        rows = sorted(zip(*columns, strict=True), key=lambda row: place[row[0]])
        roster, state, wrong = Roster(LabelSpace(("0", "1"))), None, 0
        table = LabelTable(*map(list, zip(*rows, strict=True)))
        for part in cut_chunks([table], 50):
            intake = roster.read(part)
            roster.admit(intake)
            state = ONE_PASS.init(intake.chunk, 0) if state is None else state
            state, _ = ONE_PASS.update(state, intake.chunk)
            answers = ONE_PASS.aggregate(state, intake.chunk).aggregated
            named = [roster.classes[answer] for answer in answers]
            wrong += sum(rte.truth[i] != a for i, a in zip(intake.item_ids, named, strict=True))
        errors.append(100 * wrong / len(items))
    assert np.mean(errors) == pytest.approx(7.96, abs=0.7)
