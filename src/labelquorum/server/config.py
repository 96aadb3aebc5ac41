"""The configuration of the service: its settings, and its log.

The log is one JSON object per line, on standard error. JSON escapes line breaks and the control
characters of terminals, so no name that a client chooses can forge a line.
"""

import json
import logging
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any

from labelquorum.errors import StateError
from labelquorum.ingest.untrusted import MAX_UNPACKED_BYTES


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the service.

    Parameters
    ----------
    host, port
        Where it listens.
    allow_host
        Names under which it may be asked for, besides those of this machine.
    allow_origin
        Pages of other origins that may write, such as https://labels.example.org.
    rate
        Rate limit: requests per second per key; twice as many in a burst.
    viewers
        How many may follow events at a time.
    body_bytes
        The largest body.
    unpacked_bytes
        The largest body once it is unpacked.
    waiting_bytes
        The bodies of all requests together; beyond, clients are asked to retry.
    read_seconds
        How long a client may take to send its headers, and as long again for its body.
    keep_alive_seconds
        How long a connection may stay silent between two requests.
    stop_seconds
        How long requests may take to end once the service is asked to stop.
    beat_seconds
        Interval in seconds of the heartbeat to those who follow events.
    log_requests
        Write a line for every request, not only for those that were refused.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    allow_host: tuple[str, ...] = ()
    allow_origin: tuple[str, ...] = ()
    rate: float = 10_000.0
    viewers: int = 1_000
    body_bytes: int = 16 * 2**20
    unpacked_bytes: int = MAX_UNPACKED_BYTES
    waiting_bytes: int = 256 * 2**20
    read_seconds: float = 20.0
    keep_alive_seconds: int = 30
    stop_seconds: int = 10
    beat_seconds: float = 15.0
    log_requests: bool = False

    def __post_init__(self) -> None:
        for name in ("rate", "body_bytes", "waiting_bytes", "read_seconds", "beat_seconds"):
            if not getattr(self, name) > 0:
                raise StateError(f"`{name}` must be a number > 0. Got {getattr(self, name)!r}.")


# ── the log ──────────────────────────────────────────────────────────────────────────────


class Log:
    """Writes events, one line per event."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream

    def write(self, event: str, **facts: Any) -> None:
        """Write one event with its facts."""
        stream = self._stream or sys.stderr
        moment = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"at": moment, "event": event, **facts}, default=repr)
        try:
            stream.write(line + "\n")
            stream.flush()
        except (OSError, ValueError):  # a log that is no longer read is no reason to stop
            pass


class _Lines(logging.Handler):
    """Writes the records of uvicorn and of our threads as events."""

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {"says": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            facts["error"] = logging.Formatter().formatException(record.exc_info)
        for name in ("stream", "error"):
            if name in record.__dict__:
                facts.setdefault(name, record.__dict__[name])
        Log().write("server", level=record.levelname.lower(), **facts)


def log_config() -> dict[str, Any]:
    """The logging configuration, for `logging.config.dictConfig`."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"lines": {"()": _Lines}},
        "loggers": {
            "labelquorum": {"handlers": ["lines"], "level": "INFO", "propagate": False},
            "uvicorn": {"handlers": ["lines"], "level": "WARNING", "propagate": False},
            "uvicorn.error": {"level": "WARNING"},
            "uvicorn.access": {"handlers": [], "level": "CRITICAL", "propagate": False},
        },
    }
