"""Algorithm 1: an encoder q and a generative model p, trained by gradient steps on an exact loss.

`bila` builds it wherever `optimizer` is not "curvature". `docs/paper.md` maps every equation and
every line of the algorithm to a function.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import MISSING, LabelSpace
from labelquorum.learn.aggregator import (
    Aggregation,
    Aggregator,
    break_ties,
    consensus,
    softmax,
    vote_counts,
)
from labelquorum.learn.bila.encoder import ENCODERS, Encoder
from labelquorum.learn.bila.generative import GENERATIVE_MODELS, GenerativeModel, NewcomerRows
from labelquorum.learn.bila.minibatch import bucket, labels_in_minibatch, pack
from labelquorum.learn.bila.optimizer import OPTIMIZERS
from labelquorum.learn.bila.training import (
    ClassPrior,
    Engine,
    build_engine,
    count_labels,
    log_class_prior,
)
from labelquorum.learn.worker_table import WorkerRows

PredictBy = Literal["likelihood", "posterior", "encoder"]


class State(NamedTuple):
    """All the next chunk needs; no label is in it."""

    shared: dict[str, NDArray[Any]]  # what all workers share of θ and of the optimiser
    rows: WorkerRows  # what each worker has of them; "seen", and "step" when last learned from
    label_counts: NDArray[np.float64]  # (C,) behind the class prior
    crowd_votes: NDArray[np.float64]  # (C, C) labels z where the majority said c
    step: int  # t, minibatches learned from
    chunk_index: int
    seed: int


class Info(NamedTuple):
    """What an update did."""

    n_labels: int
    epochs: int
    steps: int
    losses: NDArray[np.float32]  # (epochs,) mean loss of each
    epoch_labels: NDArray[np.int32] | None = None  # (N, epochs) aggregated after each, if recorded


def gradient_aggregator(
    space: LabelSpace | None,
    *,
    generative: str | GenerativeModel,
    encoder: str | Encoder,
    hidden_sizes: Sequence[int],
    labels_as: Literal["one_hot", "index"],
    weight_init: Literal["glorot", "shifted_normal"],
    init_from: Literal["log_frequencies", "frequencies"],
    init_strength: float,
    init_smoothing: float,
    newcomer_rows: NewcomerRows,
    kl_weight: float,
    class_prior: ClassPrior,
    optimizer: Literal["bounded_rmsprop", "rmsprop", "tf1_rmsprop", "adam", "curvature"],
    learning_rate: float,
    decay: float,
    minibatch_items: int,
    epochs: int,
    tolerance: float,
    predict_by: PredictBy,
    record_epochs: bool,
) -> Aggregator:
    """Build BiLA as learned by gradient steps; the settings are those of `bila`."""
    engine, p, everybody = _compile(
        generative=generative,
        encoder=encoder,
        hidden_sizes=_as_tuple(hidden_sizes),
        labels_as=labels_as,
        weight_init=weight_init,
        init_from=init_from,
        init_strength=init_strength,
        init_smoothing=init_smoothing,
        newcomer_rows=newcomer_rows,
        optimizer=optimizer,
        learning_rate=learning_rate,
        decay=decay,
        kl_weight=kl_weight,
        minibatch_items=minibatch_items,
        learn_prior=class_prior == "learned",
    )
    if space is not None and space.classes is not None:
        _check_classes(p, len(space.classes))

    def init(chunk: Chunk, seed: int) -> State:
        """Alg. 1 line 4: initialise θ using L*."""
        _check_classes(p, chunk.n_classes)
        shared, rows = _start(engine, seed, chunk.n_workers, np.zeros((chunk.n_classes,) * 2))
        blank = State(
            shared=shared,
            rows=WorkerRows(rows),
            label_counts=np.zeros(chunk.n_classes),
            crowd_votes=np.zeros((chunk.n_classes, chunk.n_classes)),
            step=0,
            chunk_index=0,
            seed=seed,
        )
        return _welcome(engine, blank, chunk, vote_counts(chunk), initial=True)

    def update(state: State, chunk: Chunk) -> tuple[State, Info]:
        """Alg. 1 lines 10–27: learn from a chunk."""
        if not chunk.n_labels:
            return state, Info(0, 0, 0, np.zeros(0, np.float32))
        _check_classes(p, chunk.n_classes)
        if chunk.n_classes < len(state.label_counts):
            raise StateError(
                f"`n_classes` of a chunk must count all classes known, {len(state.label_counts)} "
                f"by now. Got {chunk.n_classes}."
            )
        votes = vote_counts(chunk)
        state = _welcome(engine, state, chunk, votes, initial=state.chunk_index == 0)
        counts = _count_classes(state.label_counts, chunk, class_prior)
        workers = np.arange(state.rows.n_workers) if everybody else chunk.workers
        before = state.rows.gather(workers)
        packed = pack(chunk, workers)
        one_batch = chunk.n_items <= minibatch_items
        trained = engine.train(
            state.shared,
            *_leaves(before, len(packed.worker_mask), state.step),
            packed,
            log_class_prior(counts),
            np.uint32(state.seed % 2**32),
            np.uint32(state.chunk_index % 2**32),
            tolerance,
            n_labels=None if one_batch else labels_in_minibatch(packed, minibatch_items),
            epochs=epochs,
            record=predict_by if record_epochs else None,
        )
        ran, step = int(trained.epochs), state.step + int(trained.steps)
        losses = np.asarray(trained.losses)[:ran]
        if not np.isfinite(losses).all():
            raise StateError(
                "Learning from this chunk gave no finite loss, so it was not learned from. "
                f"Lower `learning_rate` (it is {learning_rate}), or look for extreme weights."
            )
        rows = {name: np.asarray(leaf)[: len(workers)] for name, leaf in trained.rows.items()}
        rows |= {"seen": before["seen"], "step": np.full(len(workers), step)}
        following = state._replace(
            shared={name: np.asarray(leaf) for name, leaf in trained.shared.items()},
            rows=state.rows.scatter(workers, rows),
            label_counts=counts,
            crowd_votes=state.crowd_votes + votes.sum(axis=0),
            step=step,
            chunk_index=state.chunk_index + 1,
        )
        recorded = None
        if trained.log_scores is not None:
            after = np.asarray(trained.log_scores)[:ran, : chunk.n_items]
            each = [break_ties(log_scores, chunk.item_keys, state.seed) for log_scores in after]
            recorded = np.stack(each, axis=1)
        return following, Info(chunk.n_labels, ran, step - state.step, losses, recorded)

    def aggregate(state: State, chunk: Chunk) -> Aggregation:
        """Alg. 1 lines 28–30: infer the chunk's labels with the present θ."""
        _check_classes(p, chunk.n_classes)
        state = _welcome(engine, state, chunk, votes=None)
        workers = np.arange(state.rows.n_workers) if everybody else chunk.workers
        packed = pack(chunk, workers)
        rows, _ = _leaves(state.rows.gather(workers), len(packed.worker_mask), state.step)
        counts = (
            np.ones_like(state.label_counts) if class_prior == "uniform" else state.label_counts
        )
        scores = engine.score(state.shared, rows, packed, log_class_prior(counts))
        if predict_by == "encoder":
            log_scores = np.asarray(scores.class_log_probs)
        else:
            log_scores = np.asarray(scores.log_likelihood)
            if predict_by == "posterior":
                log_scores = log_scores + np.asarray(scores.log_prior)
        log_scores = log_scores[: chunk.n_items]
        evidence = np.asarray(scores.log_evidence)[: chunk.n_labels]
        return consensus(log_scores, evidence, chunk, state.seed)

    def confusion(state: State, workers: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        length = bucket(len(workers), 32)
        rows, _ = _leaves(state.rows.gather(workers), length, state.step)
        return np.asarray(engine.confusion(state.shared, rows))[: len(workers)]

    def prior(state: State) -> NDArray[np.float64]:
        if class_prior == "learned":
            return np.asarray(softmax(state.shared["params.prior_logits"][None])[0], np.float64)
        return np.asarray(np.exp(log_class_prior(state.label_counts)), np.float64)

    def forget(state: State, worker: int) -> State:
        blank = _blank_row(engine, state, state.rows.n_workers)
        return state._replace(rows=state.rows.scatter(np.array([worker]), blank))

    return Aggregator(
        name="bila",
        state_type=State,
        init=init,
        update=update,
        aggregate=aggregate,
        confusion=confusion,
        class_prior=prior,
        forget=forget,
        exceptions=_exceptions(
            p,
            encoder,
            labels_as,
            hidden_sizes,
            weight_init,
            init_strength,
            init_smoothing,
            predict_by,
        ),
    )


def _start(
    engine: Engine,
    seed: int,
    n_workers: int,
    crowd_votes: NDArray[np.float64],
    votes: NDArray[np.float64] | None = None,
    keys: NDArray[np.uint64] | None = None,
    *,
    initial: bool = True,
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """First parameters: what is shared, and a row for each of the P workers with votes.

    Rows come back as of workers nobody has seen; `initial` says whether they are of the initial
    set.
    """
    n = 0 if votes is None else len(votes)
    padded = np.zeros((bucket(n, 8), *crowd_votes.shape), np.float32)
    bits = np.zeros(len(padded), np.uint32)
    if votes is not None:
        padded[:n] = votes
    if keys is not None:
        bits[:n] = keys.astype(np.uint32)
    shared, rows = engine.start(
        padded,
        crowd_votes.astype(np.float32),
        bits,
        np.uint32(seed % 2**32),
        int(n_workers),
        initial,
    )
    leaves = {name: np.asarray(leaf)[:n] for name, leaf in rows.items()}
    leaves |= {"seen": np.zeros(n, np.bool_), "step": np.zeros(n, np.int64)}
    return {name: np.asarray(leaf) for name, leaf in shared.items()}, leaves


def _blank_row(engine: Engine, state: State, n_workers: int) -> dict[str, NDArray[Any]]:
    """The row that keeps the place of one of K workers whom nobody has seen."""
    votes = np.zeros((1, *state.crowd_votes.shape))
    return _start(engine, state.seed, n_workers, state.crowd_votes, votes, initial=False)[1]


def _welcome(
    engine: Engine,
    state: State,
    chunk: Chunk,
    votes: NDArray[np.float64] | None,
    *,
    initial: bool = False,
) -> State:
    """Make room for classes and workers the state has not met; nobody else's numbers change.

    A worker's first row comes from their votes (P, C, C) in the chunk where they first appear, or,
    when only asked about (`votes` is None), from what the crowd does on average; where newcomers'
    rows are flat, only those of the initial set, the first chunk with labels, come from votes.
    """
    if chunk.n_classes > len(state.label_counts):
        state = _grow_classes(engine, state, chunk.n_classes)
    known = state.rows.n_workers
    shape = state.crowd_votes.shape
    if chunk.n_workers > known:
        room = chunk.n_workers - known
        blank = _blank_row(engine, state, chunk.n_workers)
        rows = {name: np.repeat(leaf, room, axis=0) for name, leaf in blank.items()}
        state = state._replace(rows=state.rows.scatter(np.arange(known, known + room), rows))
    unseen = ~state.rows.gather(chunk.workers, ("seen",))["seen"]
    if not unseen.any():
        return state
    first = np.zeros((unseen.sum(), *shape)) if votes is None else votes[unseen]
    _, rows = _start(
        engine,
        state.seed,
        state.rows.n_workers,
        state.crowd_votes,
        first,
        chunk.worker_keys[unseen],
        initial=initial,
    )
    rows |= {"seen": np.ones(len(first), np.bool_), "step": np.full(len(first), state.step)}
    return state._replace(rows=state.rows.scatter(chunk.workers[unseen], rows))


def _grow_classes(engine: Engine, state: State, n_classes: int) -> State:
    """Start afresh with more classes, then lay everything learned so far over it."""
    more = n_classes - len(state.label_counts)
    crowd_votes = np.pad(state.crowd_votes, ((0, more), (0, more)))
    shape = (1, n_classes, n_classes)
    shared, blank = _start(engine, state.seed, state.rows.n_workers, crowd_votes, np.zeros(shape))
    known = state.rows.to_arrays()
    fresh = {name: np.repeat(leaf, state.rows.n_workers, axis=0) for name, leaf in blank.items()}
    return state._replace(
        shared={name: _overlay(leaf, state.shared[name]) for name, leaf in shared.items()},
        rows=WorkerRows({name: _overlay(leaf, known[name]) for name, leaf in fresh.items()}),
        label_counts=np.pad(state.label_counts, (0, more)),
        crowd_votes=crowd_votes,
    )


def _overlay(fresh: NDArray[Any], learned: NDArray[Any]) -> NDArray[Any]:
    grown = np.array(fresh)
    grown[tuple(slice(size) for size in learned.shape)] = learned
    return grown


def _leaves(
    rows: Mapping[str, NDArray[Any]], length: int, step: int
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int32]]:
    """Rows as compiled code takes them: padded with zeros; and the steps each was idle."""
    padded = {
        name: np.concatenate([leaf, np.zeros((length - len(leaf), *leaf.shape[1:]), leaf.dtype)])
        for name, leaf in rows.items()
        if name != "seen"
    }
    return padded, (step - padded.pop("step")).astype(np.int32)


def _count_classes(
    counts: NDArray[np.float64], chunk: Chunk, class_prior: ClassPrior
) -> NDArray[np.float64]:
    """The label counts behind the class prior once this chunk has come, (C,)."""
    if class_prior == "uniform":
        return np.ones_like(counts)
    if class_prior == "chunk":
        return count_labels(chunk.label, chunk.weight, len(counts))
    if class_prior == "warmup" and counts.any():
        return counts
    new = ~chunk.known
    gained = count_labels(chunk.label[new], chunk.weight[new], len(counts))
    corrects = chunk.replaced != MISSING
    lost = count_labels(chunk.replaced[corrects], chunk.replaced_weight[corrects], len(counts))
    return np.maximum(counts + gained - lost, 0)


@lru_cache(maxsize=64)
def _compile(
    *,
    generative: str | GenerativeModel,
    encoder: str | Encoder,
    hidden_sizes: tuple[int, ...],
    labels_as: Literal["one_hot", "index"],
    weight_init: Literal["glorot", "shifted_normal"],
    init_from: Literal["log_frequencies", "frequencies"],
    init_strength: float,
    init_smoothing: float,
    newcomer_rows: NewcomerRows,
    optimizer: str,
    learning_rate: float,
    decay: float,
    kl_weight: float,
    minibatch_items: int,
    learn_prior: bool,
) -> tuple[Engine, GenerativeModel, bool]:
    """The engine of these settings, compiled once for all models that share them.

    Also tells p, and whether each step must see every worker's row.
    """
    p, q = generative, encoder
    if not isinstance(p, GenerativeModel):
        start: dict[str, Any] = {"init_from": init_from} if p == "confusion_matrix" else {}
        if p in ("confusion_matrix", "worker_ability"):
            start |= {"init_smoothing": init_smoothing, "newcomer_rows": newcomer_rows}
        p = GENERATIVE_MODELS[p](init_strength=init_strength, **start)
    if not isinstance(q, Encoder):
        network: dict[str, Any] = {}
        if q == "mlp":
            network = {
                "hidden_sizes": hidden_sizes,
                "labels_as": labels_as,
                "weight_init": weight_init,
            }
        q = ENCODERS[q](**network)
    descent = OPTIMIZERS[optimizer](learning_rate, decay)
    engine = build_engine(
        q,
        p,
        descent,
        kl_weight=kl_weight,
        minibatch_items=minibatch_items,
        learn_prior=learn_prior,
    )
    return engine, p, q.dense or descent.row_decay is None


def _exceptions(
    generative: GenerativeModel,
    encoder: str | Encoder,
    labels_as: str,
    hidden_sizes: Sequence[int],
    weight_init: str,
    init_strength: float,
    init_smoothing: float,
    predict_by: str,
) -> dict[str, str]:
    """The laws of `evaluation.checks` that these settings cannot obey, with the reason."""
    reasons: dict[str, str] = {}
    if generative.max_classes is not None:
        reasons["new_class"] = f"{generative.name} knows at most {generative.max_classes} classes"
    if encoder == "mlp" and labels_as == "index":
        reasons["class_names"] = "labels_as='index' takes class numbers for quantities"
        if predict_by == "encoder":
            reasons["unseen_worker"] = "labels_as='index' lets absent workers speak"
    elif encoder == "mlp" and hidden_sizes:
        reasons["class_names"] = "hidden layers start from weights drawn for each class"
    elif encoder == "mlp" and weight_init == "shifted_normal":
        reasons["class_names"] = "weight_init='shifted_normal' draws weights for each class"
    if init_strength == 0 and init_smoothing == 0:
        reasons["cold_start"] = "init_strength=0 takes a worker's first few votes at face value"
    if encoder == "tied":
        reasons["shared_errors"] = "q follows p at once, and p starts from the votes"
    return reasons


def _as_tuple(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, list | tuple):
        raise StateError(f"`hidden_sizes` of bila must be a list of whole numbers. Got {sizes!r}.")
    return tuple(sizes)


def _check_classes(model: GenerativeModel, n_classes: int) -> None:
    if model.max_classes is not None and n_classes > model.max_classes:
        raise LabelError(
            f"The generative model {model.name!r} knows at most {model.max_classes} classes. "
            f"Got {n_classes}. Use generative='confusion_matrix'."
        )
