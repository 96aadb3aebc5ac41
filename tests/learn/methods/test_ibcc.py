"""Variational iBCC: the updates and the lower bound, worked out label by label beside it."""

import os

import numpy as np
import pytest
from scipy.special import digamma, gammaln

from labelquorum.errors import StateError
from labelquorum.evaluation.datasets.load import DATA_VARIABLE, read_dataset
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk
from labelquorum.ingest.vocabulary import Roster
from labelquorum.learn.methods.ibcc import ibcc

CROWD = class_conditional_crowd(12, 4, 3, labels_per_item=3, seed=5)
CHUNK = make_chunk(CROWD.item, CROWD.worker, CROWD.label, n_classes=3)


def learn(aggregator, chunk=CHUNK):
    state, info = aggregator.update(aggregator.init(chunk, 0), chunk)
    return state, info, aggregator.aggregate(state, chunk)


def triples(chunk):
    return list(zip(chunk.item.tolist(), chunk.worker.tolist(), chunk.label.tolist(), strict=True))


def count(q, chunk, right, wrong, class_strength):
    nu = [class_strength + sum(row[c] for row in q) for c in range(3)]
    alpha = [
        [[right if c == z else wrong for z in range(3)] for c in range(3)] for _ in chunk.workers
    ]
    for i, k, z in triples(chunk):
        for c in range(3):
            alpha[k][c][z] += q[i][c]
    return nu, alpha


def expect(nu, alpha, chunk):
    q = []
    for i in range(chunk.n_items):
        score = [digamma(nu[c]) - digamma(sum(nu)) for c in range(3)]
        for item, k, z in triples(chunk):
            if item == i:
                for c in range(3):
                    score[c] += digamma(alpha[k][c][z]) - digamma(sum(alpha[k][c]))
        odds = [np.exp(s) for s in score]
        q.append([o / sum(odds) for o in odds])
    return q


def slow_ibcc(chunk, rounds, **prior):
    q = []
    for i in range(chunk.n_items):
        said = [z for item, _, z in triples(chunk) if item == i]
        q.append([said.count(c) / len(said) for c in range(3)])
    for _ in range(rounds):
        q = expect(*count(q, chunk, **prior), chunk)
    return q, *count(q, chunk, **prior)


@pytest.mark.parametrize(
    "prior",
    [
        {"right": 4.0, "wrong": 1.0, "class_strength": 1.0},
        {"right": 2.5, "wrong": 0.5, "class_strength": 3.0},
    ],
)
def test_it_agrees_with_the_updates_done_label_by_label(prior):
    aggregator = ibcc(**prior, iterations=7, tolerance=0)
    state, info, answer = learn(aggregator)
    _, nu, alpha = slow_ibcc(CHUNK, 7, **prior)
    assert info.iterations == 7
    np.testing.assert_allclose(state.rows["counts"], alpha, rtol=1e-9)
    np.testing.assert_allclose(state.shared["class_counts"], nu, rtol=1e-9)
    # The answer is one more E step, with the matrices kept.
    np.testing.assert_allclose(answer.probs, expect(nu, alpha, CHUNK), rtol=1e-5)


def test_its_loss_is_minus_the_lower_bound():
    rounds, prior = 5, {"right": 4.0, "wrong": 1.0, "class_strength": 1.0}
    losses = learn(ibcc(**prior, iterations=rounds, tolerance=0))[1].losses
    before = slow_ibcc(CHUNK, rounds - 1, **prior)[0]
    nu, alpha = count(before, CHUNK, **prior)
    q = expect(nu, alpha, CHUNK)

    def log_density(counts, logs):  # E[log Dirichlet(p; counts)]
        size = gammaln(sum(counts)) - sum(gammaln(a) for a in counts)
        return size + sum((a - 1) * log for a, log in zip(counts, logs, strict=True))

    def logs_of(counts):
        return [digamma(a) - digamma(sum(counts)) for a in counts]

    # E[log p(labels, truths, κ, π)] − E[log q(truths)] − E[log q(κ)] − E[log q(π)]
    log_classes = logs_of(nu)
    bound = log_density([1.0] * 3, log_classes) - log_density(nu, log_classes)
    for matrix in alpha:
        for c, row in enumerate(matrix):
            start = [4.0 if c == z else 1.0 for z in range(3)]
            bound += log_density(start, logs_of(row)) - log_density(row, logs_of(row))
    for row in q:
        bound += sum(p * (log_classes[c] - np.log(p)) for c, p in enumerate(row))
    for i, k, z in triples(CHUNK):
        bound += sum(q[i][c] * logs_of(alpha[k][c])[z] for c in range(3))
    assert losses[-1] == pytest.approx(-bound, rel=1e-9)


def test_the_lower_bound_never_falls():
    crowd = class_conditional_crowd(300, 20, 4, 5, seed=2)
    losses = learn(ibcc(tolerance=0, iterations=60), make_chunk(*crowd[:3]))[1].losses
    assert (np.diff(losses) <= 1e-8).all()


def test_a_worker_nobody_has_met_is_what_the_prior_says():
    aggregator = ibcc(right=6, wrong=2)
    state = learn(aggregator)[0]
    np.testing.assert_allclose(aggregator.confusion(state, np.array([9]))[0, 0], [0.6, 0.2, 0.2])


def test_settings_out_of_range_are_refused():
    for setting in ("right", "wrong", "class_strength", "iterations"):
        with pytest.raises(StateError, match=f"`{setting}` of ibcc must be a number"):
            ibcc(**{setting: 0})
    with pytest.raises(StateError, match="`tolerance` of ibcc must be a number"):
        ibcc(tolerance=-1)


@pytest.mark.parametrize(
    ("name", "percent"),  # Li, Rubinstein and Cohn's own figures, with this prior
    [
        ("bluebird", 11.11),
        ("rte", 7.25),
        ("web", 24.92),
        ("sentiment_tweets", 4.00),
        ("face", 35.96),
        ("weather_cf", 11.67),
        ("sentiment_polarity_amt", 5.60),
        ("zencrowd_us", 17.30),
    ],
)
def test_the_error_on_real_data_is_the_published_one(name, percent):
    if not os.environ.get(DATA_VARIABLE):
        pytest.skip(f"real data sets are read only where {DATA_VARIABLE} names their folder")
    data, roster = read_dataset(name), Roster()
    intake = roster.read(data.table)
    roster.admit(intake)
    answer = learn(ibcc(), intake.chunk)[2].aggregated
    answers = {item: roster.classes[c] for item, c in zip(intake.item_ids, answer, strict=True)}
    wrong = [answers[item] != truth for item, truth in data.truth.items() if item in answers]
    assert 100 * np.mean(wrong) == pytest.approx(percent, abs=0.7)
