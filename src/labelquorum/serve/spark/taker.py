"""What Spark calls with each micro-batch: it is taken once, settled, and its answers handed on."""

from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import pandas as pd

from labelquorum.errors import ConflictError, LabelError, StateError
from labelquorum.ingest.events import LabelTable, OnBad
from labelquorum.ingest.formats import read_labels
from labelquorum.record.export import exported
from labelquorum.record.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Sink", "Taker"]

Sink = Callable[["DataFrame", int], None]

_AT_ONCE = 500  # chunks whose answers are read


class Taker:
    """What Spark calls with each micro-batch."""

    def __init__(
        self,
        stream: Stream,
        source: str,
        whole_items: bool,
        sink: Sink | str | None,
        sink_format: str,
        on_bad: OnBad | None = None,
    ) -> None:
        self.skipped = 0  # rows
        self.error: Exception | None = None
        self._stream, self._source, self._whole_items = stream, source, whole_items
        self._sink, self._sink_format = sink, sink_format
        self._sunk = f"{source} sink"
        space = stream._space
        self._space = space if on_bad is None else replace(space, on_bad=on_bad)

    def __call__(self, batch: "DataFrame", number: int) -> None:
        """Take a micro-batch; what goes wrong is kept in `error`, as it was."""
        try:
            self._accept(batch, number)
            self._stream.settle(flush=self._whole_items)
            if self._sink is not None:
                self._give(batch, number)
        except Exception as error:
            self.error = error
            raise

    def _accept(self, batch: "DataFrame", number: int) -> None:
        """Take a micro-batch once; refuse one that does not follow on the last."""
        # The checkpoint's own name, the same after every restart.
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise StateError(
                "Spark does not tell which query a micro-batch is of. Let it pin its threads "
                "(PYSPARK_PIN_THREAD=true, as it is unless set)."
            )
        said = self._stream.position(self._source)
        last = _Place(query, -1, "") if said is None else _Place.read(said)
        who = f"Stream {self._stream.name!r} has"
        has = f"{who} the labels of source {self._source!r} up to micro-batch {last.number}"
        if last.query != query:
            raise ConflictError(
                f"{who} labels of source {self._source!r} by another checkpoint, up to "
                f"micro-batch {last.number}. Go on with that one, in place of the one begun now; "
                "if it is gone, start over with a new store; or, if these are other labels, give "
                "source= a name of its own."
            )
        if number > last.number + 1:
            has = has if said is not None else f"{who} no labels of source {self._source!r}"
            raise ConflictError(
                f"{has}, and Spark goes on with {number}: those between are missing. Restore the "
                "store this checkpoint belongs to, or start with a new checkpoint and a new "
                "source=."
            )
        table = batch.toArrow()
        place = _Place(query, number, _digest_of(table))
        if number < last.number or (number == last.number and place != last):
            raise ConflictError(
                f"{has}, and Spark gives others as {number}: the checkpoint is older than the "
                "store. Restore the store that belongs to it, or start with a new checkpoint and a "
                "new source=."
            )
        if number > last.number:
            key = f"{self._source} {query} {number}"
            try:
                labels = read_labels(table, self._space)
                receipt = self._stream.accept(labels, key, self._source, str(place))
            except LabelError as error:
                first, *others = (f"Micro-batch {number}: {said}" for said in error.sentences)
                raise LabelError(first, others) from error
            self.skipped += sum(receipt.skipped.values())

    def _give(self, batch: "DataFrame", number: int) -> None:
        """Hand on what was answered since the last micro-batch; a crash may let it come again."""
        said = self._stream.position(self._sunk)
        last, chunk = (-1, 0) if said is None else map(int, said.split())
        if number <= last:
            return
        # Up to the first that another query of this driver has cut and not learned from yet.
        rows = takewhile(lambda row: row["state"] != "cut", self._stream.chunks(after=chunk))
        chunks = [row["id"] for row in rows]
        answers = self._answers(chunks)
        if answers is not None:
            given = batch.sparkSession.createDataFrame(answers)
            if callable(self._sink):
                self._sink(given, number)
            else:
                # By source, too: each numbers its micro-batches from 0 on.
                place = f"source={quote(self._source, safe='')}/batch={number}"
                folder = f"{str(self._sink).rstrip('/')}/{place}"
                given.write.mode("overwrite").format(self._sink_format).save(folder)
        mark = f"{number} {max(chunks, default=chunk)}"
        self._stream.accept(LabelTable([], [], []), None, self._sunk, mark)

    def _answers(self, chunks: list[int]) -> Any:
        """The answers that were given in these chunks, as an Arrow table; None where none were."""
        import pyarrow

        kinds = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
        columns: dict[str, set[type]] = {}
        rows: list[dict[str, Any]] = []
        for first in range(0, len(chunks), _AT_ONCE):
            some = chunks[first : first + _AT_ONCE]
            with exported(
                self._stream, "answers", probabilities=False, typed=True, chunks=some
            ) as (types, found):
                rows += found
            for name, kinds_of_some in types.items():
                columns.setdefault(name, set()).update(kinds_of_some)
        if not rows:
            return None
        arrays = {}
        for name, types_of in columns.items():
            kind = kinds.get(next(iter(types_of)), pyarrow.string()) if len(types_of) == 1 else None
            values = [row[name] for row in rows]
            if kind is None or kind == pyarrow.string():  # a column has one type
                values, kind = [str(value) for value in values], pyarrow.string()
            arrays[name] = pyarrow.array(values, kind)
        return pyarrow.table(arrays)


class _Place(NamedTuple):
    """How far a source was read."""

    query: str
    number: int  # of the micro-batch
    digest: str  # of its rows, in whatever order

    @classmethod
    def read(cls, text: str) -> "_Place":
        query, number, digest = text.split()
        return cls(query, int(number), digest)

    def __str__(self) -> str:
        return f"{self.query} {self.number} {self.digest}"


def _digest_of(table: Any) -> str:
    """What tells the rows of one micro-batch from those of another; their order may differ."""
    hashes = pd.util.hash_pandas_object(table.to_pandas(), index=False)
    return f"{table.num_rows}-{int(hashes.sum()) % 2**64:016x}"
