"""Worker attributes: what a worker is, said once per worker and not once per label.

`worker_kind` is human, llm or model; `model`, `prompt` and `order` tell which model was asked, how,
and in which order of the answers. Any table of labels may have them as columns; a table of workers
alone is read by `readers.read_workers`. What comes later fills a gap; another value is an error.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from labelquorum.errors import LabelError
from labelquorum.ingest.columns import encode
from labelquorum.ingest.labels import LabelTable
from labelquorum.ingest.validate import ATTRIBUTES, COLUMNS, shown


class Attributes(NamedTuple):
    """What is known of a worker; None where nothing is."""

    worker_kind: str | None = None
    model: str | None = None
    prompt: str | None = None
    order: str | None = None


NOTHING_KNOWN = Attributes()


def joined(
    known: Mapping[Hashable, Attributes], tables: Iterable[LabelTable]
) -> dict[Hashable, Attributes]:
    """The workers of whom these tables tell something new, with all that is known of them then."""
    news: dict[Hashable, Attributes] = {}
    for table in tables:
        for worker, role, value, row in _given(table):
            have = news.get(worker) or known.get(worker, NOTHING_KNOWN)
            before = getattr(have, role)
            if before is None:
                news[worker] = have._replace(**{role: value})
            elif before != value:
                raise _conflict(table.where(row), worker, role, before, value)
    return news


def merged(
    rosters: Iterable[Mapping[Any, Attributes]],
    where: str = "merge",
    name: Callable[[Any], Hashable] = lambda worker: worker,
) -> dict[Any, Attributes]:
    """What several sources know of their workers; `where` and `name` are for the error."""
    everything: dict[Any, Attributes] = {}
    for roster in rosters:
        for worker, theirs in roster.items():
            have = everything.setdefault(worker, theirs)
            for role, before, value in zip(ATTRIBUTES, have, theirs, strict=True):
                if None not in (before, value) and before != value:
                    raise _conflict(where, name(worker), role, str(before), str(value))
            both = (
                one if other is None else other for one, other in zip(have, theirs, strict=True)
            )
            everything[worker] = Attributes(*both)
    return everything


def attribute_columns(
    worker_ids: Sequence[Hashable], known: Mapping[Hashable, Attributes]
) -> dict[str, list[str | None]]:
    """What is known of these workers, as the columns that any of them has a value in."""
    rows = [known.get(worker, NOTHING_KNOWN) for worker in worker_ids] if known else []
    columns = zip(ATTRIBUTES, map(list, zip(*rows, strict=True)), strict=False)
    return {role: values for role, values in columns if any(value is not None for value in values)}


def _given(table: LabelTable) -> Iterator[tuple[Hashable, str, str, int]]:
    """Each different (worker, role, value) of a table, and its first row."""
    columns = [(role, getattr(table, COLUMNS[role])) for role in ATTRIBUTES]
    if all(column is None for _, column in columns):
        return
    workers = encode(table.worker_ids)
    for role, column in columns:
        if column is None:
            continue
        values = encode(column)
        n_values = max(len(values.values), 1)
        pairs = workers.codes.astype(np.int64) * n_values + values.codes
        different, rows = np.unique(pairs, return_index=True)
        for pair, row in zip(different.tolist(), rows.tolist(), strict=True):
            value = values.values[pair % n_values]
            if value is not None:
                yield workers.values[pair // n_values], role, value, row


def _conflict(where: str, worker: Hashable, role: str, before: str, value: str) -> LabelError:
    remedy = (
        "Give a judge that is asked in both orders two worker ids, with the same model and prompt"
        if role == "order"
        else "Correct one of them, or give each its own worker id"
    )
    return LabelError(
        f"{where}: worker {worker!r} has the {role} {shown(value)} here and {shown(before)} "
        f"before, and a worker has one {role}. {remedy}; a column {role!r} that tells something "
        "else needs another name."
    )
