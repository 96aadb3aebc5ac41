"""What the service is told at its start: where it listens, whom it answers, how much it takes."""

from dataclasses import dataclass

from labelquorum.errors import StateError
from labelquorum.ingest.untrusted import MOST_BYTES

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the service is told at its start.

    Parameters
    ----------
    host, port
        Where it listens.
    allow_host
        Names under which it may be asked for, besides those of this machine.
    allow_origin
        Pages of other origins that may write, such as https://labels.example.org.
    rate
        Requests a second that a key may make; twice as many at once.
    viewers
        How many may follow events at a time.
    body_bytes
        The largest body.
    unpacked_bytes
        The largest body once it is unpacked.
    waiting_bytes
        The bodies of all requests together; who comes then is asked to come again.
    read_seconds
        How long a client may take to send its headers, and as long again for its body.
    keep_alive_seconds
        How long a connection may stay silent between two requests.
    stop_seconds
        How long requests may take to end once the service is told to stop.
    beat_seconds
        Who follows events hears something at least so often.
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
    unpacked_bytes: int = MOST_BYTES
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
