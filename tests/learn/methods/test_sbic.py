"""SBIC: the published update, worked by hand and label by label; two classes and no more."""

import numpy as np
import pytest

from labelquorum.errors import LabelError, StateError
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.methods.sbic import sbic

SBIC = sbic()


def learn(*chunks, method=SBIC):
    state = method.init(chunks[0], 0)
    for chunk in chunks:
        state, _ = method.update(state, chunk)
    return state


def means(state, n_workers, method=SBIC):
    return method.confusion(state, np.arange(n_workers))[:, 0, 0]


# Workers 0 and 1 say + and 2 says −; then 0 and 2 say −.
EXAMPLE = make_chunk([0, 0, 0, 1, 1], [0, 1, 2, 0, 2], [1, 1, 0, 0, 0])


def test_means_follow_the_worked_example():
    # Everyone starts at 2/3, log-odds log 2. z_0 = log 2, so + is right with probability 2/3:
    # the means become 8/12, 8/12 and 7/12. z_1 = −log 2 − log 7/5, so − is right with 14/19.
    expected = [(2 + 2 / 3 + 14 / 19) / 5, (2 + 2 / 3) / 4, (2 + 1 / 3 + 14 / 19) / 5]
    np.testing.assert_allclose(means(learn(EXAMPLE), 3), expected, rtol=1e-6)


def test_answers_are_bayes_rule_with_the_present_means():
    state = learn(EXAMPLE)
    first, second, third = means(state, 3)
    plus, minus = first * second * (1 - third), (1 - first) * (1 - second) * third
    answer = SBIC.aggregate(state, EXAMPLE)
    np.testing.assert_allclose(answer.probs[0], np.array([minus, plus]) / (minus + plus), rtol=1e-5)
    np.testing.assert_allclose(answer.log_evidence[0], np.log([1 - first, first]), rtol=1e-5)
    assert answer.aggregated.tolist() == [1, 0]


def label_by_label(crowd, alpha, beta, q):
    """Fast SBIC as published: every label moves one z, and each mean is summed up again."""
    z = np.full(len(crowd.truth), np.log(q / (1 - q)))
    labelled = {worker: [] for worker in range(crowd.worker.max() + 1)}

    def mean(worker):
        right = sum(1 / (1 + np.exp(-sign * z[item])) for item, sign in labelled[worker])
        return (right + alpha) / (len(labelled[worker]) + alpha + beta)

    for item, worker, label in zip(crowd.item, crowd.worker, crowd.label, strict=True):
        sign = 1 if label == 1 else -1
        z[item] += sign * np.log(mean(worker) / (1 - mean(worker)))
        labelled[worker].append((item, sign))
    return [mean(worker) for worker in labelled]


@pytest.mark.parametrize(("right", "wrong", "second"), [(2, 1, 0.5), (5, 2, 0.3)])
def test_means_are_those_of_the_published_algorithm(right, wrong, second):
    crowd = class_conditional_crowd(60, 8, 2, 4, seed=4)
    method = sbic(right=right, wrong=wrong, second_class=second)
    chunks = [
        make_chunk(
            crowd.item[rows] - start,
            crowd.worker[rows],
            crowd.label[rows],
            n_workers=8,
            n_classes=2,
        )
        for start in (0, 20, 40)
        for rows in [(crowd.item >= start) & (crowd.item < start + 20)]
    ]
    expected = label_by_label(crowd, right, wrong, second)
    np.testing.assert_allclose(means(learn(*chunks, method=method), 8, method), expected, rtol=1e-5)


def test_the_prior_of_the_classes_decides_where_labels_do_not():
    tied = make_chunk([0, 0], [0, 1], [0, 1])
    method = sbic(second_class=0.8)
    state = method.init(tied, 0)
    answer = method.aggregate(state, tied)
    np.testing.assert_allclose(answer.probs, [[0.2, 0.8]], rtol=1e-6)
    np.testing.assert_allclose(method.class_prior(state), [0.2, 0.8])


def test_a_label_counts_as_much_as_its_weight():
    once = make_chunk([0, 0], [0, 1], [1, 0], weight=[2, 1])
    # z = 2 log 2 − log 2, so worker 0 was right, twice, with probability 2/3.
    expected = [(2 + 2 * 2 / 3) / 5, (2 + 1 / 3) / 4]
    np.testing.assert_allclose(means(learn(once), 2), expected, rtol=1e-6)


def test_a_label_an_earlier_chunk_held_is_weighed_but_not_counted_again():
    first = make_chunk([0, 0], [0, 1], [1, 1], n_workers=3, n_classes=2)
    late = make_chunk([0, 0, 0], [0, 1, 2], [1, 1, 0], known=[True, True, False])
    before, after = means(learn(first), 3), means(learn(first, late), 3)
    np.testing.assert_array_equal(before[:2], after[:2])
    # Two labels of mean 7/10 stand against one of odds 2.
    held = (2 + 4 / 5) / 4  # for z was 2 log 2
    odds = (held / (1 - held)) ** 2 / 2
    np.testing.assert_allclose(after[2], (2 + 1 / (1 + odds)) / 4, rtol=1e-6)


def test_one_class_is_certain_until_the_other_is_seen():
    one = make_chunk([0, 0], [0, 1], [0, 0])
    state = learn(one)
    assert SBIC.aggregate(state, one).probs.tolist() == [[1.0]]
    assert SBIC.confusion(state, np.array([0])).tolist() == [[[1.0]]]
    assert SBIC.class_prior(state).tolist() == [1.0]
    state, _ = SBIC.update(state, EXAMPLE)
    assert SBIC.confusion(state, np.arange(3)).shape == (3, 2, 2)


def test_a_third_class_is_refused():
    three = make_chunk([0, 0], [0, 1], [0, 2])
    with pytest.raises(LabelError, match="two classes apart, and there are 3: use"):
        SBIC.init(three, 0)
    with pytest.raises(LabelError, match="there are 3"):
        SBIC.update(learn(EXAMPLE), three)
    with pytest.raises(LabelError, match="there are 3"):
        SBIC.aggregate(learn(EXAMPLE), three)
    with pytest.raises(LabelError, match="there are 3"):
        sbic(LabelSpace(("a", "b", "c")))


def test_settings_out_of_range_are_refused():
    with pytest.raises(StateError, match="`right` of sbic must be a number"):
        sbic(right=0)
    with pytest.raises(StateError, match="`second_class` of sbic must be a number between"):
        sbic(second_class=1)
