"""The laws every aggregator obeys, as functions anyone can run on an aggregator of their own.

Each law is a function `check_…(aggregator)` whose docstring is the law; `CHECKS` has them by name
and `check_aggregator` runs them all. An aggregator that cannot obey one says so in its
`exceptions`, with the reason. One that excuses itself from `new_class` is tried on two classes.
"""

from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import StateError
from labelquorum.ingest.chunks import Chunk, cut_chunks, make_chunk
from labelquorum.ingest.events import LabelSpace, LabelTable
from labelquorum.ingest.roster import Roster
from labelquorum.learn.aggregator import Aggregation, Aggregator, vote_shares
from labelquorum.learn.snapshot import state_arrays, state_from_arrays
from labelquorum.trial.crowds import (
    Crowd,
    balanced_truth,
    bimodal_crowd,
    class_conditional_crowd,
    label_table,
)
from labelquorum.trial.metrics import error_rate

__all__ = ["CHECKS", "SLACK", "Check", "check_aggregator"]

Check = Callable[[Aggregator], None]

CHECKS: dict[str, Check] = {}
"""Every law by name, in the order they are run."""

SLACK = 0.02
"""By how much the error of an aggregator may exceed that of majority vote on a seeded crowd."""

_CHUNK_ITEMS = 16
_ROUNDING = 1e-4  # float32 sums in another order, after some training
_SEED = 7


class _BrokenError(Exception):
    """What was seen where a law does not hold."""


def check_aggregator(
    aggregator: Aggregator, only: str | Collection[str] | None = None
) -> list[tuple[str, str]]:
    """Hold an aggregator to every law, or to those named.

    Parameters
    ----------
    only
        The name of a law in `CHECKS`, or several; None is all of them.

    Returns
    -------
    outcomes : a pair for each law, its name and "held" or "excused: " with the reason

    Raises
    ------
    AssertionError
        At the first law that does not hold, with the law and what was seen.

    Examples
    --------
    >>> from labelquorum.learn.baselines.majority_vote import majority_vote
    >>> check_aggregator(majority_vote(), only="rows_sum_to_one")
    [('rows_sum_to_one', 'held')]
    """
    names = list(CHECKS) if only is None else [only] if isinstance(only, str) else list(only)
    for name in (*names, *aggregator.exceptions):
        if name not in CHECKS:
            raise StateError(f"There is no law {name!r}. The laws are {list(CHECKS)}.")
    outcomes = []
    for name in names:
        if name in aggregator.exceptions:
            outcomes.append((name, f"excused: {aggregator.exceptions[name]}"))
        else:
            CHECKS[name](aggregator)
            outcomes.append((name, "held"))
    return outcomes


def _law(check: Check) -> Check:
    """Enter a law in `CHECKS`, and let its failure say which law, of whom, and what was seen."""
    name = check.__name__.removeprefix("check_")

    @wraps(check)
    def checked(aggregator: Aggregator) -> None:
        try:
            check(aggregator)
        except Exception as error:
            seen = str(error) if isinstance(error, _BrokenError) else repr(error)
            raise AssertionError(
                f"The aggregator {aggregator.name!r} breaks the law {name!r}. {check.__doc__} "
                f"What was seen: {seen}."
            ) from error

    CHECKS[name] = checked
    return checked


def _require(held: object, seen: str) -> None:
    if not held:
        raise _BrokenError(seen)


# ── what an answer is ────────────────────────────────────────────────────────────────────


@_law
def check_rows_sum_to_one(aggregator: Aggregator) -> None:
    """Class probabilities, confusion matrices and the class prior are finite and sum to one."""
    chunks = _stream(aggregator)
    state = _learn(aggregator, chunks)
    _check_laws_of_chance("probs", aggregator.aggregate(state, chunks[-1]).probs)
    workers = np.arange(chunks[-1].n_workers)
    _check_laws_of_chance("confusion", aggregator.confusion(state, workers))
    _check_laws_of_chance("class_prior", aggregator.class_prior(state))


@_law
def check_answer_is_most_probable(aggregator: Aggregator) -> None:
    """The aggregated label of an item is a class that no other is more probable than."""
    chunks = _stream(aggregator)
    answer = aggregator.aggregate(_learn(aggregator, chunks), chunks[-1])
    chosen = answer.probs[np.arange(chunks[-1].n_items), answer.aggregated]
    short = answer.probs.max(axis=1) - chosen
    _require((short <= _ROUNDING).all(), f"a class {short.max():.2g} below the most probable")


@_law
def check_no_worse_than_majority(aggregator: Aggregator) -> None:
    """Labels emitted along seeded crowds err at most `SLACK` more than majority vote."""
    for name, crowd in _seeded_crowds(_n_classes(aggregator)):
        chunks = _read(crowd)
        state, aggregated, votes = aggregator.init(chunks[0], _SEED), [], []
        for chunk in chunks:
            state, _ = aggregator.update(state, chunk)
            aggregated.append(aggregator.aggregate(state, chunk).aggregated)
            votes.append(vote_shares(chunk).argmax(axis=1))
        error = error_rate(np.concatenate(aggregated), crowd.truth)
        majority = error_rate(np.concatenate(votes), crowd.truth)
        _require(
            error <= majority + SLACK,
            f"error {error:.3f} on the {name} crowd, where majority vote has {majority:.3f}",
        )


@_law
def check_many_labels(aggregator: Aggregator) -> None:
    """2,000 labels on one item do not underflow: the class that nearly all name wins, finitely."""
    n_classes, n_workers = _n_classes(aggregator), 20
    row = np.arange(2000)
    label = np.where(row % 10 == 0, 0, 1)
    chunk = make_chunk(np.zeros(2000), row % n_workers, label, n_classes=n_classes)
    answer = aggregator.aggregate(_learn(aggregator, [chunk]), chunk)
    _check_laws_of_chance("probs", answer.probs)
    _require(np.isfinite(answer.log_evidence).all(), "log_evidence that is not finite")
    _require(answer.aggregated[0] == 1, f"class {answer.aggregated[0]}, where 9 in 10 said 1")


# ── states are values ────────────────────────────────────────────────────────────────────


@_law
def check_aggregate_is_pure(aggregator: Aggregator) -> None:
    """`aggregate` changes no bit of the state and gives the same bits when asked again."""
    chunks = _stream(aggregator)
    state = _learn(aggregator, chunks[:2])
    before = state_arrays(state)
    # The last chunk has workers the state has not met: room for them is nobody's business.
    first = aggregator.aggregate(state, _with_newcomer(chunks[2]))
    _check_same_state("after aggregate", before, state_arrays(state))
    _check_same_answer("asked again", first, aggregator.aggregate(state, _with_newcomer(chunks[2])))


@_law
def check_update_is_pure(aggregator: Aggregator) -> None:
    """`update` leaves the old state as it was, and gives the same bits from it again."""
    chunks = _stream(aggregator)
    old = _learn(aggregator, chunks[:2])
    before = state_arrays(old)
    new, _ = aggregator.update(old, chunks[2])
    once = state_arrays(new)
    _check_same_state("the old state", before, state_arrays(old))
    aggregator.update(old, chunks[3])  # another future of the same past
    again, _ = aggregator.update(old, chunks[2])
    _check_same_state("the new state, made again", once, state_arrays(again))
    _check_same_state("the new state, later", once, state_arrays(new))


@_law
def check_stop_and_resume(aggregator: Aggregator) -> None:
    """Stopping, writing the state out as arrays and resuming from them gives the same bits."""
    chunks = _stream(aggregator)
    state = _learn(aggregator, chunks[:2])
    resumed = state_from_arrays(aggregator.state_type, state_arrays(state))
    for chunk in chunks[2:]:
        state, _ = aggregator.update(state, chunk)
        resumed, _ = aggregator.update(resumed, chunk)
        answers = (aggregator.aggregate(each, chunk) for each in (state, resumed))
        _check_same_answer("after resuming", *answers)
    _check_same_state("after resuming", state_arrays(state), state_arrays(resumed))


@_law
def check_empty_chunk(aggregator: Aggregator) -> None:
    """An empty chunk changes nothing and is answered with nothing."""
    chunks = _stream(aggregator)
    state = _learn(aggregator, chunks[:2])
    empty = _take_items(chunks[1], np.zeros(0, np.intp))
    after, _ = aggregator.update(state, empty)
    _check_same_state("after an empty chunk", state_arrays(state), state_arrays(after))
    answer = aggregator.aggregate(state, empty)
    shape = answer.aggregated.shape, answer.probs.shape
    _require(shape == ((0,), (0, empty.n_classes)), f"an answer of shapes {shape}")


@_law
def check_memory(aggregator: Aggregator) -> None:
    """The state grows with workers and classes, not with items or labels."""
    chunks = _stream(aggregator, n_chunks=8)
    state = _learn(aggregator, chunks[:4])
    before = _n_bytes(state)
    for chunk in chunks[4:]:
        state, _ = aggregator.update(state, chunk)
    after = _n_bytes(state)
    _require(before == after, f"{before} bytes, then {after} after new items of the same workers")


# ── order and company ────────────────────────────────────────────────────────────────────


@_law
def check_row_order(aggregator: Aggregator) -> None:
    """The order of a table's rows changes no bit of the state or of any item's answer."""
    tables = list(cut_chunks([label_table(_crowd(_n_classes(aggregator), 4))], _CHUNK_ITEMS))
    rng = np.random.default_rng(_SEED)
    shuffled = [_shuffle_rows(table, rng) for table in tables]
    seen = []
    for stream in (tables, shuffled):
        chunks = _read_tables(stream, _n_classes(aggregator))
        state = _learn(aggregator, chunks)
        seen.append((state_arrays(state), aggregator.aggregate(state, chunks[-1])))
    (state, answer), (other_state, other_answer) = seen
    _check_same_state("from shuffled rows", state, other_state)
    _check_same_answer("from shuffled rows", answer, other_answer)


@_law
def check_item_order(aggregator: Aggregator) -> None:
    """An item's answer depends neither on its place in a chunk nor on the items beside it."""
    chunks = _stream(aggregator)
    state, chunk = _learn(aggregator, chunks[:3]), chunks[3]
    answer = aggregator.aggregate(state, chunk)
    for items in (np.arange(chunk.n_items)[::-1], np.arange(0, chunk.n_items, 3)):
        other = aggregator.aggregate(state, _take_items(chunk, items))
        _check_close(f"items {items.tolist()}", answer.probs[items], other.probs)
        same = answer.aggregated[items] == other.aggregated
        _require(same.all(), f"{(~same).sum()} other labels for items {items.tolist()}")


@_law
def check_class_names(aggregator: Aggregator) -> None:
    """Renaming the classes renames the answers and changes nothing else."""
    chunks = _stream(aggregator)
    renamed = np.roll(np.arange(chunks[0].n_classes, dtype=np.int32), 1)
    others = [chunk._replace(label=renamed[chunk.label]) for chunk in chunks]
    answer = aggregator.aggregate(_learn(aggregator, chunks), chunks[-1])
    other = aggregator.aggregate(_learn(aggregator, others), others[-1])
    _check_close("with other names", answer.probs, other.probs[:, renamed])


@_law
def check_weight_zero(aggregator: Aggregator) -> None:
    """A label of weight 0 is answered like one that is not there."""
    chunks = _stream(aggregator)
    state, chunk = _learn(aggregator, chunks[:3]), chunks[3]
    silent = np.arange(chunk.n_labels) % 3 == 0
    without = _take_rows(chunk, np.flatnonzero(~silent))
    weighted = chunk._replace(weight=np.where(silent, np.float32(0), chunk.weight))
    answers = (aggregator.aggregate(state, each).probs for each in (without, weighted))
    _check_close("with weight 0", *answers)


@_law
def check_weight_two(aggregator: Aggregator) -> None:
    """A label of weight 2 is answered like one that was said twice."""
    chunks = _stream(aggregator)
    state, chunk = _learn(aggregator, chunks[:3]), chunks[3]
    double = np.arange(chunk.n_labels) % 5 == 0
    rows = np.repeat(np.arange(chunk.n_labels), np.where(double, 2, 1))
    weighted = chunk._replace(weight=np.where(double, 2 * chunk.weight, chunk.weight))
    answers = (aggregator.aggregate(state, each) for each in (_take_rows(chunk, rows), weighted))
    _check_close("with weight 2", *(answer.probs for answer in answers))


# ── newcomers and leavers ────────────────────────────────────────────────────────────────


@_law
def check_new_worker(aggregator: Aggregator) -> None:
    """A new worker is welcome at any time, and being asked about one changes nobody's matrix."""
    chunks = _stream(aggregator)
    state, chunk = _learn(aggregator, chunks[:3]), _with_newcomer(chunks[3])
    known = np.arange(chunk.n_workers - 1)
    before = aggregator.confusion(state, known)
    _check_laws_of_chance("probs", aggregator.aggregate(state, chunk).probs)
    unmoved = np.array_equal(before, aggregator.confusion(state, known))
    _require(unmoved, "matrices of known workers that moved when a newcomer was asked about")
    state, _ = aggregator.update(state, chunk)
    confusion = aggregator.confusion(state, np.arange(chunk.n_workers))
    expected = (chunk.n_workers, chunk.n_classes, chunk.n_classes)
    _require(confusion.shape == expected, f"confusion of shape {confusion.shape}, not {expected}")
    _check_laws_of_chance("confusion", confusion)
    _check_laws_of_chance("probs", aggregator.aggregate(state, chunk).probs)


@_law
def check_unseen_worker(aggregator: Aggregator) -> None:
    """An unseen worker in `aggregate` leaves the answers of items he did not label unchanged."""
    chunks = _stream(aggregator)
    state, chunk = _learn(aggregator, chunks[:3]), chunks[3]
    answer = aggregator.aggregate(state, chunk)
    other = aggregator.aggregate(state, _with_newcomer(chunk))
    _check_close("beside an unseen worker", answer.probs[1:], other.probs[1:])
    same = np.array_equal(answer.aggregated[1:], other.aggregated[1:])
    _require(same, "other labels beside an unseen worker")


@_law
def check_new_class(aggregator: Aggregator) -> None:
    """A new class is welcome at any time, and wins the item that everybody gives to it."""
    chunks = _stream(aggregator)
    new = chunks[3].n_classes
    state = _learn(aggregator, chunks[:3])
    label = np.where(chunks[3].item < 4, new, chunks[3].label).astype(np.int32)
    chunk = chunks[3]._replace(label=label, n_classes=new + 1)
    _check_laws_of_chance("probs", aggregator.aggregate(state, chunk).probs)
    state, _ = aggregator.update(state, chunk)
    answer = aggregator.aggregate(state, chunk)
    _require(answer.probs.shape == (chunk.n_items, new + 1), f"probs {answer.probs.shape}")
    _check_laws_of_chance("probs", answer.probs)
    _check_laws_of_chance("confusion", aggregator.confusion(state, chunk.workers))
    _check_laws_of_chance("class_prior", aggregator.class_prior(state))
    won = answer.aggregated[:4].tolist()
    _require(won == [new] * 4, f"classes {won} for items all of whose labels say {new}")


@_law
def check_forgetting(aggregator: Aggregator) -> None:
    """Forgetting a worker leaves others' matrices unchanged, and his as a newcomer's."""
    chunks = _stream(aggregator)
    state, worker = _learn(aggregator, chunks), int(chunks[0].workers[0])
    others = np.setdiff1d(np.arange(chunks[-1].n_workers), [worker])
    before = aggregator.confusion(state, np.arange(chunks[-1].n_workers))
    after = aggregator.forget(state, worker)
    same = np.array_equal(before[others], aggregator.confusion(after, others))
    _require(same, "other workers' matrices that changed")
    forgotten = aggregator.confusion(after, np.array([worker]))[0]
    _check_laws_of_chance("confusion", forgotten)
    twice = aggregator.forget(aggregator.forget(after, int(others[0])), worker)
    pair = aggregator.confusion(twice, np.array([worker, others[0]]))
    _check_close("two forgotten workers", pair[0], pair[1])
    _require(not np.array_equal(before[worker], forgotten), "the forgotten worker's own matrix")
    kept = np.array_equal(before, aggregator.confusion(state, np.arange(len(before))))
    _require(kept, "that the state before no longer knows him")


# ── what the laws are tried on ───────────────────────────────────────────────────────────


def _n_classes(aggregator: Aggregator) -> int:
    return 2 if "new_class" in aggregator.exceptions else 3


def _crowd(n_classes: int, n_chunks: int) -> Crowd:
    return class_conditional_crowd(_CHUNK_ITEMS * n_chunks, 12, n_classes, 4, seed=_SEED)


def _seeded_crowds(n_classes: int) -> Iterable[tuple[str, Crowd]]:
    yield "class-conditional", class_conditional_crowd(640, 20, n_classes, 4, seed=_SEED)
    if n_classes > 2:  # the two modes of its noise lie at classes 3 and 7
        truth = balanced_truth(480, seed=_SEED)
        yield "bimodal", bimodal_crowd(truth, spread=0.2, seed=_SEED)
    else:
        skewed = class_conditional_crowd(640, 20, 2, 4, class_prior=[0.75, 0.25], seed=_SEED)
        yield "skewed", skewed


def _stream(aggregator: Aggregator, n_chunks: int = 4) -> list[Chunk]:
    return _read(_crowd(_n_classes(aggregator), n_chunks))


def _read(crowd: Crowd) -> list[Chunk]:
    tables = cut_chunks([label_table(crowd)], _CHUNK_ITEMS)
    return _read_tables(tables, len(crowd.class_prior))


def _read_tables(tables: Iterable[LabelTable], n_classes: int) -> list[Chunk]:
    roster, chunks = Roster(LabelSpace(tuple(range(n_classes)))), []
    for table in tables:
        intake = roster.read(table)
        roster.admit(intake)
        chunks.append(intake.chunk)
    return chunks


def _learn(aggregator: Aggregator, chunks: list[Chunk]) -> Any:
    state = aggregator.init(chunks[0], _SEED)
    for chunk in chunks:
        state, _ = aggregator.update(state, chunk)
    return state


def _shuffle_rows(table: LabelTable, rng: np.random.Generator) -> LabelTable:
    rows = rng.permutation(len(table.item_ids))
    columns = (table.item_ids, table.worker_ids, table.labels)
    return LabelTable(*([column[row] for row in rows] for column in columns))


def _with_newcomer(chunk: Chunk) -> Chunk:
    """The chunk with one more label on its first item, of a worker nobody has met."""
    return chunk._replace(
        item=np.insert(chunk.item, 0, 0),
        worker=np.insert(chunk.worker, 0, chunk.n_workers),
        label=np.insert(chunk.label, 0, 0),
        weight=np.insert(chunk.weight, 0, 1),
        known=np.insert(chunk.known, 0, False),
        workers=np.append(chunk.workers, np.int32(chunk.n_workers)),
        worker_keys=np.append(chunk.worker_keys, np.uint64(12345)),
        n_workers=chunk.n_workers + 1,
    )


def _take_items(chunk: Chunk, items: NDArray[np.intp]) -> Chunk:
    """These items of a chunk, in this order."""
    place = np.full(chunk.n_items, -1)
    place[items] = np.arange(len(items))
    rows = np.flatnonzero(place[chunk.item] >= 0)
    moved = chunk._replace(item=place[chunk.item].astype(np.int32))
    return _take_rows(moved._replace(item_keys=chunk.item_keys[items]), rows)


def _take_rows(chunk: Chunk, rows: NDArray[np.intp]) -> Chunk:
    """These rows of a chunk in canonical order, all its items and counts kept."""
    keys = np.zeros(chunk.n_workers, np.uint64)
    keys[chunk.workers] = chunk.worker_keys
    return make_chunk(
        *(column[rows] for column in (chunk.item, chunk.worker, chunk.label)),
        weight=chunk.weight[rows],
        known=chunk.known[rows],
        item_keys=chunk.item_keys,
        worker_keys=keys,
        n_items=chunk.n_items,
        n_workers=chunk.n_workers,
        n_classes=chunk.n_classes,
    )


# ── comparing ────────────────────────────────────────────────────────────────────────────


def _check_laws_of_chance(name: str, probs: NDArray[Any]) -> None:
    _require(np.isfinite(probs).all() and (probs >= 0).all(), f"{name} that are no probabilities")
    total = probs.sum(axis=-1)
    off = np.abs(total - 1).max(initial=0)
    _require(off <= 1e-5, f"{name} with a row whose sum is {off:.2g} away from one")


def _check_same_state(when: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    _require(one.keys() == other.keys(), f"{when}, fields {sorted(one.keys() ^ other.keys())}")
    for name, array in one.items():
        _require(_same_bits(array, other[name]), f"{when}, other bits in {name!r} of the state")


def _check_same_answer(when: str, one: Aggregation, other: Aggregation) -> None:
    for name, array in one._asdict().items():
        _require(_same_bits(array, getattr(other, name)), f"{when}, other bits in {name!r}")


def _same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    alike = one.dtype == other.dtype and one.shape == other.shape
    return bool(alike and one.tobytes() == other.tobytes())


def _check_close(when: str, one: NDArray[Any], other: NDArray[Any]) -> None:
    off = np.abs(one - other).max(initial=0)
    _require(off <= _ROUNDING, f"{when}, probabilities {off:.2g} apart")


def _n_bytes(state: Any) -> int:
    return sum(array.nbytes for array in state_arrays(state).values())
