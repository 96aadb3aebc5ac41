"""f, the loss, and training on it: epochs of minibatches inside one compiled call.

The loss is how far q is from p, with exact expectations, in logs from end to end. The parameters
and what the optimiser remembers travel as flat, named leaves of two kinds: shared ones, and rows
that only the workers of the chunk bring along.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.learn.bila.encoder import Encoder
from labelquorum.learn.bila.generative import GenerativeModel, Newcomers
from labelquorum.learn.bila.lazy_jax import jax, jnp, keep_compiled_code
from labelquorum.learn.bila.minibatch import Batch, Leaf, Packed, minibatch, minibatch_order, whole
from labelquorum.learn.bila.optimizer import Optimizer

ClassPrior = Literal["warmup", "running", "chunk", "uniform", "learned", "blended"]

LABEL_FLOOR = 0.5
"""A class nobody named counts as half a label, so that its logarithm is finite."""


def loss(
    class_log_probs: jax.Array,
    log_likelihood: jax.Array,
    log_prior: jax.Array,
    item_mask: jax.Array,
    kl_weight: float,
) -> jax.Array:
    """The mini-batch loss, Eq. (minilossprac), a mean over the items that are no padding.

    Parameters
    ----------
    class_log_probs
        log q(c | l_i), (M, C).
    log_likelihood
        log p(l_i | c), (M, C).
    log_prior
        log p(c), (C,).
    item_mask
        (M,).
    kl_weight
        ζ, the weight of the divergence from the prior.
    """
    class_probs = jnp.exp(class_log_probs)
    # Eq. (klcalc): KL(q ‖ p(y)) = −Σ_c q_c log(p_c / q_c)
    divergence = -(class_probs * (log_prior - class_log_probs)).sum(axis=1)
    # Eq. (ecalc): E_q[log p(l | y)] = Σ_c q_c log p(l | c)
    expectation = (class_probs * log_likelihood).sum(axis=1)
    # Eq. (minilossprac): f = 1/M Σ_i { ζ KL_i − E_i }
    return ((kl_weight * divergence - expectation) * item_mask).sum() / item_mask.sum()


def count_labels(
    label: NDArray[np.integer[Any]], weight: NDArray[np.floating[Any]], n_classes: int
) -> NDArray[np.float64]:
    """The numerator of Eq. (priorest): how often each class was named, (C,)."""
    return np.bincount(label, weight, minlength=n_classes).astype(np.float64)


def log_class_prior(counts: NDArray[np.float64]) -> NDArray[np.float32]:
    """Eq. (priorest): the share of the labels that named each class, in logs, (C,)."""
    floored = np.maximum(counts, LABEL_FLOOR)
    return np.asarray(np.log(floored / floored.sum()), np.float32)


# ── training ─────────────────────────────────────────────────────────────────────────────


Named = dict[str, Leaf]


class Trained(NamedTuple):
    """The result of training on a chunk."""

    shared: Named
    rows: Named
    losses: jax.Array  # (epochs,) mean loss of each epoch, NaN where it was not run
    epochs: Leaf  # () epochs run
    steps: Leaf  # () minibatches learned from
    log_scores: jax.Array | None  # (epochs, N, C) after each epoch, where recorded


class Scores(NamedTuple):
    """What the model says of a chunk, all in logs."""

    log_likelihood: jax.Array  # (N, C) of p
    class_log_probs: jax.Array  # (N, C) of q
    log_evidence: jax.Array  # (B, C) of each label
    log_prior: jax.Array  # (C,)


class Engine(NamedTuple):
    """Compiled functions over named leaves."""

    start: Callable[..., tuple[Named, Named]]
    train: Callable[..., Trained]
    score: Callable[..., Scores]
    confusion: Callable[[Named, Named], jax.Array]


def build_engine(
    encoder: Encoder,
    generative: GenerativeModel,
    optimizer: Optimizer,
    *,
    kl_weight: float,
    minibatch_items: int,
    learn_prior: bool,
) -> Engine:
    """Compile q, p and the optimiser into the things done with them."""
    keep_compiled_code()

    def start_tree(newcomers: Newcomers) -> Any:
        params: dict[str, Any] = {
            "encoder": encoder.init(newcomers),
            "generative": generative.init(newcomers),
        }
        if learn_prior:
            params["prior_logits"] = jnp.zeros(newcomers.n_classes)
        return {"params": params, "optimizer": optimizer.transform.init(params)}

    join, split = _layout(start_tree)

    def log_prior_of(params: Any, counted: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(params["prior_logits"]) if learn_prior else counted

    def class_log_probs_of(params: Any, batch: Batch, counted: jax.Array) -> jax.Array:
        if encoder.tied:
            # argmin_q f: log q = log p(c) + log p(l | c) / ζ + const. f is flat in q there, so
            # nothing flows back through q.
            log_likelihood = generative.log_likelihood(params["generative"], batch)
            logits = log_prior_of(params, counted) + log_likelihood / kl_weight
            return jax.nn.log_softmax(jax.lax.stop_gradient(logits))
        # Alg. 1 line 19: q = softmax(h)
        return jax.nn.log_softmax(encoder.class_logits(params["encoder"], batch))

    def objective(params: Any, batch: Batch, counted: jax.Array) -> jax.Array:
        class_log_probs = class_log_probs_of(params, batch, counted)
        log_likelihood = generative.log_likelihood(params["generative"], batch)
        return loss(
            class_log_probs,
            log_likelihood,
            log_prior_of(params, counted),
            batch.item_mask,
            kl_weight,
        )

    def learn(tree: Any, batch: Batch, counted: jax.Array) -> tuple[Any, jax.Array]:
        # Alg. 1 line 22: g_t = ∇f_t(θ_t); lines 23–27 are the optimiser's.
        value, grads = jax.value_and_grad(objective)(tree["params"], batch, counted)
        updates, memory = optimizer.transform.update(grads, tree["optimizer"], tree["params"])
        params = jax.tree.map(jnp.add, tree["params"], updates)
        return {"params": params, "optimizer": memory}, value

    def log_scores(params: Any, batch: Batch, counted: jax.Array, predict_by: str) -> jax.Array:
        """What the items would be answered by, (N, C)."""
        if predict_by == "encoder":
            return jax.nn.log_softmax(encoder.class_logits(params["encoder"], batch))
        likelihood = generative.log_likelihood(params["generative"], batch)
        if predict_by == "posterior":
            return likelihood + log_prior_of(params, counted)
        return likelihood

    @jax.jit
    def start(
        votes: jax.Array,
        crowd_votes: jax.Array,
        worker_keys: jax.Array,
        seed: int,
        n_workers: int,
        initial: bool = True,
    ) -> tuple[Named, Named]:
        key = jax.random.key(seed)
        keys = jax.vmap(lambda bits: jax.random.fold_in(key, bits))(worker_keys)
        shared_key = jax.random.fold_in(key, 0)
        newcomers = Newcomers(votes, crowd_votes, keys, shared_key, n_workers, initial)
        return split(start_tree(newcomers))

    @partial(jax.jit, static_argnames=("n_labels", "epochs", "record"))
    def train(
        shared: Named,
        rows: Named,
        idle_steps: jax.Array,
        packed: Packed,
        counted: jax.Array,
        seed: int,
        chunk_index: int,
        tolerance: float,
        *,
        n_labels: int | None,
        epochs: int,
        record: str | None = None,
    ) -> Trained:
        # A worker who was absent for n steps had gradient 0 in each: their v decayed by γ^n.
        if optimizer.row_decay is not None:
            faded = optimizer.row_decay ** idle_steps.astype(jnp.float32)
            rows = {
                name: leaf * faded.reshape(-1, *[1] * (leaf.ndim - 1))
                if name.startswith("optimizer")
                else leaf
                for name, leaf in rows.items()
            }
        chunk_key = jax.random.fold_in(jax.random.key(seed), chunk_index)
        n_batches = -(-packed.n_items // minibatch_items)

        def epoch(carry: Any) -> Any:
            number, tree, before, losses, recorded = carry
            if n_labels is None:  # the whole chunk fits one minibatch
                tree, mean = learn(tree, whole(packed), counted)
            else:
                order = minibatch_order(
                    jax.random.fold_in(chunk_key, number), len(packed.start), packed.n_items
                )
                order = jnp.pad(order, (0, minibatch_items))

                # Alg. 1 lines 12–13: for each minibatch L^(M) of L^(s)
                def visit(b: jax.Array, carry: Any) -> Any:
                    tree, total = carry
                    items = jax.lax.dynamic_slice(order, (b * minibatch_items,), (minibatch_items,))
                    position = b * minibatch_items + jnp.arange(minibatch_items)
                    mask = (position < packed.n_items).astype(jnp.float32)
                    batch = minibatch(packed, items, mask, n_labels)
                    tree, value = learn(tree, batch, counted)
                    return tree, total + value * mask.sum()

                tree, total = jax.lax.fori_loop(0, n_batches, visit, (tree, jnp.float32(0)))
                mean = total / packed.n_items
            if record is not None:
                now = log_scores(tree["params"], whole(packed), counted, record)
                recorded = recorded.at[number].set(now)
            return number + 1, tree, (before[1], mean), losses.at[number].set(mean), recorded

        def unfinished(carry: Any) -> Leaf:
            number, _, (before, now), _, _ = carry
            settled = jnp.abs(now - before) < tolerance * jnp.abs(before)
            return (number < epochs) & ~((number > 1) & settled)

        # Alg. 1 line 11: for each epoch, until the mean loss settles
        first = (jnp.float32(jnp.inf), jnp.float32(jnp.inf))
        # Nothing recorded is no leaf: the compiled code is as if there were no such thing.
        blank = None if record is None else jnp.zeros((epochs, len(packed.start), len(counted)))
        number, tree, _, losses, recorded = jax.lax.while_loop(
            unfinished, epoch, (0, join(shared, rows), first, jnp.full(epochs, jnp.nan), blank)
        )
        shared, rows = split(tree)
        return Trained(shared, rows, losses, number, number * n_batches, recorded)

    @jax.jit
    def score(shared: Named, rows: Named, packed: Packed, counted: jax.Array) -> Scores:
        params = join(shared, rows)["params"]
        batch = whole(packed)
        confusion = generative.confusion(params["generative"])
        log_confusion = jnp.log(jnp.maximum(confusion, 1e-37))
        return Scores(
            log_likelihood=generative.log_likelihood(params["generative"], batch),
            class_log_probs=class_log_probs_of(params, batch, counted),
            log_evidence=log_confusion[batch.worker, :, batch.label],
            log_prior=log_prior_of(params, counted),
        )

    @jax.jit
    def confusion(shared: Named, rows: Named) -> jax.Array:
        # Alg. 1 line 28: the confusion matrices π of the updated β
        return generative.confusion(join(shared, rows)["params"]["generative"])

    return Engine(start, train, score, confusion)


def _layout(
    start_tree: Callable[[Newcomers], Any],
) -> tuple[Callable[[Named, Named], Any], Callable[[Any], tuple[Named, Named]]]:
    """Name the leaves of a tree of parameters and say which of them have one row per worker.

    Those are the leaves whose leading axis follows the number of workers.
    """

    def shapes(n_workers: int) -> Any:
        def build() -> Any:
            keys = jax.random.split(jax.random.key(0), n_workers)
            votes = jnp.zeros((n_workers, 2, 2))
            return start_tree(Newcomers(votes, votes[0], keys, keys[0], jnp.int32(n_workers)))

        return jax.eval_shape(build)

    few, structure = jax.tree.flatten_with_path(shapes(3))
    many = jax.tree.leaves(shapes(5))
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in few]
    has_rows = {
        name: leaf.shape != other.shape
        for name, (_, leaf), other in zip(names, few, many, strict=True)
    }

    def join(shared: Named, rows: Named) -> Any:
        return jax.tree.unflatten(
            structure, [rows[name] if has_rows[name] else shared[name] for name in names]
        )

    def split(tree: Any) -> tuple[Named, Named]:
        leaves = dict(zip(names, jax.tree.leaves(tree), strict=True))
        return (
            {name: leaf for name, leaf in leaves.items() if not has_rows[name]},
            {name: leaf for name, leaf in leaves.items() if has_rows[name]},
        )

    return join, split
