"""Worker models: against the reference written down plainly, and which of two is selected."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import labelquorum as lq
from labelquorum.evaluation.simulate.arrivals import label_table
from labelquorum.evaluation.simulate.crowds import (
    balanced_truth,
    bimodal_crowd,
    class_conditional_crowd,
    one_coin_crowd,
)
from labelquorum.ingest.chunks import make_chunk, take_rows
from labelquorum.learn.aggregator import Part
from labelquorum.learn.bila import bila
from labelquorum.learn.bila.counts import _reselected, selected
from labelquorum.learn.bila.dependence import (
    N_SUMS,
    class_shift_factor,
    correlation,
    exponent,
    temperature,
)
from labelquorum.learn.bila.engines import matrix_engine
from labelquorum.learn.bila.hierarchical import HIERARCHICAL, ONE_COIN, Recipe
from labelquorum.learn.bila.minibatch import pack_counted
from labelquorum.learn.bila.worker_models import (
    DROP,
    MIN_EVIDENCE_GAIN,
    NOISE,
    WORKER_MODELS,
    crowd_odds,
    log_skill,
    one_coin_derivatives,
    one_coin_loss,
    select_worker_model,
)
from labelquorum.learn.model_file import state_arrays, state_from_arrays
from labelquorum.learn.worker_table import WorkerRows

sys.path.insert(0, str(Path(__file__).parents[3] / "experiments" / "accuracy"))
from two_accounts import TwoAccounts

METHOD, RECIPE = bila(), Recipe(worker_models=(HIERARCHICAL, ONE_COIN))


def chunks_of(crowd, chunk_items=50):
    n_items = len(crowd.truth)
    for start in range(0, n_items, chunk_items):
        rows = (crowd.item >= start) & (crowd.item < start + chunk_items)
        yield make_chunk(
            crowd.item[rows] - start,
            crowd.worker[rows],
            crowd.label[rows],
            item_keys=np.arange(start, min(start + chunk_items, n_items)),
            n_workers=len(crowd.confusion),
            n_classes=len(crowd.class_prior),
        )


def skewed_crowd(seed=0):
    """One accuracy a worker and a rare class: what the hierarchical model explains too well."""
    return one_coin_crowd(600, 20, 2, 5, class_prior=(0.9, 0.1), seed=seed)


# ── the model, plainly ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "crowd",
    [
        pytest.param(class_conditional_crowd(300, 12, 3, 5, seed=4), id="matrices"),
        pytest.param(skewed_crowd(), id="skewed"),
        pytest.param(class_conditional_crowd(200, 20, 10, 4, seed=1), id="ten classes"),
    ],
)
def test_answers_are_those_of_the_model_written_down_plainly(crowd):
    """`experiments/accuracy/two_accounts.py` is NumPy, float64 and no tricks."""
    newton = {} if len(crowd.class_prior) <= 8 else {"newton_classes": 10}
    method = bila(tolerance=0.0, **newton)
    plain, state = TwoAccounts(len(crowd.class_prior)), None
    spoke = set()
    for chunk in chunks_of(crowd):
        state = method.init(chunk, 0) if state is None else state
        state, _ = method.update(state, chunk)
        ours = method.aggregate(state, chunk)
        _, labels, probs = plain.partial_fit(chunk.item, chunk.worker, chunk.label)
        spoke.add(selected(state, RECIPE))
        assert (selected(state, RECIPE) == HIERARCHICAL) == plain.trust_rich()
        assert (ours.aggregated == labels).mean() >= 0.98
        np.testing.assert_allclose(ours.probs, probs, atol=0.02)
    assert len(spoke) == (2 if crowd.class_prior[0] == 0.9 else 1)


def test_rounds_that_end_early_answer_the_same():
    crowd = class_conditional_crowd(400, 15, 3, 5, seed=6)  # compiled as "matrices"
    methods, differ = [bila(tolerance=0.0), bila()], 0
    states, steps = [None, None], [0, 0]
    for chunk in chunks_of(crowd):
        answers = []
        for i, method in enumerate(methods):
            state = states[i] or method.init(chunk, 0)
            states[i], info = method.update(state, chunk)
            steps[i] += info.steps
            answers.append(method.aggregate(states[i], chunk))
        np.testing.assert_allclose(answers[0].probs, answers[1].probs, atol=0.02)
        differ += (answers[0].aggregated != answers[1].aggregated).sum()
    assert differ <= 1
    assert steps[0] == 11 * 8 and steps[1] < 0.8 * steps[0]


# ── the one-coin model ───────────────────────────────────────────────────────────────────


def test_the_plain_gradient_and_curvature_are_those_of_the_loss():
    rng = np.random.default_rng(0)
    theta, hits = rng.normal(size=(1, 6)), rng.exponential(9, size=(3, 6))
    counts = np.stack([hits, hits + rng.exponential(4, size=(3, 6))])
    with jax.enable_x64(True):
        odds = crowd_odds(counts.sum(axis=2), RECIPE)

        def total(tilt):
            return one_coin_loss(tilt[None], counts, odds, RECIPE).sum()

        slope, curvature = one_coin_derivatives(theta, counts, odds, RECIPE)
        np.testing.assert_allclose(slope, -jax.jit(jax.grad(total))(theta[0]), rtol=1e-9)
        hessian = jax.jit(jax.hessian(total))(theta[0])
        np.testing.assert_allclose(curvature, jnp.diag(hessian), rtol=1e-9)
        assert jnp.abs(hessian - jnp.diag(jnp.diag(hessian))).max() == 0


@pytest.mark.slow
def test_the_plain_account_is_the_rich_one_with_nothing_but_the_tilt():
    """With no biases and nothing but S in the crowd's matrix both are one model."""
    crowd = class_conditional_crowd(200, 10, 3, 5, seed=3)
    one = bila(generative="one_coin", tolerance=0.0)
    tilt_alone = {"bias_scale": 2e-3, "crowd_strength": 1e7, "own_weight": 0.0}
    other = bila(generative="hierarchical", tolerance=0.0, **tilt_alone)
    for chunk in chunks_of(crowd, 200):
        answers = [m.aggregate(m.update(m.init(chunk, 0), chunk)[0], chunk) for m in (one, other)]
        np.testing.assert_allclose(answers[0].probs, answers[1].probs, atol=5e-3)


def test_a_plain_worker_is_solved_where_his_gradient_is_zero():
    rng = np.random.default_rng(1)
    hits = rng.exponential(20, size=(7, 4))
    counts = np.stack([hits, hits + rng.exponential(5, size=(7, 4))], axis=1)
    counts[2] = 1e6  # never wrong
    counts[3] = 0  # never seen
    pooled = matrix_engine().pool(ONE_COIN, counts, RECIPE)
    theta = matrix_engine().solve_workers(ONE_COIN, counts, pooled, RECIPE)
    assert theta.shape == (7, 1) and theta[3] == 0
    with jax.enable_x64(True):
        odds = crowd_odds(pooled, RECIPE)
        slope, curvature = one_coin_derivatives(theta.T, np.moveaxis(counts, 0, -1), odds, RECIPE)
    assert np.abs(slope / curvature).max() < 1e-9


@pytest.mark.parametrize("name", WORKER_MODELS)
def test_counts_of_a_matrix_are_those_of_its_labels(name):
    crowd = class_conditional_crowd(60, 9, 3, 4, seed=2)
    (chunk,) = chunks_of(crowd, 60)
    probs = np.random.default_rng(0).dirichlet(np.ones(3), size=60)
    packed = pack_counted(chunk, chunk.weight, np.ones(60))
    full, own = (matrix_engine().count(each, packed, probs, 9) for each in (HIERARCHICAL, name))
    np.testing.assert_allclose(WORKER_MODELS[name].from_matrix(full), own, atol=1e-9)


# ── which one is selected ────────────────────────────────────────────────────────────────


def test_skill_is_0_at_chance_and_1_for_a_crowd_that_never_errs():
    share = np.array([1, 0.25, 0.625])[:, None, None]  # of right labels, by three models
    hits = np.full((3, 2, 4), 1e9) * np.concatenate([share, np.ones((3, 1, 1))], axis=1)
    np.testing.assert_allclose(np.exp(log_skill(hits, RECIPE)), [1, 0, 0.5], atol=1e-6)


def choice(pooled, n_items=1000, nats=0.0, gain_of_clear=0.0):
    """The model selected where the hierarchical one explains 10,000 labels better by some nats."""
    rich, plain = np.zeros((2, N_SUMS, 2))
    rich[3] = plain[3] = 5000
    rich[6, 0] = nats
    rich[5, 0] = gain_of_clear * 10_000
    return select_worker_model(pooled, {HIERARCHICAL: rich, ONE_COIN: plain}, n_items, RECIPE)


def test_the_hierarchical_model_is_selected_until_skill_falls_by_more_than_is_allowed():
    def pooled(rich, plain):
        counts = np.array([[1e9], [1e9]]) * np.ones(2)
        matrix = np.eye(2) * rich + (1 - np.eye(2)) * (1 - rich)
        return {HIERARCHICAL: 1e9 * matrix, ONE_COIN: counts * [[plain], [1]]}

    for n_items in (40, 100, 10**6):
        allowed = np.exp(-DROP - NOISE / n_items)
        skill = 0.8 * allowed  # of the hierarchical model, where the one-coin model finds 0.8
        assert choice(pooled(0.5 + skill / 2 + 1e-4, 0.9), n_items) == HIERARCHICAL
        assert choice(pooled(0.5 + skill / 2 - 1e-4, 0.9), n_items) == ONE_COIN


def test_the_hierarchical_model_is_selected_where_evidence_alone_establishes_it():
    # Twenty workers, two classes: P/κ = 40, so d = 42, and 300 + 21 nats make 0.03 per label.
    rich = np.array([[60.0, 40.0], [40.0, 60.0]])  # worse than the one-coin model finds them
    pooled = {HIERARCHICAL: rich, ONE_COIN: np.array([[95.0, 95.0], [100.0, 100.0]])}
    assert RECIPE.worker_cap == 5 and MIN_EVIDENCE_GAIN == 0.03
    assert choice(pooled, nats=322, gain_of_clear=-1e-4) == HIERARCHICAL
    assert choice(pooled, nats=320, gain_of_clear=-1e-4) == ONE_COIN
    assert choice(pooled, nats=322, gain_of_clear=1e-4) == ONE_COIN


@pytest.mark.slow
def test_the_selection_needs_only_what_all_workers_share():
    # A store loads the workers of a chunk alone; every chunk has new ones.
    state = None
    for number, chunk in enumerate(chunks_of(bimodal_crowd(balanced_truth(150), 6, 0.8), 25)):
        keys = np.arange(6 * number, 6 * number + 6)
        moved = chunk._replace(
            worker=chunk.worker + 6 * number,
            workers=keys.astype(np.int32),
            worker_keys=keys.astype(np.uint64),
            n_workers=6 * number + 6,
        )
        state = METHOD.init(moved, 0) if state is None else state
        state, _ = METHOD.update(state, moved)
        alone = state._replace(rows=WorkerRows(state.rows.gather(moved.workers)))
        assert _reselected(alone, RECIPE).speaks == state.speaks


@pytest.mark.slow
def test_evidence_is_the_log_likelihood_of_the_labels_and_of_truths_however_late_they_come():
    crowd = class_conditional_crowd(60, 9, 3, 4, seed=2)
    (chunk,) = chunks_of(crowd, 60)
    state, info = METHOD.update(METHOD.init(chunk, 0), chunk)
    name = selected(state, RECIPE)
    assert -state.unexplained[name][6].sum() / 60 == pytest.approx(info.losses[0], rel=0.02)
    labels = label_table(crowd, text_ids=False)
    truth = {item: int(true) for item, true in enumerate(crowd.truth[:30])}
    at_once = lq.BiLA().partial_fit(labels, true_labels=truth)
    later = lq.BiLA().partial_fit(labels).partial_fit({}, true_labels=truth)
    for name in WORKER_MODELS:
        with_truth = at_once.model_.learned.state.unexplained[name][6].sum()
        assert later.model_.learned.state.unexplained[name][6].sum() == pytest.approx(
            with_truth, rel=0.03
        )
        assert with_truth < state.unexplained[name][6].sum()


@pytest.mark.slow
@pytest.mark.parametrize("expected", [ONE_COIN, HIERARCHICAL])
def test_each_account_speaks_where_it_errs_less(expected):
    def crowd(seed):
        truth = balanced_truth(1000, seed=seed)
        # Six workers: the skill falls by more than is allowed, and the evidence decides.
        return skewed_crowd(seed) if expected == ONE_COIN else bimodal_crowd(truth, 6, seed=seed)

    errors = {"two_accounts": [], "hierarchical": [], "one_coin": []}
    for generative, wrong in errors.items():
        for seed in range(3):
            method, state, simulated = bila(generative=generative), None, crowd(seed)
            for chunk in chunks_of(simulated):
                state = method.init(chunk, 0) if state is None else state
                state, _ = method.update(state, chunk)
                truth = simulated.truth[chunk.item_keys.astype(int)]
                wrong.extend(method.aggregate(state, chunk).aggregated != truth)
            assert generative != "two_accounts" or selected(state, RECIPE) == expected
    mean = {generative: np.mean(wrong) for generative, wrong in errors.items()}
    better, worse = ("one_coin", "hierarchical")[:: 1 if expected == ONE_COIN else -1]
    assert mean[better] < mean[worse] - 0.02
    assert mean["two_accounts"] < mean[better] + 0.01


# ── dependence ───────────────────────────────────────────────────────────────────────────


def learned_correlation(crowd):
    state = None
    for chunk in chunks_of(crowd):
        state = METHOD.init(chunk, 0) if state is None else state
        state, _ = METHOD.update(state, chunk)
    return correlation(state.unexplained[selected(state, RECIPE)])


def test_labels_that_lean_on_each_other_are_noticed_and_others_are_not():
    crowd = class_conditional_crowd(1500, 30, 3, 5, seed=5)
    assert abs(learned_correlation(crowd)) < 0.005
    # On every fourth item all say what the first one says.
    first = np.r_[True, crowd.item[1:] != crowd.item[:-1]]
    leader = crowd.label[np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))]
    copied = np.where(crowd.item % 4 == 0, leader, crowd.label)
    assert learned_correlation(crowd._replace(label=copied)) > 0.05


def test_heat_is_1_for_one_label_and_grows_with_labels_and_dependence():
    def reply(correlation, gain):
        return np.array([[correlation], [1.0], [0.0], [10.0], [2e6], [10 * gain]])

    n_labels = np.array([0, 1, 4, 100])
    np.testing.assert_allclose(temperature(n_labels, n_labels, "learned", reply(-0.1, -1)), 1)
    np.testing.assert_allclose(
        temperature(n_labels, n_labels, "learned", reply(0.04, -1)), [1, 1, 2, 10]
    )
    np.testing.assert_allclose(
        temperature(n_labels, n_labels, "learned", reply(0.02, 0.0025)), [1, 1, 2, 10]
    )
    # Tasks that are clear for all show in ρ̂ too; without that, workers are not known yet.
    np.testing.assert_allclose(temperature(n_labels, n_labels, "learned", reply(-0.1, 0.005)), 1)
    assert (
        temperature(n_labels, n_labels, "learned", reply(1e9, 1)) <= np.maximum(n_labels, 1)
    ).all()
    np.testing.assert_allclose(
        temperature(n_labels, n_labels, 0.2, reply(0.5, 1)), [1, 1, 1.6, 20.8]
    )


def test_dependence_counts_for_more_with_many_classes_because_shared_errors_do_not_show():
    def sums(n_classes):
        return np.array([[0.04], [1.0], [0.0], [10.0], [2e6], [-1.0]]) * np.full(n_classes, 1 / 2)

    # x = 1 of two classes, and 1 + (1 − 2/C) / 2
    assert exponent(sums(2)) == pytest.approx(1 / 2)
    assert exponent(sums(4)) == pytest.approx(1.25 / 2.25)


def test_confidence_falls_where_answers_name_other_classes_than_labels_do():
    named = np.array([700.0, 300.0])
    assert class_shift_factor(named, named / 2) == 1  # how much of each was counted is no shift
    assert class_shift_factor(named, np.array([780.0, 220.0])) == 1
    # D = 0.2
    assert class_shift_factor(named, np.array([900.0, 100.0])) == pytest.approx(2.095)
    assert class_shift_factor(named / 200, np.array([4.5, 0.5])) == pytest.approx(1.1)  # few tasks
    assert class_shift_factor(np.zeros(2), np.zeros(2)) == 1


@pytest.mark.slow
def test_items_with_one_label_each_tell_nothing_of_dependence():
    crowd = one_coin_crowd(400, 20, 2, 1, seed=1)
    model = lq.BiLA().fit(label_table(crowd))
    assert model.expected_gain()["gain"].max() > 1e-3
    labels = {"six": dict.fromkeys(model.workers_[:6], 1)}
    free = lq.BiLA(dependence=0.0).fit(label_table(crowd))
    reply, free = (m.predict_proba(labels).max().max() for m in (model, free))
    assert reply == pytest.approx(free, abs=0.02)


@pytest.mark.slow
def test_a_dependence_that_is_given_is_taken():
    labels = {f"t{i}": dict.fromkeys("uvwxyz", "ab"[i % 2]) for i in range(30)}
    sure = [lq.BiLA(dependence=rho).fit(labels).probas_.max().max() for rho in (0.0, 0.2, 0.9)]
    assert sure[0] > sure[1] > sure[2]


# ── late labels, merging, growing ────────────────────────────────────────────────────────


@pytest.mark.slow
def test_labels_that_trickle_in_are_counted_once_by_both_accounts():
    crowd = class_conditional_crowd(60, 8, 3, 4, seed=2)
    model = lq.BiLA()
    for row in np.random.default_rng(0).permutation(len(crowd.item)):
        model.partial_fit({int(crowd.item[row]): {f"w{crowd.worker[row]}": int(crowd.label[row])}})
    state = model.model_.learned.state
    rows = state.rows.to_arrays()
    assert rows["rich_counts"].sum() == pytest.approx(240, abs=1e-3)
    assert rows["plain_counts"][:, 1].sum() == pytest.approx(240, abs=1e-3)
    for name in WORKER_MODELS:
        assert state.class_counts[name].sum() == pytest.approx(60, abs=1e-3)
        # n_i and n_i (n_i − 1), summed over items: exact, whatever the model believed then
        np.testing.assert_allclose(state.unexplained[name][3:5].sum(axis=1), [240, 720], atol=0.01)
        exact = matrix_engine().pool(name, rows[f"{name}_counts"], RECIPE)
        np.testing.assert_allclose(state.pooled[name], exact, atol=1e-6)


@pytest.mark.slow
def test_an_item_whose_only_worker_was_forgotten_is_counted_once():
    model = lq.BiLA().partial_fit({"t1": {"ann": "a"}, "t2": {"bob": "b", "cid": "b"}})
    model.forget("ann").partial_fit({"t1": {"bob": "a"}})
    state = model.model_.learned.state
    assert state.label_shares.sum() == pytest.approx(2)
    for name in WORKER_MODELS:
        assert state.class_counts[name].sum() == pytest.approx(2, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["windowed", "refit"])
def test_a_wrapped_model_counts_what_it_is_given_and_takes_nothing_back(wrapper):
    crowd = class_conditional_crowd(90, 9, 3, 4, seed=2)
    model = lq.estimator(f"{wrapper}:bila")
    rows = label_table(crowd, text_ids=False)
    for start in (0, 30, 60):
        some = [i for i, item in enumerate(rows.item_ids) if start <= item < start + 30]
        model.partial_fit(take_rows(rows, some))
    task, worker = rows.item_ids[-1], rows.worker_ids[-1]
    model.partial_fit({task: {worker: (rows.labels[-1] + 1) % 3}})
    state = model.model_.learned.state
    if wrapper == "windowed":
        assert state.rows.to_arrays()["rich_counts"].sum() == pytest.approx(4, abs=1e-4)
        assert (state.unexplained[HIERARCHICAL][3:5].sum(axis=1) > 3.999).all()
    else:
        assert state.fit["rows/rich_counts"].sum() == pytest.approx(360, abs=1e-3)


def test_both_accounts_are_merged_whatever_the_order_of_workers_and_classes():
    crowd = class_conditional_crowd(80, 8, 3, 4, seed=2)
    states = []
    for chunk in chunks_of(crowd, 40):
        states.append(METHOD.update(METHOD.init(chunk, 0), chunk)[0])
    workers, classes = np.arange(8)[::-1], np.array([2, 0, 1])
    parts = [Part(state, np.arange(8), np.arange(3)) for state in states]
    turned = [Part(state, workers, classes) for state in states]
    straight = METHOD.counts.merge(parts, None, 8, 3)
    other = METHOD.counts.merge(turned, None, 8, 3)
    plain = [state.rows.to_arrays()["plain_counts"] for state in (straight, other)]
    np.testing.assert_allclose(plain[0], plain[1][workers][:, :, classes], atol=1e-9)
    tilts = [state.rows.to_arrays()["plain_theta"] for state in (straight, other)]
    np.testing.assert_allclose(tilts[0], tilts[1][workers], atol=1e-9)
    sums = straight.unexplained[ONE_COIN], other.unexplained[ONE_COIN][:, classes]
    np.testing.assert_allclose(*sums, atol=1e-9)
    both = sum(state.unexplained[ONE_COIN] for state in states)
    np.testing.assert_allclose(straight.unexplained[ONE_COIN], both, atol=1e-9)


@pytest.mark.slow
def test_a_new_class_changes_nobodys_numbers():
    few, many = (class_conditional_crowd(40, 8, c, 4, seed=2) for c in (2, 3))
    (first,), (second,) = chunks_of(few, 40), chunks_of(many, 40)
    state, _ = METHOD.update(METHOD.init(first, 0), first)
    nothing = make_chunk([], [], [], n_workers=8, n_classes=3)
    grown, _ = METHOD.update(state, nothing)
    for name, rows in state.rows.to_arrays().items():
        wide = grown.rows.to_arrays()[name]
        same = wide[tuple(map(slice, rows.shape))]
        np.testing.assert_array_equal(same, rows)
        assert wide.sum() == pytest.approx(rows.sum())
    assert METHOD.update(grown, second)[0].unexplained[ONE_COIN].shape == (N_SUMS, 3)


def test_a_state_saved_without_evidence_is_continued():
    first, second = chunks_of(class_conditional_crowd(80, 8, 3, 4, seed=2), 40)
    state, _ = METHOD.update(METHOD.init(first, 0), first)
    arrays = state_arrays(state)
    for name in WORKER_MODELS:  # as saved before the evidence was kept
        arrays[f"unexplained/{name}"] = arrays[f"unexplained/{name}"][: N_SUMS - 1]
    loaded = state_from_arrays(METHOD.state_type, arrays)
    for name, sums in METHOD.update(loaded, second)[0].unexplained.items():
        expected = METHOD.update(state, second)[0].unexplained[name]
        np.testing.assert_array_equal(sums[: N_SUMS - 1], expected[: N_SUMS - 1])
        np.testing.assert_allclose(sums[-1], expected[-1] - state.unexplained[name][-1])
