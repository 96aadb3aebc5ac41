"""The laws every aggregator obeys, as functions anyone can run on an aggregator of their own.

Each law is a function `check_…(aggregator)` whose docstring is the law; `CHECKS` has them by name
and `check_aggregator` runs them all. An aggregator that cannot obey one says so in its
`exceptions`, with the reason. One that excuses itself from `new_class` is tried on two classes.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import StateError
from labelquorum.evaluation.metrics import error_rate
from labelquorum.evaluation.simulate.arrivals import label_table
from labelquorum.evaluation.simulate.crowds import (
    balanced_truth,
    bimodal_crowd,
    class_conditional_crowd,
)
from labelquorum.evaluation.simulate.oracle import Crowd
from labelquorum.ingest.chunks import Chunk, cut_chunks, make_chunk
from labelquorum.ingest.labels import MISSING, LabelSpace, LabelTable
from labelquorum.ingest.vocabulary import Roster
from labelquorum.learn.aggregator import Aggregation, Aggregator, softmax
from labelquorum.learn.methods.majority_vote import majority_vote
from labelquorum.learn.model_file import state_arrays, state_from_arrays

Check = Callable[[Aggregator], None]

CHECKS: dict[str, Check] = {}
"""Every law by name, in the order they are run."""

SLACK = 0.02
"""By how much the error of an aggregator may exceed that of majority vote on a seeded crowd."""

MOSTLY = 0.7
"""The share of items whose answers a new class of other items may not touch."""

_CHUNK_ITEMS = 15  # of four labels each: one more still fits the 64 that XLA is asked for
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


# ── what an answer is ────────────────────────────────────────────────────────────────────


@_law
def check_rows_sum_to_one(aggregator: Aggregator) -> None:
    """Class probabilities, confusion matrices and the class prior are finite and sum to one."""
    state, chunk = _before_last(aggregator)
    _check_probabilities("probs", aggregator.aggregate(state, chunk).probs)
    confusion = aggregator.confusion(state, np.arange(chunk.n_workers))
    _check_probabilities("confusion", confusion)
    _check_probabilities("class_prior", aggregator.class_prior(state))


@_law
def check_answer_is_most_probable(aggregator: Aggregator) -> None:
    """The aggregated label of an item is a class that no other is more probable than."""
    state, chunk = _before_last(aggregator)
    answer = aggregator.aggregate(state, chunk)
    chosen = answer.probs[np.arange(chunk.n_items), answer.aggregated]
    short = (answer.probs.max(axis=1) - chosen).max()
    _require(short <= _ROUNDING, f"a class {short:.2g} less probable than another")


@_law
def check_many_labels(aggregator: Aggregator) -> None:
    """2,000 labels on one item do not underflow: the class that nearly all name wins, finitely."""
    row, n_classes = np.arange(2000), _n_classes(aggregator)
    label = np.where(row % 10 == 0, 0, 1)
    chunk = make_chunk(np.zeros(2000), row % 16, label, n_classes=n_classes)
    answer = aggregator.aggregate(_learn(aggregator, [chunk]), chunk)
    _check_probabilities("probs", answer.probs)
    _require(np.isfinite(answer.log_evidence).all(), "log_evidence that is not finite")
    _require(answer.aggregated[0] == 1, f"class {answer.aggregated[0]}, where nine in ten said 1")


@_law
def check_no_worse_than_majority(aggregator: Aggregator) -> None:
    """Labels emitted with chunks of 320 items err at most `SLACK` more than majority vote."""
    for crowd in _seeded_crowds(_n_classes(aggregator)):
        _check_against_majority(aggregator, crowd, chunk_items=320)


@_law
def check_cold_start(aggregator: Aggregator) -> None:
    """Labels emitted with chunks of 16 items err at most `SLACK` more than majority vote."""
    crowd = next(_seeded_crowds(_n_classes(aggregator)))
    _check_against_majority(aggregator, crowd, chunk_items=16)


@_law
def check_shared_errors(aggregator: Aggregator) -> None:
    """Where workers err towards the same labels, labels err at most `SLACK` more than the vote."""
    for crowd in _crowds_with_shared_errors(_n_classes(aggregator)):
        _check_against_majority(aggregator, crowd, chunk_items=200)


# ── states are values ────────────────────────────────────────────────────────────────────


@_law
def check_aggregate_is_pure(aggregator: Aggregator) -> None:
    """`aggregate` changes no bit of the state and gives the same bits when asked again."""
    state, chunk = _before_last(aggregator)
    before = _bits(state)
    # A worker the state has not met needs room, and must get it elsewhere.
    asked = _with_newcomer(chunk)
    first, second = (aggregator.aggregate(state, asked) for _ in range(2))
    _check_same_bits("after aggregate", before, _bits(state))
    _check_same_bits("asked again", first._asdict(), second._asdict())


@_law
def check_update_is_pure(aggregator: Aggregator) -> None:
    """`update` leaves the old state as it was, and gives the same bits from it again."""
    chunks = _stream(aggregator)
    old = _learn(aggregator, chunks[:2])
    before = _bits(old)
    new, _ = aggregator.update(old, chunks[2])
    once = _bits(new)
    _check_same_bits("in the old state", before, _bits(old))
    aggregator.update(old, chunks[3])  # another future of the same past
    again, _ = aggregator.update(old, chunks[2])
    _check_same_bits("made again", once, _bits(again))
    _check_same_bits("looked at later", once, _bits(new))


@_law
def check_stop_and_resume(aggregator: Aggregator) -> None:
    """Stopping, writing the state out as arrays and resuming from them gives the same bits."""
    chunks = _stream(aggregator)
    state = _learn(aggregator, chunks[:2])
    resumed: Any = state_from_arrays(aggregator.state_type, _bits(state))
    for chunk in chunks[2:]:
        state, _ = aggregator.update(state, chunk)
        resumed, _ = aggregator.update(resumed, chunk)
        one, other = (aggregator.aggregate(each, chunk) for each in (state, resumed))
        _check_same_bits("after resuming", one._asdict(), other._asdict())
    _check_same_bits("after resuming", _bits(state), _bits(resumed))


@_law
def check_empty_chunk(aggregator: Aggregator) -> None:
    """An empty chunk changes nothing and is answered with nothing."""
    state, chunk = _before_last(aggregator)
    empty = _take_items(chunk, np.zeros(0, np.intp))
    after, _ = aggregator.update(state, empty)
    _check_same_bits("after an empty chunk", _bits(state), _bits(after))
    answer = aggregator.aggregate(state, empty)
    shapes = answer.aggregated.shape, answer.probs.shape
    _require(shapes == ((0,), (0, empty.n_classes)), f"an answer of shapes {shapes}")


@_law
def check_memory(aggregator: Aggregator) -> None:
    """The state grows with workers and classes, not with items or labels."""
    chunks, sizes = _stream(aggregator, n_chunks=8), []
    for state in (_learn(aggregator, chunks[:n]) for n in (4, 8)):
        sizes.append(sum(array.nbytes for array in _bits(state).values()))
    _require(sizes[0] == sizes[1], f"{sizes} bytes after 4 and 8 chunks of the same workers")


# ── order and company ────────────────────────────────────────────────────────────────────


@_law
def check_row_order(aggregator: Aggregator) -> None:
    """The order of a table's rows changes no bit of the state or of any item's answer."""
    n_classes, rng = _n_classes(aggregator), np.random.default_rng(_SEED)
    tables = list(cut_chunks([label_table(_crowd(n_classes, 4))], _CHUNK_ITEMS))
    seen = []
    for stream in (tables, [_shuffle_rows(table, rng) for table in tables]):
        chunks = _read_tables(stream, n_classes)
        state = _learn(aggregator, chunks)
        answer = aggregator.aggregate(state, chunks[-1])
        seen.append(_bits(state) | answer._asdict())
    _check_same_bits("from shuffled rows", *seen)


@_law
def check_item_order(aggregator: Aggregator) -> None:
    """An item's answer depends neither on its place in a chunk nor on the items beside it."""
    state, chunk = _before_last(aggregator)
    answer = aggregator.aggregate(state, chunk)
    for items in (np.roll(np.arange(chunk.n_items), 1), np.arange(1, chunk.n_items, 2)):
        other = aggregator.aggregate(state, _take_items(chunk, items))
        _check_close(f"for items {items.tolist()}", answer.probs[items], other.probs)
        same = np.array_equal(answer.aggregated[items], other.aggregated)
        _require(same, f"other labels for items {items.tolist()}")


@_law
def check_class_names(aggregator: Aggregator) -> None:
    """Renaming the classes renames the answers and changes nothing else."""
    chunks = _stream(aggregator)
    names = np.roll(np.arange(chunks[0].n_classes, dtype=np.int32), 1)
    renamed = [chunk._replace(label=names[chunk.label]) for chunk in chunks]
    one, other = (
        aggregator.aggregate(_learn(aggregator, stream), stream[-1]).probs
        for stream in (chunks, renamed)
    )
    _check_close("with other names", one, other[:, names])


@_law
def check_weights(aggregator: Aggregator) -> None:
    """A label of weight 0 is answered like one never said, of weight 2 like one said twice."""
    # Before the temperature: votes of one worker may lean on each other more than a weight does.
    state, chunk = _before_last(aggregator)
    weight = np.arange(chunk.n_labels, dtype=np.float32) % 3  # 0, 1, 2, 0, 1, 2, …
    said = np.repeat(np.arange(chunk.n_labels), weight.astype(int))
    one, other = (
        _untempered(aggregator.aggregate(state, each))
        for each in (chunk._replace(weight=weight), _take_rows(chunk, said))
    )
    _check_close("with weights", one, other)


# ── newcomers and leavers ────────────────────────────────────────────────────────────────


@_law
def check_new_worker(aggregator: Aggregator) -> None:
    """A new worker is welcome at any time, and being asked about one changes nobody's matrix."""
    state, chunk = _before_last(aggregator)
    known, chunk = np.arange(chunk.n_workers), _with_newcomer(chunk)
    before = aggregator.confusion(state, known)
    _check_probabilities("probs", aggregator.aggregate(state, chunk).probs)
    unmoved = np.array_equal(before, aggregator.confusion(state, known))
    _require(unmoved, "matrices of known workers that moved when a newcomer was asked about")
    state, _ = aggregator.update(state, chunk)
    _check_probabilities("probs", aggregator.aggregate(state, chunk).probs)
    confusion = aggregator.confusion(state, np.arange(chunk.n_workers))
    _check_probabilities("confusion", confusion)
    expected = (chunk.n_workers, chunk.n_classes, chunk.n_classes)
    _require(confusion.shape == expected, f"confusion of shape {confusion.shape}, not {expected}")


@_law
def check_unseen_worker(aggregator: Aggregator) -> None:
    """An unseen worker in `aggregate` changes no answer on items of others."""
    state, chunk = _before_last(aggregator)
    one, other = (aggregator.aggregate(state, each) for each in (chunk, _with_newcomer(chunk)))
    _check_close("beside an unseen worker", one.probs[1:], other.probs[1:])
    same = np.array_equal(one.aggregated[1:], other.aggregated[1:])
    _require(same, "other labels beside an unseen worker")


@_law
def check_new_class(aggregator: Aggregator) -> None:
    """A new class is welcome at any time, and wins the items that everybody gives to it alone."""
    state, chunk = _before_last(aggregator)
    new = chunk.n_classes
    before = aggregator.aggregate(state, chunk).aggregated[4:]
    label = np.where(chunk.item < 4, new, chunk.label).astype(np.int32)
    chunk = chunk._replace(label=label, n_classes=new + 1)
    unlearned = aggregator.aggregate(state, chunk)
    _check_probabilities("probs", unlearned.probs)
    kept = float(np.mean(unlearned.aggregated[4:] == before))
    _require(kept >= MOSTLY, f"{kept:.0%} of the items nobody gives to it kept their answer")
    state, _ = aggregator.update(state, chunk)
    answer = aggregator.aggregate(state, chunk)
    _check_probabilities("probs", answer.probs)
    _check_probabilities("confusion", aggregator.confusion(state, chunk.workers))
    _check_probabilities("class_prior", aggregator.class_prior(state))
    _require(answer.probs.shape[1] == new + 1, f"{answer.probs.shape[1]} classes, not {new + 1}")
    won = answer.aggregated[:4].tolist()
    _require(won == [new] * 4, f"classes {won} for items all of whose labels say {new}")


@_law
def check_forgetting(aggregator: Aggregator) -> None:
    """A forgotten worker has a newcomer's matrix; all others keep theirs."""
    state, chunk = _before_last(aggregator)
    everybody, (first, second) = np.arange(chunk.n_workers), chunk.workers[:2].tolist()
    before = aggregator.confusion(state, everybody)
    once = aggregator.forget(state, first)
    after = aggregator.confusion(once, everybody)
    _check_probabilities("confusion", after)
    same = np.array_equal(np.delete(before, first, axis=0), np.delete(after, first, axis=0))
    _require(same, "matrices of other workers that changed")
    both = aggregator.confusion(aggregator.forget(once, second), everybody)
    _check_close("in two forgotten workers", both[first], both[second])
    same = np.array_equal(before, aggregator.confusion(state, everybody))
    _require(same, "that the state before has forgotten the worker too")


# ── what the laws are tried on ───────────────────────────────────────────────────────────


def _n_classes(aggregator: Aggregator) -> int:
    return 2 if "new_class" in aggregator.exceptions else 3


def _crowd(n_classes: int, n_chunks: int) -> Crowd:
    return class_conditional_crowd(_CHUNK_ITEMS * n_chunks, 12, n_classes, 4, seed=_SEED)


def _seeded_crowds(n_classes: int) -> Iterator[Crowd]:
    yield class_conditional_crowd(640, 16, n_classes, 4, seed=_SEED)
    if n_classes > 2:  # the modes of its noise lie at classes 3 and 7
        yield bimodal_crowd(balanced_truth(640, seed=_SEED), spread=0.2, seed=_SEED)


def _crowds_with_shared_errors(n_classes: int) -> Iterator[Crowd]:
    """Crowds drawn at random from those of Figure 4 of Hong et al., WWW 2021."""
    rng = np.random.default_rng(_SEED)
    for _ in range(3 if n_classes > 2 else 0):
        yield bimodal_crowd(
            balanced_truth(400, seed=int(rng.integers(2**31))),
            n_workers=int(rng.integers(6, 11)),
            noise_rate=float(rng.uniform(0.4, 0.8)),
            missing_rate=float(rng.uniform(0.1, 0.3)),
            seed=int(rng.integers(2**31)),
        )


def _read(crowd: Crowd, chunk_items: int = _CHUNK_ITEMS) -> list[Chunk]:
    return _read_tables(cut_chunks([label_table(crowd)], chunk_items), len(crowd.class_prior))


def _read_tables(tables: Iterable[LabelTable], n_classes: int) -> list[Chunk]:
    roster, chunks = Roster(LabelSpace(tuple(range(n_classes)))), []
    for table in tables:
        intake = roster.read(table)
        roster.admit(intake)
        chunks.append(intake.chunk)
    return chunks


def _stream(aggregator: Aggregator, n_chunks: int = 4) -> list[Chunk]:
    return _read(_crowd(_n_classes(aggregator), n_chunks))


def _learn(aggregator: Aggregator, chunks: list[Chunk]) -> Any:
    state = aggregator.init(chunks[0], _SEED)
    for chunk in chunks:
        state, _ = aggregator.update(state, chunk)
    return state


def _before_last(aggregator: Aggregator) -> tuple[Any, Chunk]:
    """The state after three chunks, and a fourth."""
    *learned, last = _stream(aggregator)
    return _learn(aggregator, learned), last


def _shuffle_rows(table: LabelTable, rng: np.random.Generator) -> LabelTable:
    rows = rng.permutation(len(table.item_ids))
    columns = table.item_ids, table.worker_ids, table.labels
    items, workers, labels = ([column[row] for row in rows] for column in columns)
    return LabelTable(items, workers, labels)


def _with_newcomer(chunk: Chunk) -> Chunk:
    """The chunk with one more label on its first item, of a worker nobody has met."""
    end = np.searchsorted(chunk.item, 1)
    return chunk._replace(
        item=np.insert(chunk.item, end, 0),
        worker=np.insert(chunk.worker, end, chunk.n_workers),
        label=np.insert(chunk.label, end, 0),
        weight=np.insert(chunk.weight, end, 1),
        known=np.insert(chunk.known, end, False),
        replaced=np.insert(chunk.replaced, end, MISSING),
        replaced_weight=np.insert(chunk.replaced_weight, end, 0),
        workers=np.append(chunk.workers, np.int32(chunk.n_workers)),
        worker_keys=np.append(chunk.worker_keys, np.uint64(12345)),
        n_workers=chunk.n_workers + 1,
    )


def _take_items(chunk: Chunk, items: NDArray[np.intp]) -> Chunk:
    """These items of a chunk, in this order."""
    place = np.full(chunk.n_items, -1, np.int32)
    place[items] = np.arange(len(items))
    moved = chunk._replace(item=place[chunk.item], item_keys=chunk.item_keys[items])
    return _take_rows(moved, np.flatnonzero(moved.item >= 0))


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


def _require(held: object, seen: str) -> None:
    if not held:
        raise _BrokenError(seen)


def _check_probabilities(name: str, probs: NDArray[Any]) -> None:
    _require(np.isfinite(probs).all() and (probs >= 0).all(), f"{name} that are no probabilities")
    off = np.abs(probs.sum(axis=-1) - 1).max(initial=0)
    _require(off <= 1e-5, f"{name} with a row whose sum is {off:.2g} away from one")


def _check_same_bits(when: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    _require(one.keys() == other.keys(), f"{when}, other fields {list(one.keys() ^ other.keys())}")
    for name in one:
        array, twin = np.asarray(one[name]), np.asarray(other[name])  # None is an array of None
        alike = array.dtype == twin.dtype and array.shape == twin.shape
        _require(alike and array.tobytes() == twin.tobytes(), f"{when}, other bits in {name!r}")


def _bits(state: Any) -> dict[str, NDArray[Any]]:
    """The state as a file would hold it, out of reach of whoever writes on its arrays."""
    return {name: array.copy() for name, array in state_arrays(state).items()}


def _check_close(when: str, one: NDArray[Any], other: NDArray[Any]) -> None:
    off = np.abs(one - other).max(initial=0)
    _require(off <= _ROUNDING, f"{when}, probabilities {off:.2g} apart")


def _untempered(answer: Aggregation) -> NDArray[Any]:
    """The probabilities before they were lowered for dependence."""
    if answer.temperature is None:
        return answer.probs
    log_probs = np.log(np.maximum(answer.probs, np.finfo(np.float32).tiny), dtype=np.float64)
    return softmax(log_probs * answer.temperature[:, None])


def _check_against_majority(aggregator: Aggregator, crowd: Crowd, chunk_items: int) -> None:
    chunks, errors = _read(crowd, chunk_items), []
    for method in (aggregator, majority_vote()):
        state, aggregated = method.init(chunks[0], _SEED), []
        for chunk in chunks:
            state, _ = method.update(state, chunk)
            aggregated.append(method.aggregate(state, chunk).aggregated)
        errors.append(error_rate(np.concatenate(aggregated), crowd.truth))
    seen = f"error {errors[0]:.3f} on {len(crowd.class_prior)} classes, majority {errors[1]:.3f}"
    _require(errors[0] <= errors[1] + SLACK, seen)


def seeded_error(aggregator: Aggregator, n_classes: int = 3) -> float:
    """The error on a fixed simulated crowd of 1,000 items taken as one chunk; for doctests.

    Majority vote errs on 16.1 % of its items with three classes.
    """
    crowd = class_conditional_crowd(1000, 30, n_classes, labels_per_item=5, seed=0)
    chunk = make_chunk(crowd.item, crowd.worker, crowd.label, n_classes=n_classes)
    state, _ = aggregator.update(aggregator.init(chunk, 0), chunk)
    return float(np.mean(aggregator.aggregate(state, chunk).aggregated != crowd.truth))
