"""The Python client of the service: labels in, consensus out, from another process or machine.

It does not import the store. Labels are sent in batches, each under an idempotency key, and
retried until the service has acknowledged them, so nothing is lost and nothing counts twice,
whatever becomes of a connection.
"""

import json
import os
import re
import tempfile
import uuid
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self
from urllib.parse import quote

import pandas as pd

from labelquorum.client.transport import AbsentError, Event, Wire, batches, in_parts, packed, plain
from labelquorum.errors import (
    ConflictError,
    LabelError,
    LabelQuorumError,
    StateError,
    StoreError,
    printable,
)
from labelquorum.ingest.labels import LabelSpace
from labelquorum.ingest.validate import ATTRIBUTES
from labelquorum.ingest.writers import replacing

if TYPE_CHECKING:
    from labelquorum.learn.estimator import Estimator

__all__ = ["Acknowledged", "Client", "Event"]

PAGE_ROWS = 1_000
_KEY = re.compile(r"[!-~](?:[ -~]{0,198}[!-~])?")
_ASKED = ["label", "confidence", "labels", "gain", "worker", "worker_gain", "open"]
_CHUNK = ["state", "items", "labels", "cut_at", "attempts", "error", "version"]


class Acknowledged(NamedTuple):
    """What became of the labels that were sent; they are durable once one has it."""

    accepted: int
    late: int  # set aside: their tasks are closed
    skipped: Mapping[str, int]  # rows left out, by reason
    repeated: int  # batches that had come before under this key; they are counted once
    key: str
    reason: str | None = None  # why labels are late, and what to do; None if none is


class Client:
    """A service, and a key to it.

    Parameters
    ----------
    url
        Where it is, such as http://127.0.0.1:8000.
    key
        One that the service gave. It says what one may do, and with which stream.
    timeout
        Seconds until a request is answered, however slowly and after however many retries, between
        which the pauses grow. A file (`export`, `model`) may take a second longer per 16 KiB that
        have come. The lookup of a name cannot be interrupted: its time is the system's.

    Examples
    --------
    ::

        with lq.Client("http://127.0.0.1:8000", key) as client:
            client.create("birds", classes=["owl", "wren"])
            client.send("birds", "labels.csv")
            client.items("birds")["label"]
    """

    def __init__(self, url: str, key: str, *, timeout: float = 60.0) -> None:
        self._wire = Wire(url, key, timeout)

    def close(self) -> None:
        """Close the connections."""
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._wire.url!r}, …)"

    # ── streams ──────────────────────────────────────────────────────────────────────────

    def create(
        self,
        stream: str,
        method: str = "bila",
        *,
        rules: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Make a stream, and tell what it is.

        Parameters
        ----------
        stream
            Its name.
        method
            How it learns.
        rules
            When chunks are cut and labels deleted, such as {"labels_per_item": 5}.
        settings
            Of the method, `classes` among them.
        """
        body = {"name": stream, "method": method, "settings": settings, "rules": dict(rules or {})}
        lost: list[str] = []
        try:
            return self._ask("POST", "/v1/streams", json=body, lost=lost)
        except ConflictError:
            if not lost:
                raise
            made = self.stream(stream)  # by the request whose answer got lost, perhaps
            if made["method"] != method or not all(
                given.items() <= made[part].items()
                for part, given in (("settings", settings), ("rules", dict(rules or {})))
            ):
                raise
            return made

    def streams(self) -> list[str]:
        """The names of the streams that the key opens."""
        names: list[str] = self._ask("GET", "/v1/streams")["streams"]
        return names

    def stream(self, stream: str) -> dict[str, Any]:
        """What a stream is: its method, settings and rules, and counts of what it holds."""
        return self._ask("GET", _path(stream))

    def change(self, stream: str, **rules: Any) -> dict[str, Any]:
        """Change some of a stream's rules from now on, such as chunk_items=100."""
        return self._ask("PATCH", _path(stream), json=rules)

    def rename(self, stream: str, new: str) -> dict[str, Any]:
        """Give a stream another name; keys that are for it alone stay so."""
        return self._ask("PATCH", _path(stream), json={"name": new})

    def delete(self, stream: str) -> int:
        """Delete a stream with all it holds, for good; say how many labels went."""
        return self._remove(_path(stream))

    def keys(self) -> pd.DataFrame:
        """All keys, revoked ones too, without their secrets; index id."""
        found = self._ask("GET", "/v1/keys")["keys"]
        return _frame(found, "id", ["name", "scope", "stream", "created_at", "revoked_at"])

    def make_key(self, name: str, scope: str, stream: str | None = None) -> str:
        """Make a key, and give its secret, which is not shown again.

        Parameters
        ----------
        name
            What it is for.
        scope
            What it opens: "read", "write" or "admin", each of which includes those before.
        stream
            The only stream it is for; all unless given.
        """
        body = {"name": name, "scope": scope, "stream": stream}
        return str(self._ask("POST", "/v1/keys", json=body)["key"])

    def revoke_key(self, number: int) -> None:
        """Revoke a key by its id."""
        self._remove(f"/v1/keys/{int(number)}")

    # ── in ───────────────────────────────────────────────────────────────────────────────

    def send(
        self,
        stream: str,
        labels: Any,
        key: str | None = None,
        *,
        on_bad: Literal["error", "skip"] = "error",
    ) -> Acknowledged:
        """Send labels; once this returns they are durable, and count once.

        They go in batches of 5,000. One that is refused is an error, which says what was taken
        before it. Correct the labels and send all of them under the same key: what was taken counts
        once.

        Parameters
        ----------
        stream
            Its name.
        labels
            What `BiLA.partial_fit` takes, or dicts with task, worker and label. A file is read as
            it is sent.
        key
            Your own name for these labels, by which they count once however often they are sent;
            one is made unless given.
        on_bad
            "error" refuses a batch with a bad row; "skip" leaves such rows out and counts them.
        """
        key = uuid.uuid4().hex if key is None else key
        if not _KEY.fullmatch(str(key)):
            raise StateError(
                "`key` of send must be 1 to 200 characters of ASCII that can be printed. "
                f"Got {str(key)[:40]!r}."
            )
        skipped = Counter[str]()
        taken = {"accepted": 0, "late": 0, "repeated": 0}
        first, reason = 0, None
        space = LabelSpace(on_bad=on_bad)
        for number, table in enumerate(batches(labels, space)):
            n_rows = len(table.item_ids)
            skipped.update(table.skipped)
            if not n_rows:
                continue
            content, headers = packed(table)
            headers |= {"Idempotency-Key": f"{key}.{number}"}
            try:
                reply = self._ask(
                    "POST",
                    _path(stream, "labels"),
                    invalid=LabelError,
                    params={"on_bad": on_bad},
                    content=content,
                    headers=headers,
                )
            except ConflictError:  # the key is another table's, and cannot be this one's
                raise
            except LabelQuorumError as error:
                done = f"Rows from {first:,} on were not acknowledged, those before were."
                raise type(error)(
                    f"{error} {done if first else 'No row was acknowledged.'} Then send all of "
                    f"them again with key={key!r}: none counts twice."
                ) from error
            first += n_rows
            skipped.update(reply["skipped"])
            for name in taken:
                taken[name] += reply[name]
            reason = printable(reply.get("reason") or "") or reason
        return Acknowledged(skipped=dict(skipped), key=key, reason=reason, **taken)

    def retract(self, stream: str, task: Hashable, worker: Hashable) -> int:
        """Take back a worker's labels of a task that is not cut yet; say how many there were."""
        pair = {"task": _text(task), "worker": _text(worker)}
        return self._remove(_path(stream, "labels"), params=pair)

    def gold(self, stream: str, true_labels: Any) -> int:
        """Tell true labels, which then count; say how many.

        They go in parts of 10,000, once the ids and classes of all are checked. An error says how
        many were accepted before it; sent again, each counts once.

        Parameters
        ----------
        stream
            Its name.
        true_labels
            A Series indexed by task, or a dict {task: label}.
        """
        parts = in_parts(true_labels, lambda: self.stream(stream)["settings"].get("classes"))
        key, accepted, path = uuid.uuid4().hex, 0, _path(stream, "gold")
        for number, rows in enumerate(parts):
            headers = {"Idempotency-Key": f"{key}.{number}"}
            try:
                reply = self._ask("POST", path, invalid=LabelError, json=rows, headers=headers)
            except LabelQuorumError as error:
                if not accepted:
                    raise
                raise type(error)(
                    f"{error} Before it, {accepted:,} of {sum(map(len, parts)):,} truths were "
                    "accepted. Send all of them again: none counts twice."
                ) from error
            accepted += int(reply["told"])
        return accepted

    # ── out ──────────────────────────────────────────────────────────────────────────────

    def items(
        self,
        stream: str,
        *,
        undecided: bool = False,
        confidence_below: float | None = None,
        changed_since: int | None = None,
    ) -> pd.DataFrame:
        """All answers: index task; label, confidence, labels (how many), chunk.

        Parameters
        ----------
        stream
            Its name.
        undecided
            The tasks that have labels and no answer yet, instead.
        confidence_below
            Only answers with less confidence.
        changed_since
            Only answers given or changed after the chunk of this number.
        """
        found = self.iter_items(
            stream,
            undecided=undecided,
            confidence_below=confidence_below,
            changed_since=changed_since,
        )
        return _frame(found, "task", ["label", "confidence", "labels", "chunk"])

    def iter_items(
        self,
        stream: str,
        *,
        undecided: bool = False,
        confidence_below: float | None = None,
        changed_since: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """What `items` gives, one by one and read by pages, where it is too much for a table."""
        wanted = {
            "undecided": undecided or None,
            "confidence_below": confidence_below,
            "changed_since": changed_since,
        }
        return self._pages(_path(stream, "items"), "items", wanted)

    def item(self, stream: str, task: Hashable) -> dict[str, Any]:
        """One task: its answer, probabilities, and why, while its labels are held."""
        return self._ask("GET", _path(stream, "items", task))

    def workers(self, stream: str) -> pd.DataFrame:
        """All workers: index worker; skill, low and high (its bounds), labels, agreed, flags.

        Also worker_kind, model, prompt and order, where any worker has one.
        """
        columns = ["skill", "low", "high", "labels", "agreed", "flags"]
        found = list(self._pages(_path(stream, "workers"), "workers", {}))
        roles = [role for role in ATTRIBUTES if any(one.get(role) is not None for one in found)]
        columns += roles
        nothing = dict.fromkeys(roles)
        rows = (
            {**nothing, **one, "flags": ", ".join(f["flag"] for f in one["flags"])} for one in found
        )
        return _frame(rows, "worker", columns)

    def worker(self, stream: str, worker: Hashable) -> dict[str, Any]:
        """One worker: also the classes, the confusion matrix by row, and the recent trend."""
        return self._ask("GET", _path(stream, "workers", worker))

    def forget(self, stream: str, worker: Hashable) -> int:
        """Forget a person for good; say how many waiting labels of theirs went."""
        return self._remove(_path(stream, "workers", worker))

    def pending(self, stream: str, threshold: float = 0.95, limit: int = 100) -> pd.DataFrame:
        """Tasks that want another label, the least sure first: as `items`, and open.

        Parameters
        ----------
        stream
            Its name.
        threshold
            Those that are less sure than this.
        limit
            Maximum number of rows.
        """
        wanted = {"threshold": threshold, "limit": limit}
        found = self._ask("GET", _path(stream, "pending"), params=wanted)["items"]
        return _frame(found, "task", ["label", "confidence", "labels", "chunk", "open"])

    def ask(self, stream: str, limit: int = 100) -> pd.DataFrame:
        """Tasks for which another label helps most, and from whom; index task.

        Parameters
        ----------
        stream
            Its name.
        limit
            Maximum number of rows.
        """
        found = self._ask("GET", _path(stream, "ask"), params={"limit": limit})["items"]
        return _frame(found, "task", _ASKED)

    def summary(self, stream: str) -> dict[str, Any]:
        """What the dashboard shows of a stream: counts, throughput, lag, classes, warnings."""
        return self._ask("GET", _path(stream, "summary"))

    def stopping(self, stream: str) -> dict[str, Any]:
        """Whether more labels would change the answers."""
        return self._ask("GET", _path(stream, "stopping"))

    def expected_error(self, stream: str, level: float = 0.95) -> dict[str, Any]:
        """The expected share of wrong answers with its bounds, corrected on gold.

        Parameters
        ----------
        stream
            Its name.
        level
            The probability with which the share lies between `low` and `high`.
        """
        return self._ask("GET", _path(stream, "expected_error"), params={"level": level})

    def certificate(
        self, stream: str, error: float = 0.02, confidence: float = 0.95, limit: int = 100
    ) -> dict[str, Any]:
        """Which answers may stand, by gold drawn at random, and what a person must still see.

        Parameters
        ----------
        stream
            Its name.
        error
            The share of wrong labels allowed, once people have labelled `todo`.
        confidence
            The probability with which it holds, whenever one looks.
        limit
            Maximum number of tasks in `todo`; `todo_tasks` says how many there are.
        """
        wanted = {"error": error, "confidence": confidence, "limit": limit}
        return self._ask("GET", _path(stream, "certificate"), params=wanted)

    def agreement(self, stream: str, limit: int = 30) -> dict[str, Any]:
        """How well workers agree with one another: matrices of worker × worker, with intervals.

        Parameters
        ----------
        stream
            Its name.
        limit
            Maximum number of workers, those with most labels.
        """
        return self._ask("GET", _path(stream, "agreement"), params={"limit": limit})

    def jury(self, stream: str, limit: int = 300) -> dict[str, Any]:
        """For how many independent judges the workers count, who errs together, what order does.

        Parameters
        ----------
        stream
            Its name.
        limit
            Maximum number of judges, those with most labels.
        """
        return self._ask("GET", _path(stream, "jury"), params={"limit": limit})

    def export(
        self,
        stream: str,
        path: str | os.PathLike[str],
        what: Literal["items", "workers"] = "items",
        format: Literal["csv", "jsonl", "parquet"] | None = None,
    ) -> None:
        """Write all answers, or all workers, to a file that its owner alone can read.

        Parameters
        ----------
        stream
            Its name.
        path
            The file to write.
        what
            The answers, or the workers with their skills.
        format
            By the suffix of the file unless given.
        """
        kind = format or os.path.splitext(path)[1].removeprefix(".") or "csv"
        wanted = {"what": what, "format": kind}
        with replacing(path) as beside, beside.open("wb") as file:
            self._wire.call("GET", _path(stream, "export"), params=wanted, into=file)

    def chunks(self, stream: str) -> pd.DataFrame:
        """All chunks that were cut, and what became of each; index id."""
        return _frame(self._pages(_path(stream, "chunks"), "chunks", {}), "id", _CHUNK)

    def follow(self, stream: str, after: str | int | None = None) -> Iterator[Event]:
        """What happens in a stream, as it happens, for as long as one listens.

        A connection that is lost is taken up where it was, so no event is missed or rows twice.

        Parameters
        ----------
        stream
            Its name.
        after
            Events that follow the one of this id; what happens from now on unless given.
        """
        return self._wire.events(_path(stream, "events"), None if after is None else str(after))

    def model(self, stream: str) -> "Estimator":
        """The model as it is now, as the library's own."""
        from labelquorum.learn.estimators import load

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.lq")
            with open(path, "wb") as file:
                self._wire.call("GET", _path(stream, "model"), into=file)
            return load(path)

    # ── how ──────────────────────────────────────────────────────────────────────────────

    def _ask(self, verb: str, path: str, **request: Any) -> dict[str, Any]:
        reply = self._wire.call(verb, path, **request)
        try:
            body = reply.json()
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise StoreError(
                f"{self._wire.url}: the answer is none of LabelQuorum's service. Check the address."
            )
        return body

    def _remove(self, path: str, **request: Any) -> int:
        """Have something removed; say how much there was of it."""
        lost: list[str] = []
        try:
            return int(self._ask("DELETE", path, lost=lost, **request).get("gone", 1))
        except AbsentError:
            if not lost:
                raise
            return 0  # it went by the request whose answer got lost, or had gone before

    def _pages(self, path: str, name: str, wanted: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        given = {key: value for key, value in wanted.items() if value is not None}
        cursor: dict[str, Any] = {}
        while True:
            page = self._ask("GET", path, params={**given, "limit": PAGE_ROWS, **cursor})
            yield from page[name]
            if page["next"] is None:
                return
            cursor = {"cursor": page["next"]}


def _path(stream: str, *parts: Hashable) -> str:
    """An address below a stream; names are the user's own, and may hold anything."""
    return "/".join(["/v1/streams", *(_segment(part) for part in (stream, *parts))])


def _segment(part: Hashable) -> str:
    quoted = quote(_text(part), safe="")
    # A lone dot or two would be taken for a way up, so they are spelled out.
    return quoted.replace(".", "%2E") if quoted.strip(".") == "" else quoted


def _text(identity: Hashable) -> str:
    return identity if isinstance(identity, str) else json.dumps(plain(identity))


def _frame(rows: Iterable[Mapping[str, Any]], index: str, columns: list[str]) -> pd.DataFrame:
    """Rows as a table with the user's own ids as its index, types kept."""
    found = list(rows)
    table = {name: [row[name] for row in found] for name in columns}
    ids = [row[index] for row in found]
    alike = len(set(map(type, ids))) == 1
    return pd.DataFrame(table, index=pd.Index(ids, name=index, dtype=None if alike else object))
