"""Values as bytes, to travel between the driver and the executors; empty where there is nothing."""

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load, save

from labelquorum.ingest.chunks import Chunk
from labelquorum.learn.sharding import Gained, Known, Sums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "chunk_bytes",
    "chunk_from",
    "gained_bytes",
    "gained_from",
    "gathered",
    "ids_bytes",
    "known_bytes",
    "known_from",
    "numbers",
    "table_bytes",
    "table_from",
]

_WHOLE = ("n_workers", "n_classes")


def chunk_bytes(chunk: Chunk) -> bytes:
    """A chunk."""
    arrays = {name: value for name, value in chunk._asdict().items() if value is not None}
    return save({name: np.atleast_1d(np.ascontiguousarray(a)) for name, a in arrays.items()})


def chunk_from(data: bytes) -> Chunk:
    """The chunk that `chunk_bytes` was given."""
    arrays: dict[str, Any] = load(data)
    return Chunk(**arrays | {name: int(arrays[name][0]) for name in _WHOLE})


def gained_bytes(gained: Gained | None) -> bytes:
    """What a shard counted."""
    if gained is None:
        return b""
    return save({"rows": gained.rows, **_named("sums", gained.sums)})


def gained_from(data: bytes) -> Gained | None:
    """What `gained_bytes` was given."""
    arrays = load(data) if data else {}
    return Gained(arrays["rows"], _part("sums", arrays)) if arrays else None


def gathered(found: "DataFrame") -> list[Gained]:
    """What shards counted, brought to the driver, in their order."""
    told = found.toArrow().sort_by("shard")["data"].to_pylist()
    return [part for part in map(gained_from, told) if part is not None]


def known_bytes(known: Known | None) -> bytes:
    """What all shards counted."""
    if known is None:
        return b""
    named = {**_named("sums", known.sums), **_named("pooled", known.pooled)}
    return save({"rows": known.rows, **named})


def known_from(data: bytes) -> Known | None:
    """What `known_bytes` was given."""
    arrays = load(data) if data else {}
    if not arrays:
        return None
    return Known(arrays["rows"], _part("sums", arrays), _part("pooled", arrays))


def _named(part: str, sums: Sums) -> Sums:
    return {f"{part}:{name}": np.ascontiguousarray(array) for name, array in sums.items()}


def _part(part: str, arrays: Sums) -> Sums:
    prefix = f"{part}:"
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def numbers(column: Any) -> Any:
    """Rows of numbers, (P, D), from a column that holds each as bytes."""
    rows = [np.frombuffer(data, np.float64) for data in column.to_pylist()]
    return np.stack(rows) if rows else np.zeros((0, 0))


def ids_bytes(item_ids: Sequence[Hashable], places: Any, kind: Any) -> bytes:
    """Item ids in a chunk's order, and which of them came first."""
    import pyarrow

    return table_bytes(pyarrow.table({"task": pyarrow.array(item_ids, kind), "place": places}))


def table_bytes(table: Any) -> bytes:
    """An Arrow table."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def table_from(data: bytes) -> Any:
    """The table that `table_bytes` was given."""
    import pyarrow

    return pyarrow.ipc.open_stream(data).read_all()
