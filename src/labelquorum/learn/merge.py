"""Merging: models that learned from different tasks become one that learned from all.

Counts add up. The ids are the users' own, so shards need not agree on any order of workers or
classes.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import inf, isnan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelquorum.errors import StateError
from labelquorum.ingest.chunks import id_key
from labelquorum.ingest.labels import MISSING
from labelquorum.ingest.vocabulary import Roster
from labelquorum.ingest.worker_attributes import merged as merged_attributes
from labelquorum.learn.aggregator import Part
from labelquorum.learn.analysis.drift import fresh_track, joined
from labelquorum.learn.estimator import Estimator
from labelquorum.learn.item_columns import OpenItem
from labelquorum.learn.model import ModelState
from labelquorum.learn.open_items import OpenItems
from labelquorum.learn.worker_table import WorkerRows

_MAY_DIFFER = ("seed", "history", "open_items", "warmup_items")


def merge(*models: Estimator, base: Estimator | None = None) -> Estimator:
    """Make one model of several that learned from different tasks.

    What each model counted beyond the base adds up, to 9 digits in any order or grouping; then
    the workers are solved again. Open tasks of all models stay open, up to `open_items`.

    Parameters
    ----------
    models
        Models whose state is counts, such as `BiLA()`, with the same settings.
    base
        The model they all went on from, if they did; it is not counted twice.

    Examples
    --------
    >>> from labelquorum import BiLA
    >>> north = BiLA().partial_fit({"q1": {"ann": "yes", "bob": "yes", "cat": "no"}})
    >>> south = BiLA().partial_fit({"q2": {"dan": "no", "bob": "no", "cat": "no"}})
    >>> merge(north, south).workers_.tolist()
    ['ann', 'bob', 'cat', 'dan']
    """
    _check_models(models, base)
    _check_tasks(models, base)
    everybody = [*([] if base is None else [base]), *models]
    first = everybody[0]
    forgotten = _forgotten(models, base)
    workers = _union(
        [worker for worker in model.model_.learned.vocabulary.worker_ids if worker not in forgotten]
        for model in everybody
    )
    classes = _union(model.model_.learned.vocabulary.classes for model in everybody)
    places = {id(model): _places(model, workers, classes) for model in everybody}
    attributes = merged_attributes(
        model.model_.learned.vocabulary.attributes for model in everybody
    )
    for worker in forgotten:
        attributes.pop(worker, None)
    learned = ModelState(
        Roster(first.model_.space, list(workers), list(classes), attributes),
        _merge_open_items(models, base, places, len(classes)),
        _merge_states(models, base, places, len(workers), len(classes), forgotten),
        _merge_books(models, base, places, len(workers)),
        [],
        {},
        n_chunks=inf,
    )
    merged = first.with_learned(learned)
    noted = (digest for model in everybody for digest in model.model_.sources)
    merged.model_.sources.extend(dict.fromkeys(noted))
    return merged


def _check_models(models: Sequence[Estimator], base: Estimator | None) -> None:
    if not models:
        raise StateError("merge needs at least one model. Got none.")
    for model in [*models, *([] if base is None else [base])]:
        if not isinstance(model, Estimator):
            raise StateError(
                "merge takes models one after the other, merge(one, other), and none by the name "
                f"of its file. Got {model!r:.80}."
            )
    everybody = [*([] if base is None else [base]), *models]
    first = everybody[0]
    for model in everybody:
        model.model_.check_counts("be merged")
        if model.held_labels_:
            raise StateError(
                f"{model.held_labels_} labels of a model are held for its warm-up, so it cannot be "
                "merged. Call answer_held first."
            )
        for name, value in first.get_params().items():
            if name not in _MAY_DIFFER and _differ(getattr(model, name, None), value):
                raise StateError(
                    f"Models that are merged must have the same settings. `{name}` is {value!r} "
                    f"in one and {getattr(model, name, None)!r} in another."
                )
    if base is None and sum(model.history is not None for model in models) > 1:
        raise StateError(
            "Each of these models counts its history, which would be counted several times. "
            "Give base=, a model with that history and nothing else."
        )


def _differ(one: Any, other: Any) -> bool:
    # A list, a tuple and an array of the same classes are the same setting.
    lists = [list(value) if isinstance(value, Iterable) else value for value in (one, other)]
    return repr(lists[0]) != repr(lists[1])


def _check_tasks(models: Sequence[Estimator], base: Estimator | None) -> None:
    """Refuse tasks that two models learned from, as far as open and closed tasks are known."""
    before = set() if base is None else _task_keys(base)
    changed: dict[Hashable, Estimator] = {}
    seen: set[int] = set()
    for model in models:
        for task in _changed_tasks(model, base):
            if task in changed:
                raise _overlap(f"task {task!r}")
            changed[task] = model
        news = _task_keys(model) - before
        if seen & news:
            open_tasks = {
                id_key(task): task for other in models for task in other.model_.learned.open_items
            }
            named = [repr(open_tasks[key]) for key in seen & news if key in open_tasks]
            raise _overlap(f"task {min(named)}" if named else "tasks that are closed by now")
        seen |= news


def _overlap(what: str) -> StateError:
    return StateError(
        f"Models that are merged must have learned from different tasks, but two of them know "
        f"{what}. Merge models of other tasks or, if they went on from one model, give it as base=."
    )


def _task_keys(model: Estimator) -> set[int]:
    ledger = model.model_.learned.open_items
    return {*map(id_key, ledger), *ledger.closed_keys.tolist()}


def _changed_tasks(model: Estimator, base: Estimator | None) -> list[Hashable]:
    """Tasks open in the base of which the model holds other labels, or another truth."""
    if base is None:
        return []
    theirs, ours, forgotten = base.model_.learned, model.model_.learned, _forgotten([model], base)
    return [
        *_withdrawn(model, base),
        *(
            task
            for task in theirs.open_items.among(ours.open_items)
            if _said(theirs, task, forgotten) != _said(ours, task, forgotten)
        ),
    ]


def _withdrawn(model: Estimator, base: Estimator) -> list[Hashable]:
    """Tasks open in the base that are neither open nor closed in the model."""
    ledger = model.model_.learned.open_items
    missing = [task for task in base.model_.learned.open_items if task not in ledger]
    closed = ledger.was_closed(np.array(list(map(id_key, missing)), np.uint64))
    return [task for task, known in zip(missing, closed, strict=True) if not known]


def _forgotten(models: Sequence[Estimator], base: Estimator | None) -> set[Hashable]:
    """Workers of the base whom a model has forgotten since, except those who came again."""
    if base is None:
        return set()
    lists = [model.model_.learned.vocabulary.worker_ids for model in models]
    names = base.model_.learned.vocabulary.worker_ids
    gone = {name for ids in lists for name, now in zip(names, ids, strict=False) if now is None}
    return {name for name in gone if not any(name in ids[len(names) :] for ids in lists)}


def _said(learned: ModelState, task: Hashable, forgotten: set[Hashable]) -> Any:
    """What is known of an open task, by the users' own ids; but for workers who are forgotten."""
    held = learned.open_items.get(task)
    assert held is not None
    workers, classes = learned.vocabulary.worker_ids, learned.vocabulary.classes
    scores = held.weight * np.nan if held.score is None else held.score
    columns = (held.worker, held.label, held.weight, scores)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    labels = [
        (workers[k], classes[z], weight, None if isnan(score) else score)
        for k, z, weight, score in rows
        if workers[k] is not None and workers[k] not in forgotten
    ]
    return sorted(labels, key=repr), None if held.gold == MISSING else classes[held.gold]


# ── the parts of a state ─────────────────────────────────────────────────────────────────


class _Places(NamedTuple):
    """Where a model's workers and classes stand among those of all models."""

    workers: NDArray[np.intp]  # (K,) MISSING where a worker was forgotten
    classes: NDArray[np.intp]  # (C,)


def _union(lists: Iterable[Iterable[Hashable]]) -> dict[Hashable, int]:
    names = dict.fromkeys(name for names in lists for name in names if name is not None)
    return {name: place for place, name in enumerate(names)}


def _places(
    model: Estimator, workers: Mapping[Hashable, int], classes: Mapping[Hashable, int]
) -> _Places:
    roster = model.model_.learned.vocabulary
    return _Places(
        np.array([workers.get(worker, MISSING) for worker in roster.worker_ids], np.intp),
        np.array([classes[name] for name in roster.classes], np.intp),
    )


def _merge_states(
    models: Sequence[Estimator],
    base: Estimator | None,
    places: Mapping[int, _Places],
    n_workers: int,
    n_classes: int,
    forgotten: set[Hashable],
) -> Any:
    def part(model: Estimator) -> Part:
        return Part(model.model_.learned.state, *places[id(model)])

    learned = [part(model) for model in models if model.model_.learned.state is not None]
    method = models[0].model_.aggregator
    if not learned or method.counts is None:
        return None
    start = None if base is None or base.model_.learned.state is None else part(base)
    state = method.counts.merge(learned, start, n_workers, n_classes)
    for worker in forgotten:
        state = method.counts.forget_gold(state, id_key(worker))
    return state


def _merge_books(
    models: Sequence[Estimator],
    base: Estimator | None,
    places: Mapping[int, _Places],
    n_workers: int,
) -> WorkerRows:
    total = {name: np.zeros(n_workers, np.int64) for name in ("labels", "agreed")}
    terms = [(model, 1) for model in models]
    terms += [] if base is None else [(base, 1 - len(models))]
    tracks = []
    for model, times in terms:
        workers = places[id(model)].workers
        rows, known = model.model_.learned.worker_stats.to_arrays(), workers != MISSING
        for name, counted in total.items():
            counted[workers[known]] += times * rows[name][known]
        spread = fresh_track(n_workers)
        spread[workers[known]] = rows["track"][known]
        tracks.append(spread)
    leaves = {name: np.maximum(counted, 0) for name, counted in total.items()}
    track = joined(tracks) if base is None else joined(tracks[:-1], tracks[-1])
    return WorkerRows({**leaves, "track": track})


def _merge_open_items(
    models: Sequence[Estimator],
    base: Estimator | None,
    places: Mapping[int, _Places],
    n_classes: int,
) -> OpenItems:
    """All open tasks, those of the base first; what one model changed is taken from there."""
    first = models[0] if base is None else base
    merged = OpenItems(first.model_.learned.open_items.open_items)
    source: dict[Hashable, Estimator] = {}
    gone: set[Hashable] = set()
    for model in [first, *models]:
        changed, ledger = set(_changed_tasks(model, base)), model.model_.learned.open_items
        merged.close(ledger.closed_keys)
        for task in ledger:
            if task not in source or task in changed:
                source[task] = model
        if base is not None:
            gone.update(_withdrawn(model, base))
    kept = {
        task: _renumbered(held, places[id(model)], n_classes)
        for task, model in source.items()
        if task not in gone and (held := model.model_.learned.open_items.get(task)) is not None
    }
    merged.keep_all(kept, kept.values(), map(id_key, kept))
    return merged


def _renumbered(held: OpenItem, places: _Places, n_classes: int) -> OpenItem:
    known = places.classes[: len(held.probs)]

    def spread(values: NDArray[np.float32], filler: Any) -> NDArray[np.float32]:
        wide = np.empty((*values.shape[:-1], n_classes), np.float32)
        wide[...] = filler
        wide[..., known] = values
        return wide

    least = held.log_evidence.min(axis=1, keepdims=True, initial=0)
    return held._replace(
        worker=places.workers[held.worker].astype(np.int32),
        label=places.classes[held.label].astype(np.int32),
        log_evidence=spread(held.log_evidence, least),
        probs=spread(held.probs, 0),
        counted_probs=spread(held.counted_probs, 0),
        aggregated=int(places.classes[held.aggregated]),
        gold=MISSING if held.gold == MISSING else int(places.classes[held.gold]),
        votes=held.votes
        if held.votes is None
        else np.concatenate([held.votes[:, :1], spread(held.votes[:, 1:], 0)], axis=1),
    )
