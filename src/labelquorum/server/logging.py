"""What happens, one line of JSON each, on standard error.

JSON has no line breaks and no escape characters of terminals within its text, so that nobody can
forge a line by what he calls himself.
"""

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import IO, Any

__all__ = ["Log", "log_config"]


class Log:
    """Writes events, one line each."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream

    def write(self, event: str, **facts: Any) -> None:
        """Write one event, with what there is to tell about it."""
        stream = self._stream or sys.stderr
        moment = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"at": moment, "event": event, **facts}, default=repr)
        try:
            stream.write(line + "\n")
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more, which is no reason to stop
            pass


class _Lines(logging.Handler):
    """What uvicorn and our own threads have to say, in our lines."""

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {"says": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            facts["error"] = logging.Formatter().formatException(record.exc_info)
        for name in ("stream", "error"):
            if name in record.__dict__:
                facts.setdefault(name, record.__dict__[name])
        Log().write("server", level=record.levelname.lower(), **facts)


def log_config() -> dict[str, Any]:
    """How uvicorn is to log."""
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
