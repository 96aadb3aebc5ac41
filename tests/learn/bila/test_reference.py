"""The engine against an independent NumPy version of Algorithm 1 and of the released code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from groups import slow_but
from learn.bila import reference

from labelquorum import BiLA
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.bila.encoder import mlp
from labelquorum.learn.bila.generative import Newcomers
from labelquorum.learn.bila.presets import settings_of

SEED = 11
N_WORKERS = 7
CHUNK_ITEMS = (62, 37, 55)  # two minibatches of 50, less than one, two; all in one bucket
TOLERANCE = 1e-5


def three_chunks(n_classes, seed):
    """Three dense matrices (N, K); the last worker is unknown before the second one."""
    crowd = class_conditional_crowd(
        sum(CHUNK_ITEMS), N_WORKERS, n_classes, labels_per_item=4, skill=(0.6, 0.9), seed=seed
    )
    dense = np.full((sum(CHUNK_ITEMS), N_WORKERS), reference.MISSING)
    dense[crowd.item, crowd.worker] = crowd.label
    first, *others = np.split(dense, np.cumsum(CHUNK_ITEMS)[:-1])
    return [first[:, :-1], *others]


def as_chunk(dense, n_classes):
    item, worker = np.nonzero(dense != reference.MISSING)
    return make_chunk(
        item,
        worker,
        dense[item, worker],
        n_items=len(dense),
        n_workers=dense.shape[1],
        n_classes=n_classes,
    )


def parameters(state):
    """The engine's θ under the reference's names."""
    leaves = {**state.shared, **state.rows.to_arrays()}
    renamed = {"confusion_logits": "omega", "ability_logits": "lam"}
    names = [name for name in leaves if name.startswith("params.")]
    return {renamed.get(last := name.split(".")[-1], last): leaves[name] for name in names}


def first_rows(options, chunk, new, n_classes):
    """The rows of W₁ that workers start with who were unknown before this chunk."""
    encoder = mlp(
        options["hidden_sizes"],
        options["labels_as"],
        weight_init=options.get("weight_init", "glorot"),
    )
    bits = chunk.worker_keys[np.isin(chunk.workers, new)].astype(np.uint32)
    keys = jax.vmap(lambda one: jax.random.fold_in(jax.random.key(SEED), one))(bits)
    votes = jnp.zeros((len(new), n_classes, n_classes))
    known = Newcomers(votes, votes[0], keys, keys[0], jnp.int32(chunk.n_workers))
    return np.asarray(encoder.init(known).per_worker["w1"])


def deviation(ours, theirs):
    """The largest difference of any parameter, relative to the largest number in its array."""
    assert ours.keys() == theirs.keys()
    return max(
        np.abs(ours[name] - value).max() / (np.abs(value).max() or 1.0)
        for name, value in theirs.items()
    )


def run_both(preset, changes, settings, *, seed=3):
    """Yield after each chunk: engine state and info, the reference, both answers and matrices."""
    options, n_classes = settings_of(preset, **changes), settings.n_classes
    dense = three_chunks(n_classes, seed)
    chunks = [as_chunk(labels, n_classes) for labels in dense]
    method = BiLA(preset, **changes).model_.aggregator
    state = method.init(chunks[0], SEED)

    alpha = {name: w for name, w in parameters(state).items() if name not in ("omega", "lam")}
    learned = reference.start(alpha, reference.first_beta(dense[0], settings), settings)
    assert deviation(parameters(state), learned.params) < 1e-6

    for chunk_index, (labels, chunk) in enumerate(zip(dense, chunks, strict=True)):
        counted = labels if options["class_prior"] == "chunk" else dense[0]
        log_prior = reference.log_label_shares(counted, n_classes)
        new = np.arange(len(learned.params["w1"]), chunk.n_workers)
        if len(new):
            rows = first_rows(options, chunk, new, n_classes)
            beta = reference.flat_beta(len(new), settings)
            learned = reference.join(learned, rows, beta, settings)
        state, info = method.update(state, chunk)
        learned = reference.update(learned, labels, log_prior, settings, SEED, chunk_index)
        answer = method.aggregate(state, chunk)
        matrices = method.confusion(state, np.arange(chunk.n_workers))
        yield state, info, learned, labels, answer, matrices


ONE_HOT = {"labels_as": "one_hot", "minibatch_items": 17}  # up to four minibatches
BEFORE = {
    "init_smoothing": 0.0,
    "learning_rate": 1e-3,
    "decay": 0.9,
    "epochs": 100,
    "tolerance": 1e-3,
}
CASES = {
    "paper-confusion_matrix": ("www2021", {}, 3),
    "paper-worker_ability": ("www2021", {"generative": "worker_ability"}, 2),
    "paper-one_hot": ("www2021", ONE_HOT | {"hidden_sizes": (9, 6, 5), "kl_weight": 0.7}, 3),
    "paper-stopping": ("www2021", BEFORE, 3),
    "authors-confusion_matrix": ("authors", {}, 3),
    "authors-ten_classes": ("authors", {}, 10),
    "authors-one_hot": ("authors", ONE_HOT | {"hidden_sizes": (8,)}, 3),
    "authors-rmsprop": ("authors", {"optimizer": "rmsprop", "weight_init": "glorot"}, 3),
}
READINGS = {"www2021": reference.Settings(), "authors": reference.RELEASED}


@pytest.mark.parametrize("case", slow_but(["paper-worker_ability"], CASES))
def test_three_chunks_give_the_parameters_and_labels_of_the_reference(case):
    """`BiLA("www2021")` is Algorithm 1, `BiLA("authors")` the released code; one joins late."""
    preset, changes, n_classes = CASES[case]
    known = {name: changes[name] for name in reference.Settings._fields if name in changes}
    settings = READINGS[preset]._replace(**known, n_classes=n_classes)
    steps = 0
    for state, info, learned, labels, answer, matrices in run_both(preset, changes, settings):
        assert info.epochs == len(learned.losses)
        np.testing.assert_allclose(info.losses, learned.losses, rtol=1e-5)
        steps += info.steps
        assert steps == state.step == learned.step
        assert deviation(parameters(state), learned.params) < TOLERANCE

        np.testing.assert_allclose(matrices, reference.confusion(learned.params), atol=TOLERANCE)
        aggregated, log_likelihood = reference.aggregate(learned, labels)
        best = np.sort(log_likelihood, axis=1)
        assert (best[:, -1] - best[:, -2]).min() > 1e-4, "all but a tie: take another seed"
        np.testing.assert_array_equal(answer.aggregated, aggregated)
        np.testing.assert_allclose(answer.probs, reference.softmax(log_likelihood), atol=1e-4)


@pytest.mark.parametrize("preset", READINGS)
def test_the_readings_are_what_the_presets_say(preset):
    """So no setting of the reference stands in for another of the preset."""
    options = settings_of(preset)
    for name, value in READINGS[preset]._asdict().items():
        if name not in ("n_classes", "init_smoothing"):
            assert options[name] == value
    assert options.get("init_smoothing", 0.0) == READINGS[preset].init_smoothing


@pytest.mark.parametrize("preset", READINGS)
def test_the_comparison_would_notice_a_small_change_of_the_algorithm(preset):
    """Another γ, ζ, μ, start of v or order ends far outside the tolerance after one chunk."""
    labels = three_chunks(3, 2)[0]
    settings = READINGS[preset]._replace(n_classes=3)
    rng = np.random.default_rng(0)
    alpha = {"w1": rng.normal(size=(labels.shape[1], 8)) / 3, "b1": np.zeros(8)}
    alpha |= {"w2": rng.normal(size=(8, 3)) / 3, "b2": np.zeros(3)}
    log_prior = reference.log_label_shares(labels, 3)

    def learned(chunk_index=0, **changes):
        changed = settings._replace(**changes)
        start = reference.start(alpha, reference.first_beta(labels, changed), changed)
        return reference.update(start, labels, log_prior, changed, SEED, chunk_index).params

    as_it_is = learned()
    assert deviation(learned(epochs=1), as_it_is) > 100 * TOLERANCE
    changes = [
        {"decay": 0.99 * settings.decay},
        {"kl_weight": 0.101},
        {"learning_rate": 1.1 * settings.learning_rate},
        {"init_smoothing": settings.init_smoothing + 0.1},
    ]
    if preset == "authors":
        changes.append({"optimizer": "rmsprop"})
    for change in changes:
        assert deviation(learned(**change), as_it_is) > 10 * TOLERANCE
    assert deviation(learned(chunk_index=1), as_it_is) > 10 * TOLERANCE


def test_epsilon_and_the_start_of_v_are_those_of_tensorflow_1():
    """θ after one and after many steps, from v = 1 and with 1e-10 under the root, by hand."""
    settings = reference.RELEASED._replace(n_classes=2)
    theta = {"omega": np.array([[[0.3, -0.2], [0.0, 0.1]]])}
    learned = reference.start({}, theta["omega"], settings)
    g = 1e-6
    step = reference.STEPS[settings.optimizer]
    params, v = step(learned.params, learned.second_moment, {"omega": np.full((1, 2, 2), g)}, 1,
                     settings)  # fmt: skip
    np.testing.assert_allclose(v["omega"], 0.9 + 0.1 * g**2)
    np.testing.assert_allclose(theta["omega"] - params["omega"], 1e-4 * g / np.sqrt(0.9), rtol=1e-6)
    for t in range(2, 500):
        before = params
        params, v = step(params, v, {"omega": np.full((1, 2, 2), g)}, t, settings)
    # v has settled at g² = 1e-12: ε decides the step
    np.testing.assert_allclose(
        before["omega"] - params["omega"], 1e-4 * g / np.sqrt(1e-12 + 1e-10), rtol=1e-3
    )
