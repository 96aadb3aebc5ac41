"""q: what the network computes, what it refuses, and one of your own in a dozen lines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learn.bila import reference

from labelquorum.errors import StateError
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.evaluation.simulate.oracle import oracle_error
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.bila import bila
from labelquorum.learn.bila.encoder import ENCODERS, Encoder, mlp
from labelquorum.learn.bila.generative import Newcomers, Params
from labelquorum.learn.bila.minibatch import pack, sum_by_item, whole
from labelquorum.learn.bila.presets import settings_of
from labelquorum.learn.bila.training import loss

# --- one of your own -----------------------------------------------------------------------------


def trusting_vote():
    """A linear q: each label is a vote, each worker's vote has a weight that is learned."""

    def init(newcomers):
        shared = {"bias": jnp.zeros(newcomers.n_classes)}
        return Params(shared, {"trust": jnp.ones(len(newcomers.keys))})

    def class_logits(params, batch):
        bias, trust = params.shared["bias"], params.per_worker["trust"]
        votes = jax.nn.one_hot(batch.label, len(bias)) * trust[batch.worker, None]
        return bias + sum_by_item(votes, batch)

    return Encoder("trusting_vote", init, class_logits)


@pytest.mark.slow
def test_an_encoder_of_your_own_plugs_in_and_learns():
    crowd = class_conditional_crowd(600, 12, 3, labels_per_item=5, skill=(0.35, 0.95), seed=5)
    method = bila(
        **settings_of("network", encoder=trusting_vote(), learning_rate=0.05, predict_by="encoder")
    )
    state, errors, votes = None, [], []
    for start in range(0, 600, 50):
        rows = (crowd.item >= start) & (crowd.item < start + 50)
        item, worker, label = crowd.item[rows] - start, crowd.worker[rows], crowd.label[rows]
        chunk = make_chunk(item, worker, label, n_workers=12, n_classes=3)
        state = method.init(chunk, 0) if state is None else state
        state, _ = method.update(state, chunk)
        truth = crowd.truth[start : start + 50]
        errors.append((method.aggregate(state, chunk).aggregated != truth).mean())
        counts = np.zeros((50, 3))
        np.add.at(counts, (item, label), 1)
        votes.append((counts.argmax(axis=1) != truth).mean())
    assert np.mean(errors[6:]) < 0.8 * np.mean(votes[6:])
    assert np.mean(errors) < oracle_error(crowd) + 0.08
    skill = np.diagonal(crowd.confusion, axis1=1, axis2=2).mean(axis=1)
    trust = state.rows.to_arrays()["params.encoder.per_worker.trust"]
    assert np.corrcoef(skill, trust)[0, 1] > 0.8


# --- the network ---------------------------------------------------------------------------------


def newcomers(n_workers, n_classes, seed=0, known=None):
    key = jax.random.key(seed)
    keys = jax.vmap(lambda worker: jax.random.fold_in(key, worker))(jnp.arange(n_workers))
    votes = jnp.zeros((n_workers, n_classes, n_classes))
    total = jnp.int32(n_workers if known is None else known)
    return Newcomers(votes, votes[0], keys, jax.random.fold_in(key, 999), total)


LABELS = np.array([[0, 2, -1], [1, -1, 1], [-1, -1, 2], [2, 2, 2]])


def packed_batch(labels, workers=None):
    item, worker = np.nonzero(labels >= 0)
    chunk = make_chunk(item, worker, labels[item, worker], n_workers=labels.shape[1], n_classes=3)
    return whole(pack(chunk, np.arange(labels.shape[1]) if workers is None else workers))


@pytest.mark.parametrize("labels_as", ["index", "one_hot"])
@pytest.mark.parametrize("hidden_sizes", [(), (5, 4)], ids=len)
def test_the_network_computes_line_18_on_the_dense_input(labels_as, hidden_sizes):
    encoder, batch = mlp(hidden_sizes, labels_as), packed_batch(LABELS)
    params = jax.jit(encoder.init)(newcomers(len(batch.worker_mask), 3))
    logits = np.asarray(jax.jit(encoder.class_logits)(params, batch))[: len(LABELS)]
    weights = {**params.shared, "w1": params.per_worker["w1"][:3]}
    weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    settings = reference.Settings(labels_as=labels_as, n_classes=3)
    _, expected = reference.forward(weights, LABELS, settings)
    np.testing.assert_allclose(logits, expected, atol=1e-6)
    assert len(params.shared) == 2 * len(hidden_sizes) + 1
    assert encoder.dense == (labels_as == "index")


def test_a_one_hot_network_without_hidden_layers_starts_as_a_vote():
    encoder, batch = mlp(()), packed_batch(LABELS)
    logits = encoder.class_logits(encoder.init(newcomers(len(batch.worker_mask), 3)), batch)
    votes = [np.bincount(row[row >= 0], minlength=3) for row in LABELS]
    np.testing.assert_allclose(logits[: len(LABELS)], votes)
    double = mlp((), vote_scale=2.0)
    params = double.init(newcomers(len(batch.worker_mask), 3))
    np.testing.assert_allclose(
        double.class_logits(params, batch)[: len(LABELS)], 2 * np.array(votes)
    )


@pytest.mark.slow
def test_an_absent_worker_says_nothing_one_hot_and_speaks_as_index():
    batch = packed_batch(LABELS)
    for labels_as, heard in (("one_hot", False), ("index", True)):
        encoder = mlp((4,), labels_as)
        params = jax.jit(encoder.init)(newcomers(len(batch.worker_mask), 3))
        first = params.per_worker["w1"]
        louder = Params(params.shared, {"w1": first.at[1].mul(3.0)})
        # Worker 1 did not label items 1 and 2.
        before = encoder.class_logits(params, batch)[1:3]
        assert bool((encoder.class_logits(louder, batch)[1:3] != before).any()) == heard


@pytest.mark.slow
def test_first_weights_lie_within_glorots_limit_and_fill_it():
    encoder = mlp((40, 30), "index")
    params = jax.jit(encoder.init)(newcomers(50, 4))
    for weights, fan_in, fan_out in (
        (params.per_worker["w1"], 50, 40),
        (params.shared["w2"], 40, 30),
        (params.shared["w3"], 30, 4),
    ):
        limit = np.sqrt(6 / (fan_in + fan_out))
        assert weights.shape == (fan_in, fan_out)
        assert 0.95 * limit < np.abs(weights).max() <= limit
        assert abs(np.mean(weights)) < 0.1 * limit
    assert not any(params.shared[name].any() for name in ("b1", "b2", "b3"))


@pytest.mark.slow
@pytest.mark.parametrize("labels_as", ["index", "one_hot"])
def test_shifted_normal_weights_and_biases_lie_around_one_over_the_root_of_two_n(labels_as):
    encoder = mlp((400, 300), labels_as, weight_init="shifted_normal")
    params = jax.jit(encoder.init)(newcomers(50, 4))
    inputs = 50 if labels_as == "index" else 50 * 4
    for values, n in (
        (params.per_worker["w1"], inputs),
        (params.shared["b1"], 400),
        (params.shared["w2"], 400),
        (params.shared["b2"], 300),
        (params.shared["w3"], 300),
    ):
        error = 0.05 / np.sqrt(values.size)
        assert np.mean(values) == pytest.approx(1 / np.sqrt(2 * n), abs=5 * error)
        assert np.std(values) == pytest.approx(0.05, abs=5 * error)
        assert len(np.unique(values)) > 0.9 * values.size
    np.testing.assert_allclose(params.shared["b3"], 1 / np.sqrt(2 * 4), atol=0.25)
    assert len(np.unique(params.shared["b3"])) == 4


@pytest.mark.slow
def test_shifted_normal_weights_replace_the_vote_of_a_linear_network():
    params = mlp((), weight_init="shifted_normal").init(newcomers(5, 3))
    np.testing.assert_allclose(params.per_worker["w1"], 1 / np.sqrt(2 * 15), atol=0.3)
    assert len(np.unique(params.per_worker["w1"])) == 5 * 3 * 3


@pytest.mark.slow
def test_a_shifted_normal_row_of_a_late_worker_follows_from_the_workers_known_by_then():
    init = jax.jit(mlp((6,), "index", weight_init="shifted_normal").init)
    early, late = init(newcomers(3, 2)), init(newcomers(3, 2, known=300))
    moved = early.per_worker["w1"] - late.per_worker["w1"]
    np.testing.assert_allclose(moved, 1 / np.sqrt(6) - 1 / np.sqrt(600), atol=1e-6)


@pytest.mark.slow
def test_a_workers_first_rows_depend_on_his_key_and_not_on_who_comes_with_him():
    init = jax.jit(mlp((6,)).init)
    few, many = init(newcomers(3, 2, known=9)), init(newcomers(9, 2))
    np.testing.assert_array_equal(few.per_worker["w1"], many.per_worker["w1"][:3])
    for name, value in few.shared.items():
        np.testing.assert_array_equal(value, many.shared[name])


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (
            lambda: mlp((64, 0)),
            r"`hidden_sizes` of mlp must be whole numbers ≥ 1\. Got \[64, 0\]\.",
        ),
        (
            lambda: mlp(labels_as="dense"),
            r"`labels_as` of mlp must be 'one_hot' or 'index'\. Got 'dense'\.",
        ),
        (
            lambda: mlp(weight_init="xavier"),
            r"`weight_init` of mlp must be 'glorot' or 'shifted_normal'\. Got 'xavier'\.",
        ),
        (
            lambda: bila(weight_init="xavier"),
            r"`weight_init` of bila must be one of \['glorot', 'shifted_normal'\]\. Got 'xavier'\.",
        ),
        (
            lambda: bila(encoder="cnn"),
            r"`encoder` of bila must be one of \['mlp', 'tied'\]\. Got 'cnn'\.",
        ),
        (
            lambda: bila(kl_weight=-1),
            r"`kl_weight` of bila must be a number ≥ 0\. Got -1\.",
        ),
        (
            lambda: bila(tolerance=float("nan")),
            r"`tolerance` of bila must be a number ≥ 0\. Got nan\.",
        ),
        (
            lambda: bila(minibatch_items=0),
            r"`minibatch_items` of bila must be a whole number ≥ 1\. Got 0\.",
        ),
        (
            lambda: bila(epochs=0),
            r"`epochs` of bila must be a whole number ≥ 1\. Got 0\.",
        ),
        (
            lambda: bila(epochs=2.5),
            r"`epochs` of bila must be a whole number ≥ 1\. Got 2\.5\.",
        ),
        (
            lambda: bila(epochs="3"),
            r"`epochs` of bila must be a whole number ≥ 1\. Got '3'\.",
        ),
        (
            lambda: bila(predict_by="vote"),
            r"`predict_by` of bila must be one of \['likelihood', 'posterior', 'encoder'\]\. "
            r"Got 'vote'\.",
        ),
        (
            lambda: bila(optimizer="sgd"),
            r"`optimizer` of bila must be one of \['bounded_rmsprop', 'rmsprop', 'tf1_rmsprop', "
            r"'adam', 'curvature'\]\. "
            r"Got 'sgd'\.",
        ),
        (
            lambda: bila(class_prior="flat"),
            r"`class_prior` of bila must be one of "
            r"\['warmup', 'running', 'chunk', 'uniform', 'learned', 'blended'\]\. Got 'flat'\.",
        ),
    ],
    ids=lambda value: value.split("`")[1] if isinstance(value, str) else "",
)
def test_an_argument_out_of_range_is_refused_in_one_sentence(build, sentence):
    with pytest.raises(StateError, match=f"^{sentence}$"):
        build()


def test_numbers_of_numpy_are_numbers():
    """A grid search hands them over."""
    assert bila(epochs=np.int64(3), kl_weight=np.float32(0.1)).name == "bila"


@pytest.mark.parametrize(
    "options",
    [
        {"hidden_sizes": 64},
        {"hidden_sizes": (2.5,)},
        {"learning_rate": -1.0},
        {"learning_rate": "fast"},
        {"optimizer": "adam", "learning_rate": 0.0},
        {"decay": 1.5},
        {"kl_weight": float("inf")},
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused_too(options):
    with pytest.raises(StateError, match=r"^`\w+` of \w+ must .*\. Got .*\.$"):
        bila(**settings_of("network", **options))


def test_every_encoder_is_registered_under_its_name():
    for name, build in ENCODERS.items():
        assert build().name == name


# --- tied ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("generative", ["confusion_matrix", "worker_ability"])
def test_a_tied_encoder_answers_as_the_posterior_does(generative):
    crowd = class_conditional_crowd(200, 12, 2, labels_per_item=5, seed=5)
    chunk = make_chunk(crowd.item, crowd.worker, crowd.label, n_classes=2)
    answers = []
    for predict_by in ("encoder", "posterior"):
        method = bila(
            **settings_of(
                "network",
                generative=generative,
                encoder="tied",
                kl_weight=1.0,
                predict_by=predict_by,
            )
        )
        state, info = method.update(method.init(chunk, 0), chunk)
        assert not any(name.startswith("params.encoder") for name in state.shared)
        answers.append(method.aggregate(state, chunk).probs)
    np.testing.assert_allclose(*answers, atol=1e-5)
    assert info.losses[-1] < info.losses[0]


@pytest.mark.parametrize("kl_weight", [1.0, 0.3])
def test_no_other_q_has_a_smaller_loss_than_the_tied_one(kl_weight):
    rng = np.random.default_rng(0)
    log_likelihood, log_prior = rng.normal(size=(5, 3)), np.log([0.5, 0.3, 0.2])
    best = jax.nn.log_softmax(log_prior + log_likelihood / kl_weight)

    def value(logits):
        log_probs = jax.nn.log_softmax(logits)
        return loss(log_probs, log_likelihood, log_prior, np.ones(5), kl_weight)

    np.testing.assert_allclose(jax.grad(value)(best), 0, atol=1e-6)
    for _ in range(20):
        assert value(best + 0.1 * rng.normal(size=best.shape)) > value(best)
