"""Sharding: one table learned from in parts that share no item, wherever each part is.

A shard is fitted with all that the other shards counted, and says what it counted itself: a row of
numbers for each of its workers, and a few sums over its items. Both add up over shards. In a later
round a shard is fitted again, and what it counts then takes the place of what it counted before.
So nothing is counted twice, and a round needs of a shard's workers their rows and no more.

    fit(chunk, known, own) → Gained    pool(rows, n_classes) → Sums    answer(chunk, known)
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.errors import StateError
from labelquorum.ingest.chunks import Chunk
from labelquorum.learn.aggregator import Aggregation, Aggregator, consensus
from labelquorum.learn.bila.counts import State, engine_of, with_more
from labelquorum.learn.bila.dependence import N_SUMS, N_VOTE_SUMS
from labelquorum.learn.bila.hierarchical import Recipe
from labelquorum.learn.bila.identification import NO_ANSWERS
from labelquorum.learn.bila.sparse_counts import (
    converted,
    counts_of,
    dense_counts,
    leaves_of,
)
from labelquorum.learn.bila.worker_models import WORKER_MODELS, select_worker_model
from labelquorum.learn.estimator import Estimator
from labelquorum.learn.methods._batch import has_settled, incidence_of, log_normalise, soft_counts
from labelquorum.learn.methods.dawid_skene import Params, log_joint, shares
from labelquorum.learn.worker_table import WorkerRows

Sums = dict[str, Floats]
"""Named numbers that add up over shards."""


ROUNDS = 5
"""Rounds after which BiLA in shards answers as it does in one piece; see `docs/spark.md`."""


class Gained(NamedTuple):
    """What a shard counted."""

    rows: Floats  # (P, D) of its workers, in the order of `chunk.workers`
    sums: Sums  # of its items


class Known(NamedTuple):
    """What all shards counted, as far as a shard needs it."""

    rows: Floats  # (P, D) of the shard's workers
    sums: Sums
    pooled: Sums  # what all workers, those of other shards too, give to what is shared


class Sharding(NamedTuple):
    """A method whose table may be in shards."""

    rounds: int  # maximum number of times that every shard is fitted
    settled: Callable[[Sequence[Sums]], bool]  # by the sums of all rounds: another changes nothing
    fit: Callable[[Chunk, Known | None, Gained | None], Gained]
    pool: Callable[[Floats, int], Sums]  # of all rows (K, D); adds up over workers
    answer: Callable[[Chunk, Known], Aggregation]
    confusion: Callable[[Known], Floats]  # (P, C, C) of the workers whose rows are known
    class_prior: Callable[[Known], Floats]


def sharding_of(model: Estimator) -> Sharding:
    """How a model's method learns from shards."""
    method, seed = model.model_.aggregator, model.model_.seed
    if model.history is not None:
        raise StateError("A `history` of workers is not counted in shards. Use one partition.")
    if method.counts is not None:
        return _counted(method, method.counts.recipe, seed)
    if model.method == "dawid_skene":
        params = model.get_params()
        return _dawid_skene(seed, params["smoothing"], params["tolerance"], params["iterations"])
    raise StateError(
        f"The method {model.method!r} with these settings cannot learn from shards. Use bila, "
        "with the preset default or recipe, or dawid_skene; or one partition."
    )


def together(
    sharding: Sharding,
    gained: Sequence[Gained],
    places: Sequence[NDArray[np.intp]],
    n_classes: int,
) -> Known:
    """Add up the counts of all shards, by worker; `places` are a shard's workers among all."""
    n_workers = 1 + max(int(place.max(initial=-1)) for place in places)
    rows = np.zeros((n_workers, gained[0].rows.shape[1]))
    for place, one in zip(places, gained, strict=True):
        rows[place] += one.rows
    names = gained[0].sums
    sums = {name: np.sum([one.sums[name] for one in gained], axis=0) for name in names}
    return Known(rows, sums, sharding.pool(rows, n_classes))


# ── counts: BiLA ─────────────────────────────────────────────────────────────────────────


def _counted(method: Aggregator, recipe: Recipe, seed: int) -> Sharding:
    names = recipe.worker_models

    def pool(rows: Floats, n_classes: int) -> Sums:
        counts = _split(rows, names, n_classes)
        return {name: engine_of(counts[name]).pool(name, counts[name], recipe) for name in names}

    def fit(chunk: Chunk, known: Known | None, own: Gained | None) -> Gained:
        if known is None:
            return _counted_by(method.update(method.init(chunk, seed), chunk)[0], names)
        before = _state_of(_less(known, own, pool, chunk.n_classes), recipe, seed)
        before = before._replace(expected_errors={})  # those of the past are faded once, at the end
        past, now = _counted_by(before, names), method.update(before, chunk)[0]
        rows, sums = _counted_by(now, names)
        return Gained(rows - past.rows, {name: sums[name] - past.sums[name] for name in sums})

    def confusion(known: Known) -> Floats:
        state = _state_of(known, recipe, seed)
        return np.asarray(method.confusion(state, np.arange(len(known.rows))), np.float64)

    return Sharding(
        rounds=ROUNDS,
        settled=lambda past: False,
        fit=fit,
        pool=pool,
        answer=lambda chunk, known: method.aggregate(_state_of(known, recipe, seed), chunk),
        confusion=confusion,
        class_prior=lambda known: method.class_prior(_state_of(known, recipe, seed)),
    )


def _state_of(known: Known, recipe: Recipe, seed: int) -> State:
    """The state of a model that has counted this, and knows these workers alone."""
    names, n_classes = recipe.worker_models, len(known.sums["label_shares"])
    rows: dict[str, NDArray[Any]] = {}
    for name, counts in _split(known.rows, names, n_classes).items():
        kept = converted(counts, name, n_classes)
        rows |= leaves_of(name, kept)
        solve = engine_of(kept).solve_workers
        rows[f"{name}_theta"] = solve(name, kept, known.pooled[name], recipe)
    unexplained = {name: known.sums[f"unexplained/{name}"] for name in names}
    for name, sums in unexplained.items():
        if not sums[N_SUMS:].any():  # no worker has several votes on an item
            unexplained[name] = sums[:N_SUMS]
    n_items = float(known.sums["label_shares"].sum())
    selected = select_worker_model(known.pooled, unexplained, n_items, recipe)
    return State(
        rows=WorkerRows(rows),
        pooled=dict(known.pooled),
        class_counts={name: known.sums[f"class_counts/{name}"] for name in names},
        unexplained=unexplained,
        label_shares=known.sums["label_shares"],
        speaks=names.index(selected),
        seed=seed,
        gold={},
        stack={},
        expected_errors={
            name: sums for name in names if (sums := known.sums[f"expected_errors/{name}"]).any()
        },
    )


def _counted_by(state: State, names: Sequence[str]) -> Gained:
    """All that a state has counted."""
    leaves = state.rows.to_arrays()
    rows = [
        dense_counts(counts_of(leaves, name)).reshape(state.rows.n_workers, -1) for name in names
    ]
    sums = {"label_shares": state.label_shares}
    for name in names:
        sums[f"class_counts/{name}"] = state.class_counts[name]
        # All shards alike, whether or not workers have several votes on an item there.
        room = np.zeros((N_SUMS + N_VOTE_SUMS, state.n_classes))
        sums[f"unexplained/{name}"] = with_more(state.unexplained[name], room)
        sums[f"expected_errors/{name}"] = state.expected_errors.get(name, NO_ANSWERS)
    return Gained(np.concatenate(rows, axis=1), sums)


def _split(rows: Floats, names: Sequence[str], n_classes: int) -> dict[str, Floats]:
    """The counts of each worker model, (P, …)."""
    shapes = [WORKER_MODELS[name].count_shape(n_classes) for name in names]
    ends = np.cumsum([prod(shape) for shape in shapes])
    parts = np.split(rows, ends[:-1], axis=1)
    return {
        name: part.reshape(len(rows), *shape)
        for name, part, shape in zip(names, parts, shapes, strict=True)
    }


def _less(
    known: Known, own: Gained | None, pool: Callable[[Floats, int], Sums], n_classes: int
) -> Known:
    """What the others counted."""
    if own is None:
        return known
    rows = np.maximum(known.rows - own.rows, 0)
    # P is a sum over workers, and those of this shard stand in it with all they said.
    with_own, without = pool(known.rows, n_classes), pool(rows, n_classes)
    return Known(
        rows,
        {name: total - own.sums[name] for name, total in known.sums.items()},
        {name: total - with_own[name] + without[name] for name, total in known.pooled.items()},
    )


# ── expectation maximisation: Dawid–Skene ────────────────────────────────────────────────


def _dawid_skene(seed: int, smoothing: float, tolerance: float, iterations: int) -> Sharding:
    """The first round counts the votes; each later one is one iteration, over all shards."""

    def params_of(known: Known) -> Params:
        n_classes = len(known.sums["class_counts"])
        counts = known.rows.reshape(len(known.rows), n_classes, n_classes)
        prior = shares(known.sums["class_counts"] + smoothing)
        return Params(prior, shares(counts + smoothing), counts)

    def fit(chunk: Chunk, known: Known | None, own: Gained | None) -> Gained:
        labels, loss = incidence_of(chunk), 0.0
        if known is None:
            probs = chunk.vote_shares
        else:
            class_prior, confusion, _ = params_of(known)
            probs, log_evidence = log_normalise(log_joint(class_prior, confusion, labels))
            loss = -float(log_evidence.sum())
        rows = soft_counts(probs, labels).reshape(len(chunk.workers), -1)
        return Gained(rows, {"class_counts": probs.sum(axis=0), "loss": np.array([loss])})

    def answer(chunk: Chunk, known: Known) -> Aggregation:
        params, labels = params_of(known), incidence_of(chunk)
        scores = log_joint(params.class_prior, params.confusion, labels)
        log_confusion = np.log(params.confusion)
        return consensus(scores, log_confusion[chunk.local_worker, :, chunk.label], chunk, seed)

    def settled(past: Sequence[Sums]) -> bool:
        return has_settled([float(sums["loss"][0]) for sums in past[1:]], tolerance)

    return Sharding(
        rounds=1 + iterations,
        settled=settled,
        fit=fit,
        pool=lambda rows, n_classes: {},
        answer=answer,
        confusion=lambda known: params_of(known).confusion,
        class_prior=lambda known: params_of(known).class_prior,
    )
