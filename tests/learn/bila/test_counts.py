"""Counting: against RECIPE.md written down plainly, and what becomes of every kind of label."""

import numpy as np
import pytest

from labelquorum.errors import StateError
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk, withdrawn
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.aggregator import Part
from labelquorum.learn.bila import PRESETS, bila, sparse_counts
from labelquorum.learn.bila.counts import State
from labelquorum.learn.bila.hierarchical import Recipe, crowd_matrix
from labelquorum.learn.model_file import state_arrays

METHOD = bila(**PRESETS["recipe"])


def chunks_of(crowd, chunk_items, n_workers=None):
    """A simulated crowd in chunks of whole items."""
    chunks = []
    for start in range(0, len(crowd.truth), chunk_items):
        rows = (crowd.item >= start) & (crowd.item < start + chunk_items)
        chunks.append(
            make_chunk(
                crowd.item[rows] - start,
                crowd.worker[rows],
                crowd.label[rows],
                item_keys=np.arange(start, min(start + chunk_items, len(crowd.truth))),
                n_workers=n_workers or len(crowd.confusion),
                n_classes=len(crowd.class_prior),
            )
        )
    return chunks


def learn(chunks, method=METHOD, state=None):
    state = method.init(chunks[0], 0) if state is None else state
    for chunk in chunks:
        state, _ = method.update(state, chunk)
    return state


def counts_of(state):
    return state.rows.to_arrays()["rich_counts"]


@pytest.fixture(scope="module")
def crowd():
    return class_conditional_crowd(60, 9, 3, 4, seed=2)


# ── the recipe, plainly ──────────────────────────────────────────────────────────────────


class Plain:
    """RECIPE.md as a statistician would write it down: float64, loops, no tricks."""

    def __init__(self, n_workers, n_classes, inner=10):
        self.C, self.inner = n_classes, inner
        self.N = np.zeros((n_workers, n_classes, n_classes))
        self.theta = np.zeros((n_workers, n_classes + 1))
        self.nu, self.f = np.zeros(n_classes), np.zeros(n_classes)

    def crowd(self, N):
        weight = 5 / (5 + N.sum(axis=2))
        P = (N * weight[:, :, None]).sum(axis=0)
        mean = (np.trace(P) + 7) / (P.sum() + 10)
        S = np.where(np.eye(self.C) > 0, mean, (1 - mean) / (self.C - 1))
        return (P + 50 * S) / (P + 50 * S).sum(axis=1, keepdims=True)

    def matrix(self, G, theta):
        logits = np.log(G) + theta[0] * np.eye(self.C) + theta[1:]
        return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    def step(self, k, N, G):
        m, n, theta = self.matrix(G, self.theta[k]), N[k].sum(axis=1), self.theta[k]
        E, precision = N[k] - n[:, None] * m, np.r_[1.0, np.full(self.C, 1 / 0.4**2)]
        g = np.r_[np.trace(E), E.sum(axis=0)] - precision * theta
        H = np.diag(precision)
        for c in range(self.C):
            # The logits of row c are a e_c + b, and the softmax has this covariance.
            J = np.c_[np.eye(self.C)[c], np.eye(self.C)]
            H += n[c] * J.T @ (np.diag(m[c]) - np.outer(m[c], m[c])) @ J
        self.theta[k] += np.clip(np.linalg.solve(H, g), -1, 1)

    def encode(self, chunk, G, f, nu):
        u, v = (f + 1) / (f + 1).sum(), (nu + 1) / (nu + 1).sum()
        w = np.sqrt(u * v) / np.sqrt(u * v).sum()
        scores = np.tile(np.log(0.8 * w + 0.2 / self.C), (chunk.n_items, 1))
        for i, k, z in zip(chunk.item, chunk.worker, chunk.label, strict=True):
            scores[i] += np.log(self.matrix(G, self.theta[k])[:, z])
        q = np.exp(scores - scores.max(axis=1, keepdims=True))
        return q / q.sum(axis=1, keepdims=True)

    def counted(self, chunk, q):
        N = self.N.copy()
        for i, k, z in zip(chunk.item, chunk.worker, chunk.label, strict=True):
            N[k, :, z] += q[i]
        return N

    def learn(self, chunk):
        f = self.f.copy()
        for i in range(chunk.n_items):
            f += (
                np.bincount(chunk.label[chunk.item == i], minlength=self.C)
                / (chunk.item == i).sum()
            )
        G = self.crowd(self.N)
        for k in chunk.workers:
            self.step(k, self.N, G)
        q = self.encode(chunk, G, f, self.nu)
        for _ in range(self.inner):
            N = self.counted(chunk, q)
            G = self.crowd(N)
            for k in chunk.workers:
                self.step(k, N, G)
            q = self.encode(chunk, G, f, self.nu + q.sum(axis=0))
        self.N, self.f, self.nu = self.counted(chunk, q), f, self.nu + q.sum(axis=0)


def test_the_update_is_that_of_the_recipe(crowd):
    plain, state = Plain(9, 3), None
    for chunk in chunks_of(crowd, 20):
        plain.learn(chunk)
        state = learn([chunk], state=state)
        close = {"rtol": 1e-4, "atol": 1e-4}
        np.testing.assert_allclose(counts_of(state), plain.N, **close)
        np.testing.assert_allclose(state.class_counts["rich"], plain.nu, **close)
        np.testing.assert_allclose(state.label_shares, plain.f, **close)
        np.testing.assert_allclose(state.rows.to_arrays()["rich_theta"], plain.theta, **close)
        crowd_now = crowd_matrix(state.pooled["rich"], Recipe())
        np.testing.assert_allclose(crowd_now, plain.crowd(plain.N), **close)
        for k, matrix in enumerate(METHOD.confusion(state, np.arange(9))):
            np.testing.assert_allclose(matrix, plain.matrix(crowd_now, plain.theta[k]), **close)
        answer = METHOD.aggregate(state, chunk)
        q = plain.encode(chunk, crowd_now, plain.f, plain.nu)
        assert answer.aggregated.tolist() == q.argmax(axis=1).tolist()
        # Four labels per item: q^(1 / (1 + 0.2 · 3)), normalised.
        tempered = q ** (1 / 1.6)
        tempered /= tempered.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(answer.probs, tempered, atol=1e-4)


@pytest.mark.slow
def test_the_loss_is_minus_the_mean_log_evidence_of_an_item(crowd):
    chunk = chunks_of(crowd, 20)[0]
    _, one = METHOD.update(METHOD.init(chunk, 0), chunk)
    # After enough steps nothing moves, and the last q is that of the state.
    settled = bila(**PRESETS["recipe"], inner_steps=200)
    state, info = settled.update(settled.init(chunk, 0), chunk)
    answer = settled.aggregate(state, chunk)
    scores = np.log(settled.class_prior(state)) + np.add.reduceat(
        answer.log_evidence, np.flatnonzero(np.diff(chunk.item, prepend=-1)), axis=0
    )
    assert info.losses == pytest.approx(-np.log(np.exp(scores).sum(axis=1)).mean(), rel=1e-4)
    assert (one.steps, one.n_labels, info.steps) == (11, 80, 201)


# ── counts ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_every_label_is_counted_once_and_every_item_once(crowd):
    state = learn(chunks_of(crowd, 7))
    assert counts_of(state).sum() == pytest.approx(240, abs=1e-4)
    assert state.class_counts["rich"].sum() == pytest.approx(60, abs=1e-4)
    assert state.label_shares.sum() == pytest.approx(60, abs=1e-9)


@pytest.mark.slow
def test_counts_do_not_stop_growing_where_float32_would():
    chunk = make_chunk([0, 0], [0, 1], [1, 1], n_classes=2)
    state = learn([chunk])
    rows = state.rows.to_arrays()
    rows["rich_counts"][0] += 2.0**26
    state = state._replace(rows=type(state.rows)(rows))
    before = counts_of(state)[0].sum()
    for _ in range(5):
        state, _ = METHOD.update(state, chunk)
    assert counts_of(state)[0].sum() - before == pytest.approx(5, abs=1e-3)


def test_the_pooled_counts_follow_the_workers_rows(crowd):
    state = learn(chunks_of(crowd, 7))
    counts = counts_of(state)
    weight = 5 / (5 + counts.sum(axis=2, keepdims=True))
    np.testing.assert_allclose(state.pooled["rich"], (counts * weight).sum(axis=0), atol=1e-10)


# ── late labels, corrections, withdrawals ────────────────────────────────────────────────


def split_labels(chunk, first):
    """A chunk in two: the first labels, and then all of them, those of before being known."""
    rows = np.flatnonzero(first)
    early = make_chunk(
        chunk.item[rows],
        chunk.worker[rows],
        chunk.label[rows],
        n_items=chunk.n_items,
        n_workers=chunk.n_workers,
        n_classes=chunk.n_classes,
    )
    return early, chunk._replace(known=first)


def test_an_item_whose_labels_come_late_is_counted_as_if_they_had_come_together(crowd):
    before, chunk, _ = chunks_of(crowd, 20)
    early, late = split_labels(chunk, np.arange(chunk.n_labels) % 4 < 2)
    start = learn([before])
    state, info = METHOD.update(start, early)
    state, _ = METHOD.update(state, late._replace(counted_probs=info.counted_probs))
    at_once = learn([chunk], state=start)
    assert counts_of(state).sum() == pytest.approx(counts_of(at_once).sum(), abs=1e-4)
    assert state.class_counts["rich"].sum() == pytest.approx(40, abs=1e-4)
    np.testing.assert_allclose(state.label_shares, at_once.label_shares, atol=1e-9)
    np.testing.assert_allclose(counts_of(state), counts_of(at_once), atol=0.05)


def test_where_the_old_probabilities_are_lost_only_new_labels_are_counted(crowd):
    before, chunk, _ = chunks_of(crowd, 20)
    early, late = split_labels(chunk, np.arange(chunk.n_labels) % 4 < 2)
    state = learn([before, early, late])
    assert counts_of(state).sum() == pytest.approx(160, abs=1e-4)
    assert state.class_counts["rich"].sum() == pytest.approx(40, abs=1e-4)
    assert state.label_shares.sum() == pytest.approx(40, abs=1e-9)


def test_a_correction_moves_what_was_counted_to_the_new_label():
    one = make_chunk([0, 0, 0], [0, 1, 2], [0, 0, 1], n_classes=3)
    state, info = METHOD.update(METHOD.init(one, 0), one)
    corrected = one._replace(
        label=np.array([0, 0, 2], np.int32),
        known=np.array([True, True, False]),
        replaced=np.array([MISSING, MISSING, 1], np.int32),
        replaced_weight=np.array([0, 0, 1], np.float32),
        counted_probs=info.counted_probs,
    )
    state, _ = METHOD.update(state, corrected)
    counts = counts_of(state)
    np.testing.assert_allclose(counts.sum(axis=(1, 2)), 1, atol=1e-6)
    assert counts[2, :, 1].sum() == 0 and counts[2, :, 2].sum() == pytest.approx(1)
    np.testing.assert_allclose(state.label_shares, [2 / 3, 0, 1 / 3], atol=1e-9)


def test_withdrawing_all_labels_of_an_item_leaves_the_counts_as_they_were(crowd):
    before = learn(chunks_of(crowd, 20))
    one = make_chunk([0, 0], [1, 4], [2, 2], n_workers=9, n_classes=3)
    state, info = METHOD.update(before, one)
    known = one._replace(known=np.array([True, True]), counted_probs=info.counted_probs)
    for worker in (1, 4):
        known = withdrawn(known, worker)
    state, info = METHOD.update(state, known)
    for name, array in state_arrays(before).items():
        if name != "rows/rich_theta":  # the workers took another step
            # Pairs are taken back as the model sees them now, not as it did then.
            close = 0.02 if name == "unexplained/rich" else 1e-9
            np.testing.assert_allclose(state_arrays(state)[name], array, atol=close)
    assert not info.counted_probs.any()


# ── true labels ──────────────────────────────────────────────────────────────────────────


def test_an_item_whose_truth_is_given_is_counted_and_answered_by_it(crowd):
    [chunk, *_] = chunks_of(crowd, 20)
    gold = np.where(np.arange(20) < 5, (crowd.truth[:20] + 1) % 3, MISSING).astype(np.int32)
    reply = chunk._replace(gold=gold)
    state, info = METHOD.update(METHOD.init(reply, 0), reply)
    assert (info.counted_probs[np.arange(5), 0, gold[:5]] == 1).all()
    assert np.isfinite(info.losses).all()
    answer = METHOD.aggregate(state, reply)
    assert answer.aggregated[:5].tolist() == gold[:5].tolist()
    np.testing.assert_array_equal(answer.probs[:5], np.eye(3)[gold[:5]])
    assert np.isfinite(answer.log_evidence).all()


@pytest.mark.slow
def test_true_labels_teach_who_can_be_trusted():
    # One worker against two who are wrong together: only the truth can tell.
    item, worker = np.repeat(np.arange(40), 3), np.tile(np.arange(3), 40)
    truth = np.arange(40) % 2
    label = np.where(worker == 0, truth[item], 1 - truth[item])
    chunk = make_chunk(item, worker, label)
    reply = chunk._replace(gold=np.where(np.arange(40) < 30, truth, MISSING).astype(np.int32))
    untaught, taught = (METHOD.aggregate(learn([c]), chunk).aggregated for c in (chunk, reply))
    assert untaught.tolist() == (1 - truth).tolist()
    assert taught.tolist() == truth.tolist()


# ── edges ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_one_class_is_the_answer():
    chunk = make_chunk([0, 0, 1], [0, 1, 0], [0, 0, 0])
    state = learn([chunk, chunk])
    answer = METHOD.aggregate(state, chunk)
    assert answer.aggregated.tolist() == [0, 0]
    np.testing.assert_array_equal(answer.probs, 1)
    np.testing.assert_array_equal(METHOD.confusion(state, np.arange(2)), 1)
    assert METHOD.class_prior(state) == 1


@pytest.mark.slow
def test_one_label_at_a_time_is_learned_from(crowd):
    state = learn(chunks_of(crowd, 1))
    everything = chunks_of(crowd, 60)[0]
    error = (METHOD.aggregate(state, everything).aggregated != crowd.truth).mean()
    at_once = METHOD.aggregate(learn([everything]), everything)
    assert error <= (at_once.aggregated != crowd.truth).mean() + 0.05


def test_weights_count_and_labels_of_no_weight_do_not():
    chunk = make_chunk([0, 0, 1], [0, 1, 1], [1, 0, 0], weight=[2.5, 1, 0], n_classes=2)
    state, info = METHOD.update(METHOD.init(chunk, 0), chunk)
    assert counts_of(state).sum() == pytest.approx(3.5, abs=1e-5)
    assert state.class_counts["rich"].sum() == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(state.label_shares, [1 / 3.5, 2.5 / 3.5])
    assert not info.counted_probs[1].any()


def test_extreme_weights_are_no_harm():
    chunk = make_chunk([0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0], weight=[1e6, 1, 1e6, 1e6])
    state = learn([chunk] * 20)
    assert np.isfinite(METHOD.aggregate(state, chunk).probs).all()
    assert METHOD.aggregate(state, chunk).aggregated.tolist() == [1, 0]


@pytest.mark.slow
def test_a_thousand_classes_are_no_harm():
    rng = np.random.default_rng(0)
    truth = rng.integers(1000, size=30)
    item, worker = np.repeat(np.arange(30), 3), np.tile(np.arange(3), 30)
    label = np.where(rng.random(90) < 0.8, truth[item], rng.integers(1000, size=90))
    chunk = make_chunk(item, worker, label, n_classes=1000)
    method = bila(**PRESETS["recipe"], inner_steps=2)
    state = learn([chunk], method)
    assert (method.aggregate(state, chunk).aggregated == truth).mean() > 0.8
    sparse = sparse_counts.counts_of(state.rows.to_arrays(), "rich")
    assert sparse.margins[:, 0].sum() == pytest.approx(90, abs=1e-3)


def test_no_finite_numbers_are_refused_and_the_state_is_as_it_was():
    chunk = make_chunk([0, 0], [0, 1], [0, 1])
    state = learn([chunk])
    with pytest.raises(StateError, match="gave no finite numbers, so it was not learned from"):
        METHOD.update(state, chunk._replace(weight=np.array([np.nan, 1], np.float32)))


# ── adding and merging ───────────────────────────────────────────────────────────────────


def everybody(state):
    return Part(state, np.arange(state.rows.n_workers), np.arange(len(state.pooled["rich"])))


def test_merging_is_associative_to_nine_digits(crowd):
    a, b, c = (learn([chunk]) for chunk in chunks_of(crowd, 20))

    def merged(*states):
        return METHOD.counts.merge([everybody(state) for state in states], None, 9, 3)

    one, other, flat = merged(a, merged(b, c)), merged(merged(a, b), c), merged(c, a, b)
    for name, array in state_arrays(one).items():
        for twin in (other, flat):
            np.testing.assert_allclose(state_arrays(twin)[name], array, rtol=1e-9, atol=1e-9)
    assert one.class_counts["rich"].sum() == pytest.approx(60, abs=1e-4)


def test_what_was_learned_before_shards_part_is_counted_once(crowd):
    start, *shards = chunks_of(crowd, 20)
    base = learn([start])
    parts = [everybody(learn([chunk], state=base)) for chunk in shards]
    state = METHOD.counts.merge(parts, everybody(base), 9, 3)
    assert counts_of(state).sum() == pytest.approx(240, abs=1e-4)
    assert state.label_shares.sum() == pytest.approx(60, abs=1e-9)


def test_workers_and_classes_may_stand_in_any_order(crowd):
    chunk, other = chunks_of(crowd, 30)
    turned = other._replace(label=np.array([2, 0, 1], np.int32)[other.label])
    a, b, c = learn([chunk]), learn([other]), learn([turned])
    straight = METHOD.counts.merge([everybody(a), everybody(b)], None, 9, 3)
    mapped = Part(c, np.arange(9), np.array([1, 2, 0]))
    again = METHOD.counts.merge([everybody(a), mapped], None, 9, 3)
    np.testing.assert_allclose(counts_of(again), counts_of(straight), atol=1e-4)


@pytest.mark.slow
def test_history_is_as_good_as_items_whose_truth_was_given(crowd):
    [chunk] = chunks_of(crowd, 60)
    counts = np.zeros((9, 3, 3))
    np.add.at(counts, (chunk.worker, crowd.truth[chunk.item], chunk.label), 1)
    start = METHOD.init(chunk, 0)
    state: State = METHOD.counts.add(start, np.arange(9), counts)
    reply = learn([chunk._replace(gold=crowd.truth.astype(np.int32))])
    np.testing.assert_allclose(counts_of(state), counts_of(reply), atol=1e-9)
    np.testing.assert_allclose(state.pooled["rich"], reply.pooled["rich"], atol=1e-9)
    # It says nothing of how frequent the classes are here.
    assert not state.class_counts["rich"].any() and not state.label_shares.any()
    matrices = [METHOD.confusion(each, np.arange(9)) for each in (state, reply)]
    np.testing.assert_allclose(*matrices, atol=1e-3)


def test_matrices_that_would_not_fit_into_memory_are_refused_with_what_fits():
    rows = np.arange(9000)
    chunk = make_chunk(rows % 1000, rows, rows % 128, n_classes=128)
    method = bila()
    with pytest.raises(StateError, match=r"9,000 workers × 128 classes.*1\.1 GiB.*one_coin"):
        method.update(method.init(chunk, 0), chunk)
    one_coin = bila(generative="one_coin")
    state, _ = one_coin.update(one_coin.init(chunk, 0), chunk)
    assert one_coin.aggregate(state, chunk).probs.shape == (1000, 128)
