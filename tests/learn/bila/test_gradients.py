"""Gradients of the loss, of both p's and of q, against finite differences and against hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from learn.bila import reference

from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.bila.encoder import mlp
from labelquorum.learn.bila.generative import Params, confusion_matrix, worker_ability
from labelquorum.learn.bila.minibatch import Batch, minibatch, pack, whole
from labelquorum.learn.bila.optimizer import Optimizer, bounded_rmsprop, constant_bounds
from labelquorum.learn.bila.training import build_engine, loss

N_ITEMS, N_WORKERS, KL_WEIGHT = 21, 5, 0.3
MODELS = [
    pytest.param("confusion_matrix", 3, id="confusion_matrix"),
    pytest.param("worker_ability", 2, id="worker_ability"),
]
CODINGS = ["index", "one_hot"]
NETWORKS = [
    ("confusion_matrix", 3, "index", (6, 4)),
    ("confusion_matrix", 3, "one_hot", (6, 4)),
    ("confusion_matrix", 3, "one_hot", ()),
    ("worker_ability", 2, "index", (6, 4)),
    ("worker_ability", 2, "one_hot", (6,)),
]


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def dense_labels(n_classes, seed=3):
    """Labels (N, K), a third missing; nobody labelled the last item."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_classes, size=(N_ITEMS, N_WORKERS))
    labels[rng.random(labels.shape) < 1 / 3] = reference.MISSING
    labels[-1] = reference.MISSING
    return labels


def packed_labels(labels, n_classes, weight=None):
    item, worker = np.nonzero(labels != reference.MISSING)
    chunk = make_chunk(
        item,
        worker,
        labels[item, worker],
        weight=weight,
        n_items=len(labels),
        n_workers=N_WORKERS,
        n_classes=n_classes,
    )
    return pack(chunk, np.arange(N_WORKERS))


def padded_batch(labels, n_classes):
    """All labels as one batch, with padding among items, rows and workers, in float64."""
    batch = whole(packed_labels(labels, n_classes))
    floats = {
        name: jnp.asarray(getattr(batch, name), jnp.float64)
        for name in ("weight", "item_mask", "worker_mask")
    }
    return batch._replace(**floats)


def random_params(generative, n_classes, labels_as, hidden_sizes, n_rows, seed=5):
    """θ drawn at random under the reference's names, and as the package's two `Params`."""
    rng = np.random.default_rng(seed)
    sizes = [*hidden_sizes, n_classes]
    first = (n_classes, sizes[0]) if labels_as == "one_hot" else (sizes[0],)
    alpha = {"w1": rng.normal(size=(N_WORKERS, *first)), "b1": rng.normal(size=sizes[0])}
    for layer in range(1, len(sizes)):
        alpha[f"w{layer + 1}"] = rng.normal(size=(sizes[layer - 1], sizes[layer]))
        alpha[f"b{layer + 1}"] = rng.normal(size=sizes[layer])
    beta = rng.normal(size=(N_WORKERS, n_classes, n_classes))
    name, ours = "omega", "confusion_logits"
    if generative == "worker_ability":
        beta, name, ours = beta[:, :, 0], "lam", "ability_logits"

    def rows(values):  # the rows of padding hold numbers too: nobody may look at them
        filler = rng.normal(size=(n_rows - N_WORKERS, *values.shape[1:]))
        return jnp.asarray(np.concatenate([values, filler]))

    shared = {key: jnp.asarray(value) for key, value in alpha.items() if key != "w1"}
    packed = (Params(shared, {"w1": rows(alpha["w1"])}), Params({}, {ours: rows(beta)}))
    return {**alpha, name: beta}, packed


def by_reference_name(grads):
    """The gradient of the package under the reference's names, and that of the padded rows."""
    q, p = grads
    (beta,) = p.per_worker.values()
    named = {
        **{name: np.asarray(value) for name, value in q.shared.items()},
        "w1": np.asarray(q.per_worker["w1"]),
        "omega" if beta.ndim == 3 else "lam": np.asarray(beta),
    }
    padding = {}
    for name in ("w1", "omega", "lam"):
        if name in named:
            named[name], padding[name] = np.split(named[name], [N_WORKERS])
    return named, padding


def with_central_differences(function, tree, step=1e-6):
    """The value, its gradient, and the gradient again from nudging one number at a time."""
    flat, unravel = ravel_pytree(tree)

    @jax.jit
    def evaluate(flat):
        value, grads = jax.value_and_grad(lambda flat: function(unravel(flat)))(flat)
        nudges = step * jnp.eye(flat.size)
        at = jax.vmap(lambda nudge: function(unravel(flat + nudge)))
        return value, grads, (at(nudges) - at(-nudges)) / (2 * step)

    value, grads, differences = evaluate(flat)
    return value, unravel(grads), unravel(differences)


def assert_close(ours, theirs, rtol):
    """Each array to within `rtol` of its largest number."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=rtol * max(np.abs(b).max(), 1)),
        ours,
        theirs,
    )


def model_of(name):
    return {"confusion_matrix": confusion_matrix, "worker_ability": worker_ability}[name]()


def objective(generative, labels_as, hidden_sizes, batch, log_prior):
    encoder, model = mlp(hidden_sizes, labels_as), model_of(generative)

    def value(params):
        q, p = params
        class_log_probs = jax.nn.log_softmax(encoder.class_logits(q, batch))
        likelihood = model.log_likelihood(p, batch)
        return loss(class_log_probs, likelihood, log_prior, batch.item_mask, KL_WEIGHT)

    return value


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("generative", "n_classes", "labels_as", "hidden_sizes"), NETWORKS)
def test_the_gradient_of_the_loss_is_that_of_finite_differences_and_of_hand(
    generative, n_classes, labels_as, hidden_sizes
):
    labels = dense_labels(n_classes)
    batch = padded_batch(labels, n_classes)
    assert len(batch.worker_mask) > N_WORKERS and len(batch.item_mask) > N_ITEMS
    theta, params = random_params(
        generative, n_classes, labels_as, hidden_sizes, len(batch.worker_mask)
    )
    log_prior = reference.log_label_shares(labels, n_classes)
    f = objective(generative, labels_as, hidden_sizes, batch, jnp.asarray(log_prior))
    value, grads, differences = with_central_differences(f, params)
    assert_close(grads, differences, rtol=1e-8)

    settings = reference.Settings(generative, labels_as, n_classes=n_classes, kl_weight=KL_WEIGHT)
    by_hand_value, by_hand = reference.loss_and_grads(theta, labels, log_prior, settings)
    named, padding = by_reference_name(grads)
    assert float(value) == pytest.approx(by_hand_value, rel=1e-12)
    assert named.keys() == by_hand.keys()
    assert_close(named, by_hand, rtol=1e-12)
    assert all(np.abs(by_hand[name]).max() > 1e-3 for name in by_hand)
    assert not any(rows.any() for rows in padding.values())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("generative", "n_classes"), MODELS)
def test_the_gradient_of_p_is_that_of_finite_differences(generative, n_classes):
    batch = padded_batch(dense_labels(n_classes), n_classes)
    batch = batch._replace(weight=batch.weight * jnp.linspace(0.1, 2.0, len(batch.weight)))
    _, (_, params) = random_params(generative, n_classes, "index", (), len(batch.worker_mask))
    pull = np.random.default_rng(0).normal(size=(len(batch.item_mask), n_classes))
    model = model_of(generative)
    _, grads, differences = with_central_differences(
        lambda p: (pull * model.log_likelihood(p, batch)).sum(), params
    )
    assert_close(grads, differences, rtol=1e-8)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("labels_as", CODINGS)
def test_the_gradient_of_q_is_that_of_finite_differences(labels_as):
    batch = padded_batch(dense_labels(3), 3)
    batch = batch._replace(weight=batch.weight * jnp.linspace(0.1, 2.0, len(batch.weight)))
    _, (params, _) = random_params("confusion_matrix", 3, labels_as, (6, 4), len(batch.worker_mask))
    pull = np.random.default_rng(0).normal(size=(len(batch.item_mask), 3))
    encoder = mlp((6, 4), labels_as)
    _, grads, differences = with_central_differences(
        lambda q: (pull * encoder.class_logits(q, batch)).sum(), params
    )
    assert_close(grads, differences, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("generative", "n_classes"), MODELS)
def test_the_log_likelihood_is_the_sum_of_the_logs_of_the_confusion_matrices(generative, n_classes):
    labels = dense_labels(n_classes)
    batch = padded_batch(labels, n_classes)
    theta, (_, params) = random_params(generative, n_classes, "index", (), len(batch.worker_mask))
    model = model_of(generative)
    ours = model.log_likelihood(params, batch)[:N_ITEMS]
    np.testing.assert_allclose(ours, reference.log_likelihood(theta, labels), rtol=1e-12)
    assert not ours[-1].any()  # nobody labelled that item
    np.testing.assert_allclose(
        model.confusion(params)[:N_WORKERS], reference.confusion(theta), rtol=1e-12
    )


@pytest.mark.usefixtures("float64")
def test_the_loss_is_the_divergence_from_the_posterior_up_to_a_constant():
    """With ζ = 1, f = mean KL(q ‖ p(y | l)) − mean log p(l): Eq. (kl_calc)."""
    rng = np.random.default_rng(1)
    log_q, log_joint = (reference.logsumexp(x) * -1 + x for x in rng.normal(size=(2, 9, 4)))
    log_prior = np.log(np.array([0.1, 0.2, 0.3, 0.4]))
    evidence = rng.normal(size=(9, 1))
    log_likelihood = log_joint + evidence - log_prior  # so p(c | l) = exp(log_joint)
    value = loss(jnp.asarray(log_q), log_likelihood, log_prior, np.ones(9), 1.0)
    divergence = (np.exp(log_q) * (log_q - log_joint)).sum(axis=1).mean()
    assert float(value) == pytest.approx(divergence - evidence.mean(), rel=1e-12)


@pytest.mark.parametrize(
    ("generative", "n_classes", "labels_as"),
    [("confusion_matrix", 3, "index"), ("worker_ability", 2, "one_hot")],
)
def test_one_step_of_the_engine_follows_the_gradient_derived_by_hand(
    generative, n_classes, labels_as
):
    """With both bounds at 1 the first step of Algorithm 1 is θ − g."""
    labels = dense_labels(n_classes)
    plain = Optimizer("plain", bounded_rmsprop(bounds=constant_bounds(1.0, 1.0)), 0.9)
    engine = build_engine(
        mlp((6, 4), labels_as),
        model_of(generative),
        plain,
        kl_weight=KL_WEIGHT,
        minibatch_items=N_ITEMS,
        learn_prior=False,
    )
    packed = packed_labels(labels, n_classes)
    n_rows = len(packed.worker_mask)
    theta, (q, p) = random_params(generative, n_classes, labels_as, (6, 4), n_rows)
    votes = np.zeros((n_rows, n_classes, n_classes), np.float32)
    shared, rows = engine.start(votes, votes[0], np.zeros(n_rows, np.uint32), 0, N_WORKERS)
    shared |= {f"params.encoder.shared.{name}": value for name, value in q.shared.items()}
    rows |= {f"params.encoder.per_worker.{name}": value for name, value in q.per_worker.items()}
    rows |= {f"params.generative.per_worker.{name}": value for name, value in p.per_worker.items()}
    log_prior = reference.log_label_shares(labels, n_classes)
    idle = np.zeros(n_rows, np.int32)
    trained = engine.train(
        shared, rows, idle, packed, log_prior.astype(np.float32), 0, 0, 0.0, n_labels=None, epochs=1
    )
    settings = reference.Settings(generative, labels_as, n_classes=n_classes, kl_weight=KL_WEIGHT)
    value, by_hand = reference.loss_and_grads(theta, labels, log_prior, settings)
    assert float(trained.losses[0]) == pytest.approx(value, rel=1e-6)
    before, after = {**shared, **rows}, {**trained.shared, **trained.rows}
    ours = {"confusion_logits": "omega", "ability_logits": "lam"}
    moved = 0
    for name, old in before.items():
        if name.startswith("params."):
            last = name.split(".")[-1]
            step = np.asarray(old, np.float64) - np.asarray(after[name], np.float64)
            expected = by_hand[ours.get(last, last)]
            scale = np.abs(np.asarray(old)).max()
            np.testing.assert_allclose(step[: len(expected)], expected, rtol=0, atol=1e-6 * scale)
            assert name in shared or not step[N_WORKERS:].any()
            moved += 1
    assert moved == len(by_hand)


def test_a_minibatch_holds_exactly_the_labels_of_its_items():
    labels = dense_labels(3)
    rng = np.random.default_rng(2)
    weight = rng.random((labels != reference.MISSING).sum()).astype(np.float32)
    packed = packed_labels(labels, 3, weight)
    by_row = list(
        zip(packed.item, packed.worker, packed.label, packed.weight.tolist(), strict=True)
    )
    items = np.array([20, 4, 17, 0, 9, 0, 0, 0])
    mask = np.array([1, 1, 1, 1, 1, 0, 0, 0], np.float32)
    batch = jax.tree.map(np.asarray, minibatch(packed, items, mask, 64))
    assert isinstance(batch, Batch)
    assert (np.diff(batch.item) >= 0).all()
    used = batch.weight > 0
    found = zip(
        items[batch.item[used]],
        batch.worker[used],
        batch.label[used],
        batch.weight[used].tolist(),
        strict=True,
    )
    expected = [row for row in by_row if row[0] in (20, 4, 17, 0, 9) and row[3] > 0]
    assert sorted(found) == sorted(expected)
