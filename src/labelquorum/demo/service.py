"""The demo's service: `labelquorum serve`'s own parts, in a process that ends with its parent.

`python -m labelquorum.demo.service` is that process. It prints its address and a key to
standard output, serves until its standard input ends, and then ends in order, as at Control-C. So
no process is left behind, however the demo ends.
"""

import json
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from labelquorum.errors import LabelQuorumError, StateError
from labelquorum.server.config import Log

STOP_SECONDS = 30.0
"""A service that takes longer to end is killed."""


class Address(NamedTuple):
    """Where the service is, and the key to it."""

    url: str
    key: str


class Service:
    """A service in a subprocess; `with` ends it."""

    def __init__(self, store: str, port: int, log: Path) -> None:
        self._log = log
        self._file = log.open("wb")
        self._process = subprocess.Popen(
            # -P: no code of the folder one happens to be in
            [sys.executable, "-P", "-m", "labelquorum.demo.service", store, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._file,
            start_new_session=True,  # Ctrl-C goes to the demo, which then closes the service
        )

    def address(self) -> Address:
        """Wait until it serves."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        reported = json.loads(line) if line else {}
        if "url" not in reported:
            reason = reported.get("error") or f"The service did not start. {self._last_line()}"
            raise StateError(reason)
        return Address(**reported)

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Have it end in order, and wait for that."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except BaseException:  # a timeout or a second Ctrl-C: what is acknowledged is safe
            process.kill()
            process.wait()
            raise
        finally:
            process.stdout.close()
            self._file.close()

    def _last_line(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else "It said nothing."


class _ReportingLog(Log):
    """A log that also reports the address to the parent process, once it serves."""

    def __init__(self, stream: IO[str], key: str) -> None:
        super().__init__(stream)
        self._key = key

    def write(self, event: str, **facts: Any) -> None:
        super().write(event, **facts)
        if event == "serving":
            _report({"url": f"http://{facts['at_address'][0]}", "key": self._key})


def serve(store: str, port: int) -> None:
    """Serve a store until standard input ends."""
    from labelquorum.server.app import create_app
    from labelquorum.server.config import Settings
    from labelquorum.server.learning_loop import SubprocessLoop
    from labelquorum.server.questions import Questions
    from labelquorum.server.uvicorn_server import Server, check_free
    from labelquorum.server.write_queue import WriteQueue
    from labelquorum.store.api_keys import Keys
    from labelquorum.store.store import Store

    settings = Settings(port=port)
    with closing(Questions()) as learner:
        learner.start()
        with Store.open(store, learner=learner) as opened:
            check_free(settings)
            key, secret = Keys(opened).make("demo", "admin")
            log = _ReportingLog(sys.stderr, secret)
            queue = WriteQueue(opened, SubprocessLoop(store, opened))
            server = Server(create_app(opened, queue, settings, log), settings)

            def wait_for_the_end() -> None:
                sys.stdin.buffer.read()
                server.should_exit = True

            threading.Thread(target=wait_for_the_end, daemon=True).start()
            try:
                server.run()
            finally:
                Keys(opened).revoke(key.id)


def _report(message: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve what the arguments name, or report in one sentence why not."""
    store, port = sys.argv[1:]
    try:
        serve(store, int(port))
    except LabelQuorumError as error:
        _report({"error": str(error)})
        sys.exit(1)


if __name__ == "__main__":
    main()
