"""LAA: an autoencoder whose code is the truth; labels in, class in the middle, labels out.

L. Yin, J. Han, W. Zhang and Y. Yu, Aggregating Crowd Wisdoms with Label-aware Autoencoders, IJCAI
2017: its basic model LAA-B. On a stream the networks and the optimiser go on learning from chunk
to chunk: the "oLAA" of the BiLA paper.

    q(y = c | l_i) ∝ exp(b[c] + Σ_k W_k[l_ik, c])            the classifier (encoder)
    p(l_ik = z | y = c) ∝ exp(V_k[c, z] + a_k[z])            the reconstructor (decoder)

    loss = 1/N Σ_i { −1/(K C) E_q(y | l_i)[log p(l_i | y)] + λ KL(q(y | l_i) ‖ votes of i) }
           + ρ/(K C²) Σ |W|

The classifier is first taught to vote. λ, ρ and the learning rate are those of the code that the
authors released (github.com/coverdark/deep_laa, README and laa_s.py), the epochs those of an
earlier version of it: the later one runs fewer. Weights start from 0, where they use noise of
deviation 0.01.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import StateError
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.aggregator import Aggregation, Aggregator, consensus, softmax
from labelquorum.learn.bila.lazy_jax import jax, jit, jnp, keep_compiled_code, optax
from labelquorum.learn.bila.minibatch import Batch, Leaf, Packed, bucket, pack, sum_by_item, whole
from labelquorum.learn.methods._batch import check_at_least
from labelquorum.learn.worker_table import WorkerRows

Expectation = Literal["sampled", "exact"]

VOTE_FLOOR = 1e-10
"""Added to every share of votes before its logarithm is taken, as the authors do."""

_MOMENTS = (".first", ".second")  # what Adam remembers of each weight


class State(NamedTuple):
    """Both networks and what the optimiser remembers of them; no label is in it."""

    shared: dict[str, NDArray[Any]]  # "bias" b, with its two moments
    rows: WorkerRows  # "encoder" W_k, "decoder" V_k, "decoder_bias" a_k, moments; "met"
    crowd: dict[str, NDArray[Any]]  # the mean row of a label's worker, and how many labels it is of
    shares: NDArray[np.float64]  # (C,) sum over items of the vote
    step: int  # epochs learned, the optimiser's t
    chunk_index: int
    seed: int


class Info(NamedTuple):
    """What an update did."""

    n_labels: int
    epochs: int
    losses: NDArray[np.float32]  # (epochs,)


class _Net(NamedTuple):
    """Weights of both networks, for P workers."""

    bias: Leaf  # (C,) b
    encoder: Leaf  # (P, C, C) W_k[z, c]
    decoder: Leaf  # (P, C, C) V_k[c, z]
    decoder_bias: Leaf  # (P, C) a_k[z]


class _Weights(NamedTuple):
    """The numbers in the loss, and the learning rate."""

    n_workers: Leaf  # K, all known
    kl_weight: Leaf  # λ
    penalty: Leaf  # ρ
    learning_rate: Leaf


def laa(
    space: LabelSpace | None = None,
    *,
    expectation: Expectation = "sampled",
    samples: int = 10,
    kl_weight: float = 1e-4,
    penalty: float = 5e-3,
    learning_rate: float = 5e-3,
    vote_epochs: int = 100,
    epochs: int = 500,
) -> Aggregator:
    """Build LAA.

    Parameters
    ----------
    expectation, samples
        E_q over draws of y, "sampled", or over all classes, "exact" (the authors' code).
    kl_weight, penalty
        λ and ρ.
    learning_rate
        Of Adam.
    vote_epochs
        For how long the classifier is taught to vote, wherever a worker says a class for the
        first time.
    epochs
        Steps on a first chunk, taken as a whole; a later one gets as many as its items are a share
        of all items so far.

    Examples
    --------
    >>> from labelquorum.evaluation.checks import seeded_error
    >>> print(f"{seeded_error(laa()):.0%}")
    13%
    """
    if expectation not in ("sampled", "exact"):
        raise StateError(f"`expectation` of laa must be 'sampled' or 'exact'. Got {expectation!r}.")
    check_at_least("laa", samples=(samples, 2), kl_weight=(kl_weight, 0), penalty=(penalty, 0))
    check_at_least("laa", learning_rate=(learning_rate, 0), vote_epochs=(vote_epochs, 0))
    check_at_least("laa", epochs=(epochs, 1))
    keep_compiled_code()

    def init(chunk: Chunk, seed: int) -> State:
        C = chunk.n_classes
        shared, blank = _blank(C)
        vote = np.eye(C, dtype=np.float32)  # before any label
        crowd = {"encoder": vote, "decoder": vote, "n_labels": np.array(0.0)}
        rows = WorkerRows({name: leaf[:0] for name, leaf in blank.items()})
        return State(shared, rows, crowd, np.zeros(C), 0, 0, seed)

    def update(state: State, chunk: Chunk) -> tuple[State, Info]:
        state = _grow(state, chunk)
        if not chunk.weight.any():
            return state, Info(0, 0, np.zeros(0, np.float32))
        P, packed = len(chunk.workers), pack(chunk, chunk.workers)
        rows = {
            name: _pad(leaf, len(packed.worker_mask))
            for name, leaf in state.rows.gather(chunk.workers).items()
        }
        said = np.zeros(rows["met"].shape, np.bool_)
        heard = chunk.weight > 0
        said[chunk.local_worker[heard], chunk.label[heard]] = True
        votes = chunk.vote_shares
        new = votes[chunk.is_new].sum(axis=0)
        shares = state.shares + new
        # A step of Adam is as long on a few items as on many: a chunk gets its share of them.
        ran = max(1, round(epochs * float(new.sum() / max(shares.sum(), 1.0))))
        net, moments, losses = _train(
            _net_of(state.shared, rows),
            [_net_of(state.shared, rows, moment) for moment in _MOMENTS],
            said & ~rows["met"],
            state.step,
            packed,
            _pad(votes.astype(np.float32), len(packed.start)),
            np.array([state.seed % 2**32, state.chunk_index], np.uint32),
            _Weights(state.rows.n_workers, kl_weight, penalty, learning_rate),
            vote_epochs,
            ran,
            samples=samples if expectation == "sampled" else None,
            room=bucket(epochs, 512),
        )
        shared, learned = _leaves_of(net, moments, P)
        learned["met"] = (rows["met"] | said)[:P]
        following = state._replace(
            shared=shared,
            rows=state.rows.scatter(chunk.workers, learned),
            crowd=_average(state.crowd, learned, chunk),
            shares=shares,
            step=state.step + ran,
            chunk_index=state.chunk_index + 1,
        )
        return following, Info(chunk.n_labels, ran, np.asarray(losses)[:ran])

    def aggregate(state: State, chunk: Chunk) -> Aggregation:
        state = _grow(state, chunk)
        packed = pack(chunk, chunk.workers)
        encoder = _pad(_known_rows(state, chunk.workers)["encoder"], len(packed.worker_mask))
        scores, evidence = _score(state.shared["bias"], encoder, packed)
        log_scores = np.asarray(scores)[: chunk.n_items]
        return consensus(log_scores, np.asarray(evidence)[: chunk.n_labels], chunk, state.seed)

    def confusion(state: State, workers: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        logits = _known_rows(state, workers)["decoder"]
        return softmax(logits.reshape(-1, logits.shape[2])).reshape(logits.shape)

    def forget(state: State, worker: int) -> State:
        blank = _blank(len(state.shares))[1]
        return state._replace(rows=state.rows.scatter(np.array([worker]), blank))

    def class_prior(state: State) -> NDArray[np.float64]:
        shares = state.shares + 0.5
        return np.asarray(shares / shares.sum())

    exceptions = {
        "shared_errors": "200 items at a time are too few to tell shared errors from the truth"
    }
    if expectation == "sampled":
        exceptions["class_names"] = "y is drawn by the number of its class"
    return Aggregator(
        name="laa",
        state_type=State,
        init=init,
        update=update,
        aggregate=aggregate,
        confusion=confusion,
        class_prior=class_prior,
        forget=forget,
        exceptions=exceptions,
    )


@jit(static_argnames=("samples", "room"))
def _train(
    net: _Net,
    moments: list[_Net],
    fresh: Leaf,
    step: Leaf,
    packed: Packed,
    votes: Leaf,
    seeds: Leaf,
    weights: _Weights,
    vote_epochs: Leaf,
    epochs: Leaf,
    *,
    samples: int | None,
    room: int,
) -> tuple[_Net, list[_Net], jax.Array]:
    """Teach what is `fresh`, (P, C), to vote; then train both networks on the whole chunk."""
    batch, adam = whole(packed), optax.scale_by_adam()
    key = jax.random.fold_in(jax.random.key(seeds[0]), seeds[1])

    def vote(_: jax.Array, carry: Any) -> Any:
        net, memory = carry
        grads = jax.grad(_vote_loss)(net, batch, votes)
        grads = grads._replace(
            bias=jnp.where(step == 0, grads.bias, 0), encoder=grads.encoder * fresh[..., None]
        )
        updates, memory = adam.update(grads, memory)
        return jax.tree.map(lambda w, u: w - weights.learning_rate * u, net, updates), memory

    rounds = jnp.where(fresh.any(), vote_epochs, 0)
    net, _ = jax.lax.fori_loop(0, rounds, vote, (net, adam.init(net)))

    def learn(epoch: jax.Array, carry: Any) -> Any:
        net, memory, losses = carry
        draw = None if samples is None else jax.random.fold_in(key, epoch)
        value, grads = jax.value_and_grad(_loss)(net, batch, votes, weights, draw, samples)
        updates, memory = adam.update(grads, memory)
        net = jax.tree.map(lambda w, u: w - weights.learning_rate * u, net, updates)
        return net, memory, losses.at[epoch].set(value)

    memory = optax.ScaleByAdamState(jnp.asarray(step, jnp.int32), *moments)
    carry = net, memory, jnp.zeros(room)
    net, memory, losses = jax.lax.fori_loop(0, epochs, learn, carry)
    return net, [memory.mu, memory.nu], losses


@jit()
def _score(bias: Leaf, encoder: Leaf, packed: Packed) -> tuple[jax.Array, jax.Array]:
    """Class logits, (N, C), and what each label adds to them, (B, C)."""
    batch = whole(packed)
    evidence = encoder[batch.worker, batch.label]
    return bias + sum_by_item(evidence, batch), evidence


def _log_class_probs(net: _Net, batch: Batch) -> jax.Array:
    # log q(y = c | l_i) = b[c] + Σ_k W_k[l_ik, c], normalised
    logits = net.bias + sum_by_item(net.encoder[batch.worker, batch.label], batch)
    return jax.nn.log_softmax(logits)


def _vote_loss(net: _Net, batch: Batch, votes: Leaf) -> Leaf:
    # −1/N Σ_i Σ_c votes_i(c) log q(c | l_i)
    cross_entropy = -(votes * _log_class_probs(net, batch)).sum(axis=1)
    return (cross_entropy * batch.item_mask).sum() / batch.item_mask.sum()


def _loss(
    net: _Net,
    batch: Batch,
    votes: Leaf,
    weights: _Weights,
    key: jax.Array | None,
    samples: int | None,
) -> Leaf:
    class_log_probs = _log_class_probs(net, batch)
    C = class_log_probs.shape[1]
    # −log p(l_i | y = c) = −Σ_k log softmax_z(V_k[c, z] + a_k[z]) at z = l_ik
    log_confusion = jax.nn.log_softmax(net.decoder + net.decoder_bias[:, None, :])
    misfit = -sum_by_item(log_confusion[batch.worker, :, batch.label], batch)  # (N, C)
    if key is None or samples is None:
        misfit = (jnp.exp(class_log_probs) * misfit).sum(axis=1)
    else:
        misfit = _sampled(key, samples, class_log_probs, misfit)
    # KL(q ‖ votes) = Σ_c q(c) (log q(c) − log votes(c))
    gap = class_log_probs - jnp.log(VOTE_FLOOR + votes)
    kl = (jnp.exp(class_log_probs) * gap).sum(axis=1)
    n_inputs = weights.n_workers * C
    item_loss = misfit / n_inputs + weights.kl_weight * kl
    mean = (item_loss * batch.item_mask).sum() / batch.item_mask.sum()
    return mean + weights.penalty / (n_inputs * C) * jnp.abs(net.encoder).sum()


def _sampled(
    key: jax.Array, samples: int, class_log_probs: jax.Array, misfit: jax.Array
) -> jax.Array:
    """E_q[misfit] over draws of y, (N,), with a gradient that is right on average.

    A draw has no gradient; that of q is E_q[misfit ∇ log q] (Williams 1992), each draw being held
    against the mean of the others (Kool, van Hoof and Welling 2019).
    """
    N, C = misfit.shape
    # A uniform number falls between two steps of the cumulative distribution.
    below = jnp.cumsum(jnp.exp(class_log_probs), axis=1)[:, : C - 1]
    y = (jax.random.uniform(key, (samples, N, 1)) > below).sum(axis=2)
    item = jnp.arange(N)
    drawn, log_q = misfit[item, y], class_log_probs[item, y]  # (S, N)
    others = (drawn.sum(axis=0) - drawn) / (samples - 1)
    score = jax.lax.stop_gradient(drawn - others) * log_q
    return (drawn + score - jax.lax.stop_gradient(score)).mean(axis=0)


def _blank(n_classes: int) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """What is shared, and the row of one worker, before anything was learned."""
    C = n_classes
    shapes = {"encoder": (1, C, C), "decoder": (1, C, C), "decoder_bias": (1, C)}
    kinds = ("", *_MOMENTS)
    shared = {f"bias{kind}": np.zeros(C, np.float32) for kind in kinds}
    rows: dict[str, NDArray[Any]] = {
        f"{name}{kind}": np.zeros(shape, np.float32)
        for name, shape in shapes.items()
        for kind in kinds
    }
    # Which classes a worker has named so far: only there does the classifier row mean anything.
    return shared, rows | {"met": np.zeros((1, C), np.bool_)}


def _net_of(
    shared: Mapping[str, NDArray[Any]], rows: Mapping[str, NDArray[Any]], kind: str = ""
) -> _Net:
    leaves = {**shared, **rows}
    return _Net(*(leaves[f"{name}{kind}"] for name in _Net._fields))


def _leaves_of(
    net: _Net, moments: list[_Net], n_workers: int
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    shared, rows = {}, {}
    for kind, values in zip(("", *_MOMENTS), (net, *moments), strict=True):
        for name, leaf in values._asdict().items():
            if name == "bias":
                shared[f"{name}{kind}"] = np.asarray(leaf)
            else:
                rows[f"{name}{kind}"] = np.asarray(leaf)[:n_workers]
    return shared, rows


def _known_rows(state: State, workers: NDArray[np.integer[Any]]) -> dict[str, NDArray[Any]]:
    """W_k and V_k + a_k of workers; what nobody has heard of them yet is the crowd's."""
    rows = state.rows.gather(workers, ("encoder", "decoder", "decoder_bias", "met"))
    met = rows["met"][..., None]  # (P, C, 1)
    logits = rows["decoder"] + rows["decoder_bias"][:, None, :]
    return {
        "encoder": np.where(met, rows["encoder"], state.crowd["encoder"]),
        "decoder": np.where(np.any(met, axis=1, keepdims=True), logits, state.crowd["decoder"]),
    }


def _average(
    crowd: Mapping[str, NDArray[Any]], rows: Mapping[str, NDArray[Any]], chunk: Chunk
) -> dict[str, NDArray[Any]]:
    """Take the rows of a chunk's workers into the crowd's mean, each label counting once."""
    fresh = chunk.counted_weight
    given = np.bincount(chunk.local_worker, fresh, len(chunk.workers))
    total = crowd["n_labels"] + given.sum()
    if not total:
        return dict(crowd)

    def mix(mean: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
        sums = mean * crowd["n_labels"] + (new * given[:, None, None]).sum(axis=0)
        return np.asarray(sums / total, np.float32)

    return {
        "encoder": mix(crowd["encoder"], rows["encoder"]),
        "decoder": mix(crowd["decoder"], rows["decoder"] + rows["decoder_bias"][:, None, :]),
        "n_labels": np.asarray(total),
    }


def _pad(leaf: NDArray[Any], length: int) -> NDArray[Any]:
    return np.concatenate([leaf, np.zeros((length - len(leaf), *leaf.shape[1:]), leaf.dtype)])


def _grow(state: State, chunk: Chunk) -> State:
    """Make room for classes and workers the state has not met; nobody else's numbers change."""
    C = len(state.shares)
    more = chunk.n_classes - C
    if more > 0:

        def widen(leaf: NDArray[Any], n_fixed: int) -> NDArray[Any]:
            return np.pad(leaf, [(0, 0)] * n_fixed + [(0, more)] * (leaf.ndim - n_fixed))

        vote = np.diag(np.arange(chunk.n_classes) >= C).astype(np.float32)
        crowd = {name: widen(state.crowd[name], 0) + vote for name in ("encoder", "decoder")}
        state = state._replace(
            shared={name: widen(leaf, 0) for name, leaf in state.shared.items()},
            rows=WorkerRows({n: widen(leaf, 1) for n, leaf in state.rows.to_arrays().items()}),
            crowd=crowd | {"n_labels": state.crowd["n_labels"]},
            shares=widen(state.shares, 0),
        )
    new = np.arange(state.rows.n_workers, chunk.n_workers)
    if len(new):
        blank = _blank(len(state.shares))[1]
        rows = {name: np.repeat(leaf, len(new), axis=0) for name, leaf in blank.items()}
        state = state._replace(rows=state.rows.scatter(new, rows))
    return state
