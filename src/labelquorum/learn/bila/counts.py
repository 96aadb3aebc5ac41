"""Counting: learning from a stream whose whole past is counts, chunk by chunk.

BiLA's loss over everything seen so far, with the q of the past as it was when it was counted,
depends on the past only through the counts N, the pooled matrix P, and two sums over items, f
and ν. So a chunk is solved together with all that came before it, and then its labels can go.
One worker model is kept, or two (`worker_models.py`), each with its own counts; one of them is
selected. `docs/hierarchical.md` has the derivation, `docs/worker-models.md` how one is
selected.

Counts are kept and added in float64: at 2²⁴ a float32 ignores +0.4.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.errors import StateError
from labelquorum.ingest.chunks import Chunk
from labelquorum.ingest.labels import MISSING
from labelquorum.learn.aggregator import (
    Aggregation,
    Aggregator,
    Counts,
    Part,
    break_ties,
    softmax,
)
from labelquorum.learn.analysis import posterior  # which imports from this package: no names yet
from labelquorum.learn.bila import sparse, stacking
from labelquorum.learn.bila.dependence import N_SUMS, class_shift_factor, exponent, temperature
from labelquorum.learn.bila.engines import THREADED, matrix_engine
from labelquorum.learn.bila.gold import GoldTasks, gold_items, join, remember
from labelquorum.learn.bila.hierarchical import HIERARCHICAL, ONE_COIN, Recipe, class_prior
from labelquorum.learn.bila.identification import (
    MIN_WORKERS,
    NO_ANSWERS,
    answer_sums,
    doubt_of,
    merged_answers,
    vote_log_odds,
    with_answers,
)
from labelquorum.learn.bila.minibatch import CountedBatch, pack_counted
from labelquorum.learn.bila.sparse_counts import (
    SparseCounts,
    added,
    blank_leaves,
    check_matrices_fit,
    converted,
    counts_of,
    dense_counts,
    is_sparse,
    leaves_of,
    padded,
    rows_with_classes,
    total,
)
from labelquorum.learn.bila.worker_models import (
    WORKER_MODELS,
    Fitted,
    Known,
    Settled,
    crowd_odds,
    select_worker_model,
)
from labelquorum.learn.reports import NO_DOUBT, Doubt
from labelquorum.learn.worker_table import WorkerRows, forget_row

MAX_HELD_OUT_CELLS = 4_000_000
"""Labels of a chunk's gold × classes² up to which each is scored by counts that lack it: 32 MB."""

MIN_THREADED_LABELS = 50_000
"""Labels from which the worker models are fitted in threads: to start one costs about 50 µs."""


class State(NamedTuple):
    """All that is kept: zeros at the start, and a new worker or class is a row of zeros.

    Of the hierarchical model the counts are N (K, C, C) and θ is (K, C + 1), the tilt a and then
    the biases b; of the one-coin model they are (K, 2, C) and (K, 1). With many classes N is kept
    in cells and margins: `sparse_counts`.
    """

    rows: WorkerRows  # "<worker model>_counts" or "_cells" and "_margins", "<worker model>_theta"
    pooled: dict[str, Floats]  # P, the counts with each worker's weight, by worker model
    class_counts: dict[str, Floats]  # ν (C,), the sum of q over items, by worker model
    unexplained: dict[str, Floats]  # (7, C), the sums of `dependence`, by worker model; with votes
    # of which workers have several on an item, (10, C)
    label_shares: Floats  # f (C,), the sum over items of the share of labels that named a class
    speaks: int  # the selected worker model, by its place among the recipe's; a name in files
    seed: int
    gold: dict[str, NDArray[Any]]  # `GoldTasks`; empty until there is a true label
    stack: dict[str, NDArray[Any]]  # `Stack`, what gold says of workers beyond all this
    expected_errors: dict[str, Floats]  # (10,), the sums of `identification`, by worker model;
    # empty until a task has ten workers

    @property
    def n_classes(self) -> int:
        """C, the classes known so far."""
        return len(self.label_shares)

    def checked(self) -> "State":
        """Return this state, which a file had; raise an error for cells of classes it lacks."""
        if any(is_sparse(name, self.n_classes) for name in self.pooled):
            rows_with_classes(self.rows.to_arrays(), self.n_classes)
        return self


class Info(NamedTuple):
    """What an update did."""

    n_labels: int
    steps: int  # rounds, the first before anything is said of the chunk
    losses: NDArray[np.float32]  # (1,) mean of −log p(labels of an item)
    worker_model: str  # the selected one
    counted_probs: NDArray[np.float32]  # (N, A, C) the q by which each model counted an item


def init(chunk: Chunk, seed: int, recipe: Recipe) -> State:
    """Know nobody."""
    n_classes, names = chunk.n_classes, recipe.worker_models
    return State(
        rows=WorkerRows(blank_leaves(names, 0, n_classes)),
        pooled={name: np.zeros(WORKER_MODELS[name].count_shape(n_classes)) for name in names},
        class_counts={name: np.zeros(n_classes) for name in names},
        unexplained={name: np.zeros((N_SUMS, n_classes)) for name in names},
        label_shares=np.zeros(n_classes),
        speaks=0,
        seed=seed,
        gold={},
        stack={},
        expected_errors={},
    )


def update(state: State, chunk: Chunk, recipe: Recipe) -> tuple[State, Info]:
    """Solve the chunk together with the counts of all that came before it, and count it."""
    _check_size(chunk, recipe)
    state = _grow(state, chunk)
    if not chunk.n_labels:
        nothing = np.zeros((chunk.n_items, len(recipe.worker_models), chunk.n_classes), np.float32)
        return state, Info(0, 0, np.zeros(0, np.float32), selected(state, recipe), nothing)
    known, tally = state.rows.gather(chunk.workers), _tally(chunk, len(recipe.worker_models))
    label_shares = state.label_shares
    if tally.past is not None:
        label_shares = np.maximum(label_shares - tally.past.vote_shares.sum(axis=0), 0)
    # (1) f' = f + label shares
    label_shares = label_shares + tally.share_items @ chunk.vote_shares
    before = {
        name: _before(state, known, tally, label_shares, position, recipe)
        for position, name in enumerate(recipe.worker_models)
    }
    packed = pack_counted(chunk, tally.labels.weight, tally.items)
    n_workers = chunk.workers_by_item * (tally.items > 0)
    unknown = (n_workers >= MIN_WORKERS) & (packed.gold == MISSING)
    asked = recipe.dependence == "learned" and bool(unknown.any())
    # (2), (3) θ and q in turn
    fitted = _fit_each(packed, before, recipe, n_workers * unknown if asked else None)
    # (4) commit, and drop the labels
    following, counted = _commit(state, tally, before, fitted)
    following = following._replace(label_shares=label_shares)
    if recipe.dependence == "learned":
        following = _with_answers(following, tally, fitted, n_workers)
    following = _reselected(following, recipe)
    following = with_gold(following, chunk, recipe)
    model = selected(following, recipe)
    loss, rounds = fitted[model].numbers
    losses = np.array([loss], np.float32)
    return following, Info(chunk.n_labels, int(rounds), losses, model, counted)


def _fit_each(
    batch: CountedBatch, before: Mapping[str, "_Before"], recipe: Recipe, n_workers: Floats | None
) -> dict[str, Fitted]:
    """Fit each worker model to a chunk; `n_workers` is that of an engine's `fit`."""
    engines = {name: engine_of(past.known.counts) for name, past in before.items()}

    def fit(name: str) -> Any:
        return engines[name].fit(name, batch, before[name].known, recipe, n_workers)

    if len(batch.item) < MIN_THREADED_LABELS or not {*engines.values()} <= THREADED:
        return {name: fit(name) for name in before}
    with ThreadPoolExecutor(len(before)) as threads:
        return dict(zip(before, threads.map(fit, before), strict=True))


def engine_of(counts: Any) -> ModuleType:
    """Return the engine of these counts: `engines` says what it does."""
    return sparse if isinstance(counts, SparseCounts) else matrix_engine()


def _check_size(chunk: Chunk, recipe: Recipe) -> None:
    """Refuse a chunk whose matrices would not fit into memory."""
    n_classes = chunk.n_classes
    if HIERARCHICAL in recipe.worker_models and not is_sparse(HIERARCHICAL, n_classes):
        check_matrices_fit(
            len(chunk.workers),
            n_classes,
            "Use BiLA(generative='one_coin') or DawidSkene(), or learn in smaller chunks with "
            "partial_fit.",
        )


def aggregate(state: State, chunk: Chunk, recipe: Recipe) -> Aggregation:
    """Give each item its most probable class; an item whose truth was given gets that."""
    state = _grow(state, chunk)
    in_doubt = doubt(state, recipe).in_doubt
    if in_doubt:
        log_scores, evidence = _votes(state, chunk, recipe)
    else:
        # q(y = c | l_i) ∝ π_c Π_k m_k[c, l_ik]
        log_scores, evidence = _scored(state, chunk, selected(state, recipe), recipe)
    # (5) labels of one item lean on each other: q^(1 / temperature), normalised
    n_workers, n_labels = chunk.workers_by_item, chunk.weight_by_item
    divisor = _temperature(state, n_workers, n_labels, recipe, in_doubt)
    stack = stacking.Stack.read(state.stack)
    if stack is not None and not in_doubt:
        log_prior = np.log(np.maximum(_class_prior(state, recipe), 1e-30))
        log_scores, evidence = stacking.apply(
            stack, chunk, log_scores, evidence, log_prior, divisor
        )
    if chunk.gold is not None:
        given = (chunk.gold != MISSING)[:, None]
        is_true = np.arange(chunk.n_classes) == chunk.gold[:, None]
        log_scores = np.where(given & ~is_true, -np.inf, log_scores)
    return Aggregation(
        aggregated=break_ties(log_scores, chunk.item_keys, state.seed),
        probs=softmax(log_scores / divisor[:, None]),
        log_evidence=evidence,
        temperature=divisor,
        in_doubt=in_doubt,
    )


def doubt(state: State, recipe: Recipe) -> Doubt:
    """Whether identification is in doubt, so that answers fall back to the vote."""
    if recipe.dependence != "learned":
        return NO_DOUBT
    name = selected(state, recipe)
    if (sums := state.expected_errors.get(name)) is None:
        return NO_DOUBT
    return doubt_of(sums, exponent(state.unexplained[name]), float(state.label_shares.sum()))


def readings(state: State, chunk: Chunk, recipe: Recipe) -> tuple[Floats, Floats]:
    """What the vote and the selected worker model make of items, (N, C) probabilities each."""
    state = _grow(state, chunk)
    log_scores, _ = _scored(state, chunk, selected(state, recipe), recipe)
    divisor = _of_dependence(state, chunk.workers_by_item, chunk.weight_by_item, recipe)
    return chunk.vote_shares, softmax(log_scores / divisor[:, None]).astype(np.float64)


def with_gold(state: State, chunk: Chunk, recipe: Recipe) -> State:
    """Remember the gold of a chunk, and learn from it whom to trust beyond the counts."""
    items, withdrawn = gold_items(chunk)
    gold = GoldTasks.read(state.gold)
    if len(withdrawn) and np.isin(withdrawn, gold.key).any():
        gold = gold.without_tasks(withdrawn)
        state = _stacked(state, gold, recipe)
    if items is None:
        return state
    gold = remember(gold, items, stacking.log_odds(_without_own_truth(state, items, recipe)))
    state = state._replace(gold=gold._asdict())
    if not stacking.is_due(gold, stacking.Stack.read(state.stack)):
        return state
    return _stacked(state, gold, recipe)


def _without_own_truth(state: State, items: Chunk, recipe: Recipe) -> Floats:
    """What the worker models make of gold items, each without what its own truth taught, (N, C).

    With it, the answer to a gold item would seem surer than it is to others like it.
    """
    name, n_classes, rows = selected(state, recipe), items.n_classes, np.arange(items.n_labels)
    _, counts = _rows_of(state, items.workers, name)
    if isinstance(counts, SparseCounts) or len(rows) * n_classes**2 > MAX_HELD_OUT_CELLS:
        return readings(state, items, recipe)[1]
    assert items.gold is not None
    own = np.zeros((len(rows), n_classes, n_classes))
    own[rows, items.gold[items.item], items.label] = items.weight
    left = np.maximum(counts[items.local_worker] - WORKER_MODELS[name].from_matrix(own), 0)
    engine = engine_of(left)
    theta = engine.solve_workers(name, left, state.pooled[name], recipe)
    # Each label by a worker of its own, whose counts lack it.
    alone = items._replace(worker=rows.astype(np.int32), workers=rows.astype(np.int32))
    packed = pack_counted(alone, items.weight, np.zeros(items.n_items))
    log_scores, _ = engine.score(name, packed, _settled(state, left, theta, name), recipe)
    divisor = _of_dependence(state, items.workers_by_item, items.weight_by_item, recipe)
    return softmax(log_scores / divisor[:, None]).astype(np.float64)


def _stacked(state: State, gold: GoldTasks, recipe: Recipe) -> State:
    """The state with a stack fitted to this gold, or with none."""
    if len(gold.key) < stacking.MIN_TASKS:
        return state._replace(gold=gold._asdict() if len(gold.key) else {}, stack={})
    stack = stacking.fit(gold, state.label_shares, recipe.gold_sampling)
    return state._replace(gold=gold._asdict(), stack=stack._asdict())


def forget_gold(state: State, worker_key: int) -> State:
    """Remove what a worker said of gold tasks, and their weights; those of others stay."""
    if not state.gold:
        return state
    gold, stack = GoldTasks.read(state.gold), stacking.Stack.read(state.stack)
    return state._replace(
        gold=gold.without_worker(worker_key)._asdict(),
        stack={} if stack is None else stack.without_worker(worker_key)._asdict(),
    )


def selected(state: State, recipe: Recipe) -> str:
    """The worker model whose answers are given."""
    return recipe.worker_models[state.speaks]


def _reselected(state: State, recipe: Recipe) -> State:
    """Select the worker model again."""
    n_items = float(state.label_shares.sum())
    name = select_worker_model(state.pooled, state.unexplained, n_items, recipe)
    return state._replace(speaks=recipe.worker_models.index(name))


def add(state: State, workers: NDArray[np.intp], counts: Floats, recipe: Recipe) -> State:
    """Count labels whose truth is known, (P, C, C), of workers who may be new."""
    state = _with_workers(state, int(workers.max(initial=-1)) + 1)
    rows, pooled = state.rows.gather(workers), dict(state.pooled)
    for name in recipe.worker_models:
        known = converted(WORKER_MODELS[name].from_matrix(counts), name, state.n_classes)
        before = counts_of(rows, name)
        after = added(before, known)
        pool = partial(engine_of(after).pool, name, recipe=recipe)
        pooled[name] = pooled[name] + pool(after) - pool(before)
        rows |= _solved(name, after, pooled[name], recipe)
    following = state._replace(rows=state.rows.scatter(workers, rows), pooled=pooled)
    return _reselected(following, recipe)


def merge(
    parts: Sequence[Part], base: Part | None, n_workers: int, n_classes: int, recipe: Recipe
) -> State:
    """Add up what each part counted beyond the base; P is built and θ solved again."""
    # base + Σ_i (part_i − base)
    terms = [(part, 1) for part in parts] + ([(base, 1 - len(parts))] if base else [])
    label_shares = np.zeros(n_classes)
    class_counts = {name: np.zeros(n_classes) for name in recipe.worker_models}
    unexplained = {name: np.zeros((N_SUMS, n_classes)) for name in recipe.worker_models}
    expected = {
        name: merged_answers(
            [part.state.expected_errors.get(name, NO_ANSWERS) for part in parts],
            base.state.expected_errors.get(name, NO_ANSWERS) if base else NO_ANSWERS,
        )
        for name in recipe.worker_models
        if any(name in part.state.expected_errors for part in parts)
    }
    pooled: dict[str, Floats] = {}
    rows: dict[str, NDArray[Any]] = {}
    for (state, _, classes), times in terms:
        label_shares[classes] += times * state.label_shares
    for name in recipe.worker_models:
        counts = total(
            name,
            [(counts_of(part.state.rows.to_arrays(), name), part, times) for part, times in terms],
            n_workers,
            n_classes,
        )
        for (state, _, classes), times in terms:
            class_counts[name][classes] += times * state.class_counts[name]
            sums = np.zeros((len(state.unexplained[name]), n_classes))
            sums[:, classes] = times * state.unexplained[name]
            unexplained[name] = with_more(unexplained[name], sums)
        pooled[name] = engine_of(counts).pool(name, counts, recipe)
        rows |= _solved(name, counts, pooled[name], recipe)
    merged = State(
        rows=WorkerRows(rows),
        pooled=pooled,
        class_counts={name: np.maximum(nu, 0) for name, nu in class_counts.items()},
        unexplained=unexplained,
        label_shares=np.maximum(label_shares, 0),
        speaks=0,
        seed=(parts[0] if base is None else base).state.seed,
        gold={},
        stack={},
        expected_errors=expected,
    )
    merged = _reselected(merged, recipe)
    gold: list[GoldTasks] = []
    for part in [*([base] if base else []), *parts]:
        own = GoldTasks.read(part.state.gold).with_classes(part.classes, n_classes)
        if gold and base:  # what only the base has known does not replace what a part knows since
            own = own.without_tasks(own.unchanged_since(gold[0]))
        gold.append(own)
    gold = [own for own in gold if len(own.key)]
    if not gold:
        return merged
    joined = join(gold, n_classes)
    seen = sum(times * int(GoldTasks.read(part.state.gold).seen) for part, times in terms)
    return _stacked(merged, joined._replace(seen=np.array(seen)), recipe)


def counting(recipe: Recipe) -> Aggregator:
    """Bind the constants; `bila` calls it."""
    return Aggregator(
        name="bila",
        state_type=State,
        init=partial(init, recipe=recipe),
        update=partial(update, recipe=recipe),
        aggregate=partial(aggregate, recipe=recipe),
        confusion=partial(_confusion, recipe=recipe),
        class_prior=partial(_class_prior, recipe=recipe),
        # What a worker gave to P stays, so that nobody else's matrix moves.
        forget=forget_row,
        exceptions=_ONE_COIN_ALONE if recipe.worker_models == (ONE_COIN,) else {},
        counts=Counts(
            partial(add, recipe=recipe),
            partial(merge, recipe=recipe),
            forget_gold,
            recipe,
        ),
        draws=partial(posterior.draws, recipe=recipe),
        temperature=partial(_temperature, recipe=recipe),
        doubt=partial(doubt, recipe=recipe),
        readings=partial(readings, recipe=recipe),
    )


_ONE_COIN_ALONE = {
    "no_worse_than_majority": "one accuracy per worker says nothing of classes that are taken for "
    "one another; on ten such classes the votes say more",
    "shared_errors": "one accuracy per worker cannot tell to which labels errors go",
}


# ── from a chunk to what is counted ──────────────────────────────────────────────────────


class _Tally(NamedTuple):
    """What of a chunk is counted now, and what of it was counted before."""

    labels: Chunk  # with the weight by which each label is counted
    items: Floats  # (N,) 1 where the item counts in ν
    share_items: Floats  # (N,) 1 where it counts in f
    past: Chunk | None  # labels as they were counted before
    past_probs: Floats  # (N, A, C) by which each model counted them; N is 0 without a past


def _tally(chunk: Chunk, n_models: int) -> _Tally:
    """Sort out the labels of open items.

    An item that was counted before is counted again with all its labels, and the past is taken
    back. Where the q of then is not known, only labels of workers new to the item are counted.
    """
    items = (chunk.weight_by_item > 0).astype(np.float64)
    counted_before = chunk.counted_probs is not None and chunk.counted_probs.any()
    if chunk.is_all_new and not counted_before:
        return _Tally(chunk, items, items, None, np.zeros((0, n_models, chunk.n_classes)))
    probs = np.zeros((chunk.n_items, n_models, chunk.n_classes))
    corrects = chunk.replaced != MISSING
    seen = chunk.known | corrects
    label = np.where(corrects, chunk.replaced, chunk.label)
    weight = np.where(seen, np.where(corrects, chunk.replaced_weight, chunk.weight), 0)
    past = chunk._replace(label=label, weight=weight.astype(np.float32))
    if chunk.counted_probs is not None:
        probs += chunk.counted_probs
    was_counted = np.bincount(chunk.item, past.weight, chunk.n_items) > 0
    lost = was_counted & (probs.sum(axis=(1, 2)) == 0)
    past = past._replace(weight=np.where(lost[chunk.item], np.float32(0), past.weight))
    counted = np.where(lost[chunk.item], chunk.counted_weight, chunk.weight)
    items = np.where(lost, 0.0, items)
    # Whose labels went with a forgotten worker counts in f already, by shares nobody knows.
    orphaned = ~was_counted & (probs.sum(axis=(1, 2)) > 0)
    shares = np.where(orphaned, 0.0, items)
    return _Tally(chunk._replace(weight=counted), items, shares, past, probs)


class _Before(NamedTuple):
    """What a worker model knows before a chunk; what open items gave is taken back."""

    known: Known
    unexplained: Floats  # as in `State`


def _before(
    state: State,
    rows: Mapping[str, Floats],
    tally: _Tally,
    label_shares: Floats,
    position: int,
    recipe: Recipe,
) -> _Before:
    name = recipe.worker_models[position]
    counts, theta = counts_of(rows, name), rows[f"{name}_theta"]
    engine = engine_of(counts)
    others = state.pooled[name] - engine.pool(name, counts, recipe)
    known = Known(counts, theta, others, state.class_counts[name], label_shares)
    if tally.past is None:
        return _Before(known, state.unexplained[name])
    past, probs = tally.past, tally.past_probs[:, position]
    # The truth as it was known then: a q of exactly 1 costs log q = 0, given or not.
    known_then = np.where(probs.max(axis=1) == 1, probs.argmax(axis=1), MISSING)
    past = past._replace(gold=known_then.astype(np.int32))
    packed = pack_counted(past, past.weight, (probs.sum(axis=1) > 0).astype(np.float64))
    settled = _settled(state, counts, theta, name)
    seen = engine.past_unexplained(name, packed, probs, settled, recipe)
    less = added(counts, engine.count(name, packed, probs, len(theta)), -1)
    if isinstance(less, SparseCounts):
        others = state.pooled[name] - sparse.pool_labels(less, counts, packed, probs, recipe)
    known = known._replace(
        counts=less,
        others=others,
        class_counts=np.maximum(known.class_counts - probs.sum(axis=0), 0),
    )
    return _Before(known, with_more(state.unexplained[name], -seen))


def _commit(
    state: State,
    tally: _Tally,
    before: Mapping[str, _Before],
    fitted: Mapping[str, Fitted],
) -> tuple[State, NDArray[np.float32]]:
    """The state once a chunk is counted, and by what each item was, (N, A, C)."""
    chunk, counted, all_count = tally.labels, [], bool(tally.items.all())
    rows: dict[str, NDArray[Any]] = {}
    pooled, class_counts, unexplained = {}, {}, {}
    for name, past in before.items():
        fit = fitted[name]
        if not np.isfinite(fit.theta.sum() + fit.class_sums.sum()):
            raise StateError(
                "Learning from this chunk gave no finite numbers, so it was not learned from. "
                "Look for extreme weights, or for settings far from their defaults."
            )
        rows |= leaves_of(name, fit.counts) | {f"{name}_theta": fit.theta}
        probs = fit.class_probs if all_count else fit.class_probs * tally.items[:, None]
        pooled[name] = fit.pooled
        class_counts[name] = past.known.class_counts + fit.class_sums
        unexplained[name] = with_more(past.unexplained, fit.unexplained)
        counted.append(probs.astype(np.float32, copy=False))
    following = state._replace(
        rows=state.rows.scatter(chunk.workers, rows),
        pooled=pooled,
        class_counts=class_counts,
        unexplained=unexplained,
    )
    return following, np.stack(counted, axis=1)


def _with_answers(
    following: State, tally: _Tally, fitted: Mapping[str, Fitted], n_workers: Floats
) -> State:
    """Count how sure answers are, and tasks once, also those whose labels come one by one."""
    chunk, past, sums = tally.labels, tally.past, dict(following.expected_errors)
    before = (0, 0)
    if past is not None:
        counted = tally.past_probs > 0
        # A truth that was given leaves no other class any probability; nor do many labels, rounded.
        known_then = (counted.sum(axis=2) == 1).all(axis=1) & _has_truth(past)
        many_then = counted.any(axis=(1, 2)) & (past.workers_by_item >= MIN_WORKERS)
        before = int((many_then & known_then).sum()), int((many_then & ~known_then).sum())
    if n_workers.max(initial=0) < MIN_WORKERS and not any(before):
        return following
    given = np.zeros(chunk.n_items, bool) if chunk.gold is None else chunk.gold != MISSING
    errors = np.array([fit.expected_errors for fit in fitted.values()])
    all_sums = answer_sums(errors, chunk.vote_shares, n_workers, given)
    for name, more in zip(fitted, all_sums, strict=True):
        sums[name] = with_answers(sums.get(name, NO_ANSWERS), more, before)
    return following._replace(expected_errors=sums)


def _has_truth(chunk: Chunk) -> NDArray[np.bool_]:
    """Which items have a truth, or had one that was withdrawn, (N,)."""
    if chunk.gold is None:
        return np.zeros(chunk.n_items, bool)
    given = np.asarray(chunk.gold != MISSING)
    return given if chunk.new_gold is None else given | chunk.new_gold


# ── looking at the state ─────────────────────────────────────────────────────────────────


def _settled(state: State, counts: Floats, theta: Floats, name: str) -> Settled:
    """A worker model as it is, of workers with these rows."""
    return Settled(counts, theta, state.pooled[name], state.label_shares, state.class_counts[name])


def _scored(
    state: State, chunk: Chunk, name: str, recipe: Recipe
) -> tuple[Floats, NDArray[np.float32]]:
    """Log scores of items by a worker model, (N, C), and what each label says, (B, C)."""
    theta, counts = _rows_of(state, chunk.workers, name)
    packed = pack_counted(chunk, chunk.weight, np.zeros(chunk.n_items))
    settled = _settled(state, counts, theta, name)
    log_scores, evidence = engine_of(counts).score(name, packed, settled, recipe)
    return log_scores, evidence


def _votes(state: State, chunk: Chunk, recipe: Recipe) -> tuple[Floats, NDArray[np.float32]]:
    """The same if all workers are alike, and so are all classes: the vote."""
    name = selected(state, recipe)
    odds = crowd_odds(WORKER_MODELS[name].hits(state.pooled[name]), recipe)
    log_odds = vote_log_odds(float(odds), chunk.n_classes)
    said = chunk.label[:, None] == np.arange(chunk.n_classes)
    evidence = np.where(said, log_odds * chunk.weight[:, None], 0).astype(np.float32)
    return log_odds * chunk.weight_by_item[:, None] * chunk.vote_shares, evidence


def _temperature(
    state: State,
    n_workers: Floats,
    n_labels: Floats,
    recipe: Recipe,
    in_doubt: bool | None = None,
) -> Floats:
    """What log scores are divided by, by the items' numbers of workers and of labels, (N,)."""
    if doubt(state, recipe).in_doubt if in_doubt is None else in_doubt:
        # all labels of an item count as one
        return np.maximum(np.asarray(n_labels, np.float64), 1.0)
    divisor = _of_dependence(state, n_workers, n_labels, recipe)
    if recipe.dependence != "learned" or state.stack:  # gold tells τ: `stacking`
        return divisor
    inferred = state.class_counts[selected(state, recipe)]
    return divisor * class_shift_factor(state.label_shares, inferred)


def _of_dependence(state: State, n_workers: Floats, n_labels: Floats, recipe: Recipe) -> Floats:
    """The temperature of the selected worker model by dependence alone, doubted or not."""
    sums = state.unexplained[selected(state, recipe)]
    return temperature(n_workers, n_labels, recipe.dependence, sums)


def _class_prior(state: State, recipe: Recipe) -> Floats:
    if doubt(state, recipe).in_doubt:  # a vote has none
        return np.full(state.n_classes, 1 / max(state.n_classes, 1))
    inferred = state.class_counts[selected(state, recipe)]
    return np.asarray(class_prior(state.label_shares, inferred, recipe))


def _confusion(
    state: State, workers: NDArray[np.integer[Any]], recipe: Recipe
) -> NDArray[np.float32]:
    """The matrices m of these workers, (P, C, C), as the selected model sees them."""
    name = selected(state, recipe)
    theta, counts = _rows_of(state, workers, name)
    crowd, model = WORKER_MODELS[name].crowd(state.pooled[name], recipe), WORKER_MODELS[name]
    matrices = model.confusion(theta, dense_counts(counts), crowd, recipe)
    return np.asarray(matrices, np.float32)


def _rows_of(state: State, workers: NDArray[np.integer[Any]], name: str) -> tuple[Floats, Any]:
    """θ (P, D) and counts of workers, by a worker model."""
    wanted = [leaf for leaf in state.rows.names if leaf.startswith(f"{name}_")]
    rows = state.rows.gather(workers, wanted)
    return rows[f"{name}_theta"], counts_of(rows, name)


# ── room for more ────────────────────────────────────────────────────────────────────────


def _solved(name: str, counts: Any, pooled: Floats, recipe: Recipe) -> dict[str, NDArray[Any]]:
    theta = engine_of(counts).solve_workers(name, counts, pooled, recipe)
    return leaves_of(name, counts) | {f"{name}_theta": theta}


def _grow(state: State, chunk: Chunk) -> State:
    """Make room for classes and workers the state has not met; nobody's numbers change."""
    n_classes = chunk.n_classes
    if n_classes < state.n_classes:
        raise StateError(
            f"`n_classes` of a chunk must count all classes known, {state.n_classes} by now. "
            f"Got {n_classes}."
        )
    if n_classes > state.n_classes:
        names = list(state.pooled)
        state = state._replace(
            rows=WorkerRows(rows_with_classes(state.rows.to_arrays(), n_classes)),
            pooled={
                name: padded(state.pooled[name], WORKER_MODELS[name].count_shape(n_classes))
                for name in names
            },
            class_counts={name: padded(state.class_counts[name], (n_classes,)) for name in names},
            unexplained={
                n: padded(sums, (len(sums), n_classes)) for n, sums in state.unexplained.items()
            },
            label_shares=padded(state.label_shares, (n_classes,)),
        )
    return _with_workers(state, chunk.n_workers)


def with_more(sums: Floats, other: Floats) -> Floats:
    """The sum of two `unexplained`, of which one may lack the rows of several votes."""
    if len(sums) != len(other):
        rows = max(len(sums), len(other))
        sums, other = (padded(each, (rows, each.shape[1])) for each in (sums, other))
    return sums + other


def _with_workers(state: State, n_workers: int) -> State:
    rows = state.rows.with_room(n_workers)
    return state if rows is state.rows else state._replace(rows=rows)
