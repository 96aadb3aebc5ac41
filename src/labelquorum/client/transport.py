"""Requests to the service, retried until answered or timed out; and labels as their bodies.

What the service may have taken although its answer got lost can be asked again, because every
request that changes something either carries a key or says how things shall be. Labels are cut
into batches and written as lines of JSON, packed where that is worth it.
"""

import gzip
import json
import random
import socket
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from itertools import chain, count, islice
from math import inf, isfinite
from typing import IO, Any, NamedTuple, Self

import httpcore
import httpx

from labelquorum.errors import (
    ConflictError,
    LabelError,
    LabelQuorumError,
    LimitError,
    StateError,
    StoreError,
    printable,
)
from labelquorum.ingest.frames import read_gold
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.readers import iter_labels
from labelquorum.ingest.untrusted import MAX_TRUTHS
from labelquorum.ingest.validate import COLUMNS, fault_of_new_name, shown

LATER = frozenset({429, 502, 503, 504, 507})
"""Answers that mean: not now."""
FIRST_WAIT, LONGEST_WAIT = 0.1, 10.0
CONNECT_SECONDS = 5.0
SILENT_SECONDS = 60.0
"""Longest time without a line of events: the service sends a heartbeat every 15 seconds."""

MAX_JSON_BYTES = 16 * 2**20
"""Maximum size of an answer that is no file: pages of 1,000 rows have a tenth."""
MAX_EVENT_BYTES = 2**20
"""Maximum size of an event: the service's have some hundred bytes."""
MAX_SENTENCE = 2_000  # characters of what the service says
LEAST_BYTES_PER_SECOND = 2**14
"""By which a file may take longer than `timeout`: slow lines are ten times as fast."""
WRITE_BYTES = 2**14
"""Bytes that are sent before the time is looked at: a socket mostly takes as many at once."""


class AbsentError(StoreError):
    """The service has nothing of this name."""


class Event(NamedTuple):
    """Something that happened in a stream."""

    id: str
    """Give it to `follow` as `after` to go on from there."""
    kind: str
    data: Any


class Wire:
    """One service and one key."""

    def __init__(self, url: str, key: str, timeout: float) -> None:
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, TypeError) as error:
            raise StateError(f"`url` of Client is no address ({error}). Got {url!r}.") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise StateError(f"`url` of Client must be such as http://127.0.0.1:8000. Got {url!r}.")
        if not key or not str(key).isascii() or not str(key).isprintable():
            raise StateError("`key` of Client must be a key that the service gave.")
        if not isfinite(timeout) or timeout <= 0:
            raise StateError(f"`timeout` of Client must be a number > 0. Got {timeout!r}.")
        self.url, self.timeout = str(url).rstrip("/"), timeout
        self._http = httpx.Client(
            base_url=self.url,
            # What is packed may unpack to a thousand times its size, so nothing is asked packed.
            headers={"Authorization": f"Bearer {key}", "Accept-Encoding": "identity"},
            trust_env=not _is_here(parsed.host),  # no proxy stands between a machine and itself
        )
        # httpx has no public way to this; without it, a timeout is one per read.
        for transport in filter(None, (self._http._transport, *self._http._mounts.values())):
            if hasattr(transport, "_pool"):
                transport._pool._network_backend = _Network()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(
        self,
        verb: str,
        path: str,
        *,
        invalid: type[LabelQuorumError] = StateError,
        lost: list[str] | None = None,
        into: IO[bytes] | None = None,
        **request: Any,
    ) -> httpx.Response:
        """Ask until there is an answer, or the time is over; errors are raised.

        Parameters
        ----------
        verb, path
            What is asked for.
        invalid
            What is raised where the service finds fault with what it was sent.
        lost
            Where to tell of answers that got lost: the service may have done what it was asked.
        into
            The file for the body of a download.
        request
            What else httpx takes.
        """
        deadline, said = time.monotonic() + self.timeout, ""
        for attempt in count():
            until = _Deadline(deadline - time.monotonic())
            try:
                with self._http.stream(verb, path, timeout=_limit(until), **request) as begun:
                    reply = self._read(begun, until, into)
            except httpx.RequestError as error:
                said, asked_to_wait, was_taken = _words(error, said), None, True
            else:
                if reply.status_code not in LATER:
                    return _checked(reply, self.url, invalid)
                said, asked_to_wait = _sentence(reply), _retry_after(reply)
                was_taken = reply.status_code != 429  # a 503 may come after the work has begun
            if lost is not None and was_taken:
                lost.append(said)
            wait = _pause(attempt, asked_to_wait)
            if time.monotonic() + wait >= deadline:
                raise StoreError(
                    f"{self.url}: no answer within {self.timeout:g} seconds, which is `timeout` of "
                    f"Client. The last was: {said} Ask again later; nothing is counted twice under "
                    "the same key."
                )
            time.sleep(wait)
        raise AssertionError("unreachable")

    def _read(
        self, reply: httpx.Response, until: "_Deadline", into: IO[bytes] | None = None
    ) -> httpx.Response:
        """Return an answer with its body, unless that goes into a file."""
        if reply.headers.pop("Content-Encoding", "identity") != "identity":
            raise StoreError(
                f"{self.url}: the answer was {reply.status_code} and packed, which the client did "
                "not ask for. Check the address, and any proxy before it."
            )
        content = bytearray()
        if into is not None and reply.is_success:
            into.seek(into.truncate(0))
            for piece in reply.iter_raw():
                into.write(piece)
                until.moment += len(piece) / LEAST_BYTES_PER_SECOND
        else:
            for piece in reply.iter_raw():
                content += piece
                self._check_size(len(content), MAX_JSON_BYTES)
        known: dict[str, Any] = {"headers": reply.headers, "extensions": reply.extensions}
        return httpx.Response(reply.status_code, content=bytes(content), **known)

    def _check_size(self, size: int, most: int) -> None:
        if size > most:
            raise LimitError(
                f"{self.url}: an answer or an event may have {most:,} bytes here, and one has "
                "more. Check the address, or ask for less at a time."
            )

    def events(self, path: str, after: str | None) -> Iterator[Event]:
        """What happens, as it happens; a connection that is lost is taken up where it was."""
        lost_since, attempt = time.monotonic(), 0
        last = ""
        while True:
            headers = {"Accept": "text/event-stream"}
            if after is not None:
                headers["Last-Event-ID"] = after
            asked_to_wait = None
            said = "the events ended."
            until = _Deadline(lost_since + self.timeout - time.monotonic())
            begun = self._http.stream("GET", path, headers=headers, timeout=_limit(until))
            try:
                with begun as reply:
                    if reply.status_code != 200:
                        reply = self._read(reply, until)
                    if reply.status_code in LATER:
                        said, asked_to_wait = _sentence(reply), _retry_after(reply)
                    elif reply.status_code != 200:
                        _checked(reply, self.url, StateError)
                    else:
                        for identity, event in _parse(self._lines(reply, until)):
                            after, lost_since, attempt = identity or after, inf, 0
                            if event is not None:
                                yield event
            except httpx.RequestError as error:
                said = _words(error, last)
            now, last = time.monotonic(), said
            lost_since = min(lost_since, now)
            wait = _pause(attempt, asked_to_wait)
            if now + wait - lost_since >= self.timeout:
                raise StoreError(
                    f"{self.url}: events could not be followed for {self.timeout:g} seconds, which "
                    f"is `timeout` of Client. The last was: {said} "
                    f"Follow again with after={after!r}."
                )
            time.sleep(wait)
            attempt += 1

    def _lines(self, reply: httpx.Response, until: "_Deadline") -> Iterator[str]:
        """The lines of events: each comes in time, and an event has a limit."""
        rest, size = b"", 0
        until.moment = time.monotonic() + SILENT_SECONDS
        for piece in reply.iter_raw():
            size += len(piece)
            self._check_size(size, MAX_EVENT_BYTES)
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace").removesuffix("\r")
                size = size if text else len(rest)
                yield text
                until.moment = time.monotonic() + SILENT_SECONDS


class _Deadline(float):
    """A timeout in seconds for all waits together, which end at `moment`."""

    moment: float

    def __new__(cls, seconds: float) -> Self:
        made = super().__new__(cls, seconds)
        made.moment = time.monotonic() + seconds
        return made


def _limit(until: _Deadline) -> httpx.Timeout:
    connect = _Deadline(min(CONNECT_SECONDS, until))
    return httpx.Timeout(until, connect=connect, pool=max(until, 0.0))


def _left(timeout: Any) -> Any:
    """Return the seconds that are left; httpx and httpcore pass timeouts on as they are."""
    if not isinstance(timeout, _Deadline):
        return timeout
    left = timeout.moment - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the time was over before the answer was whole")
    return left


class _Stream:
    """A connection whose waits end at the deadline, where httpx limits each by itself."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, max_bytes: int, timeout: Any = None) -> Any:
        return self._inner.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: Any = None) -> None:
        for start in range(0, len(buffer), WRITE_BYTES):
            self._inner.write(buffer[start : start + WRITE_BYTES], _left(timeout))

    def start_tls(self, *args: Any, timeout: Any = None, **names: Any) -> Any:
        return _Stream(self._inner.start_tls(*args, timeout=_left(timeout), **names))


class _Network(httpcore.SyncBackend):
    def connect_tcp(
        self, host: str, port: int, timeout: Any = None, *args: Any, **names: Any
    ) -> Any:
        n_addresses = 1  # each of which gets its share of the time
        with suppress(OSError):
            n_addresses = len(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        return _Stream(
            super().connect_tcp(host, port, _left(timeout) / n_addresses, *args, **names)
        )


def _pause(attempt: int, asked_to_wait: float | None) -> float:
    """How long to wait before the next attempt: longer each time, and never all together."""
    most = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(attempt, 30))
    return max(asked_to_wait or 0.0, random.uniform(most / 2, most))


def _retry_after(reply: httpx.Response) -> float | None:
    """For how many seconds the service asked to be left alone."""
    header = reply.headers.get("Retry-After")
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if isfinite(seconds) else None


def _checked(reply: httpx.Response, url: str, invalid: type[LabelQuorumError]) -> httpx.Response:
    """The answer, or the error it stands for."""
    status = reply.status_code
    if reply.is_success:
        return reply
    kinds: dict[int, type[LabelQuorumError]] = {
        401: StoreError,
        403: StoreError,
        404: AbsentError,
        409: ConflictError,
        413: LimitError,
    }
    kind = kinds.get(status, invalid if 400 <= status < 500 else StoreError)
    raise kind(f"{url}: {_sentence(reply)}")


def _sentence(reply: httpx.Response) -> str:
    """What the service said was wrong."""
    try:
        body: Any = reply.json()
    except (ValueError, RecursionError):
        body = None
    said = body.get("errors") if isinstance(body, Mapping) else None
    if isinstance(said, list) and said and all(isinstance(one, str) for one in said):
        more = f" There are {len(said) - 1} more such." if len(said) > 1 else ""
        return f"{printable(said[0][:MAX_SENTENCE])}{more}"
    status = printable(f"{reply.status_code} {reply.reason_phrase}"[:MAX_SENTENCE])
    return f"the answer was {status}, and no more."


def _words(error: httpx.RequestError, before: str) -> str:
    """Return the reason of an error; of a deadline, the reason before it, which says more."""
    if before and isinstance(error, httpx.ReadTimeout):
        return before
    return f"{printable(str(error)) or type(error).__name__}.".replace("..", ".")


def _parse(lines: Iterator[str]) -> Iterator[tuple[str, Event | None]]:
    """Server-sent events, each with the id to go on from; one that is cut off is none.

    A service may tell where it stands without telling an event.
    """
    identity, kind, data = "", "message", list[str]()
    for line in lines:
        if not line:
            event = Event(identity, kind, _value("\n".join(data))) if data else None
            yield identity, event
            kind, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id" and value.isascii() and value.isprintable():  # a header can carry it
            identity = value
        elif field == "event":
            kind = value
        elif field == "data":
            data.append(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _is_here(host: str) -> bool:
    """Tell whether a name is that of this very machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


# ── labels as request bodies ─────────────────────────────────────────────────────────────


BATCH_ROWS = 5_000
_WORTH_PACKING = 1_000  # bytes
_MOST_PACKED = 50  # the service takes what is packed tighter than 100 to 1 for a bomb


def batches(labels: Any, space: LabelSpace) -> Iterator[LabelTable]:
    """Labels in tables that one request can take."""
    for table in iter_labels(_lines(labels), space, BATCH_ROWS):
        columns = {name: getattr(table, name) for name in COLUMNS.values()}
        for start in range(0, max(1, len(table.item_ids)), BATCH_ROWS):
            part: dict[str, Any] = {
                name: None if column is None else column[start : start + BATCH_ROWS]
                for name, column in columns.items()
            }
            yield LabelTable(**part, skipped={} if start else table.skipped)


def in_parts(
    true_labels: Any, classes_of: Callable[[], Collection[Hashable] | None]
) -> list[list[dict[str, Hashable]]]:
    """Check true labels, and cut them into parts that one request can take.

    The order follows from the tasks, so that the same truths make the same parts. Where there are
    several, the classes of the stream are asked for.
    """
    truths = read_gold(true_labels)
    classes = classes_of() if len(truths) > MAX_TRUTHS else None
    rows: list[dict[str, Hashable]] = []
    for task in sorted(truths, key=lambda task: (str(task), isinstance(task, str))):
        row = {"task": task, "label": truths[task]}
        faults = {what: fault_of_new_name(name) for what, name in row.items()}
        if classes is not None and row["label"] not in classes:
            faults["label"] = f"is not one of the classes {shown(classes)}"
        for what, fault in faults.items():
            if fault:
                raise LabelError(
                    f"true label of task {shown(task)}: the {what} {fault}. "
                    f"Got {shown(row[what])}. Correct it."
                )
        rows.append(row)
    return [rows[at : at + MAX_TRUTHS] for at in range(0, max(1, len(rows)), MAX_TRUTHS)]


def _lines(labels: Any) -> Any:
    """Dicts, one a label, as lines of JSON; anything else as it is."""
    is_tuple = isinstance(labels, tuple) and not isinstance(labels, LabelTable)
    is_stream = isinstance(labels, Iterator) and not hasattr(labels, "read")
    if not (is_tuple or is_stream or isinstance(labels, list)):
        return labels
    rest = iter(labels)
    first = list(islice(rest, 1))
    if not first:
        return LabelTable([], [], [])
    rows = chain(first, rest)
    return map(_line, rows) if isinstance(first[0], Mapping) else rows


def _line(row: Any) -> str:
    try:
        return json.dumps(dict(row), default=plain)
    except (TypeError, ValueError) as error:
        raise LabelError(
            f"A label is a dict of text and numbers. Got {shown(row)} ({error}). Correct it."
        ) from error


def _ndjson(table: LabelTable) -> bytes:
    names = [role for role, column in COLUMNS.items() if getattr(table, column) is not None]
    columns = [getattr(table, COLUMNS[role]) for role in names]
    rows = (
        {role: value for role, value in zip(names, row, strict=True) if value is not None}
        for row in zip(*columns, strict=True)
    )
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


def packed(table: LabelTable) -> tuple[bytes, dict[str, str]]:
    """The body of a request that sends a table, and its headers; packed where that is worth it."""
    body = _ndjson(table)
    headers = {"Content-Type": "application/x-ndjson"}
    if len(body) >= _WORTH_PACKING:
        packed = gzip.compress(body, 5, mtime=0)
        if len(body) <= _MOST_PACKED * len(packed):
            return packed, {**headers, "Content-Encoding": "gzip"}
    return body, headers


def plain(value: Any) -> Any:
    """NumPy's scalars and dates, as JSON can hold them."""
    if hasattr(value, "item"):
        return value.item()
    return value.isoformat() if hasattr(value, "isoformat") else value
