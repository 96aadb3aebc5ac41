"""A real Label Studio on this machine, from its own package in an environment of its own."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

__all__ = ["VERSION", "Person", "Studio", "choice", "free_port", "install", "say"]

VERSION = "1.23.2"
SECONDS = 300  # a first start makes the database, which takes a minute on a slow machine
PASSWORD = secrets.token_urlsafe(12)

QUIET = {
    "COLLECT_ANALYTICS": "false",
    "LATEST_VERSION_CHECK": "false",
    "SENTRY_DSN": "",
    "FRONTEND_SENTRY_DSN": "",
}
"""It tells nobody that it runs."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def install(environment: Path) -> Path:
    """Install Label Studio unless it is there; give the program."""
    program, stamp = environment / "bin" / "label-studio", environment / f"label-studio-{VERSION}"
    if stamp.exists() and program.exists():
        return program
    say(f"Installing Label Studio {VERSION} into an environment of its own…")
    shutil.rmtree(environment, ignore_errors=True)
    base = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([base, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", f"label-studio=={VERSION}"], check=True)
    stamp.touch()
    return program


class Person:
    """A person who is logged in."""

    def __init__(self, url: str, token: str) -> None:
        headers = {"Authorization": f"Token {token}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False)
        self.id = int(self.ask("GET", "/api/current-user/whoami")["id"])

    def ask(self, verb: str, path: str, body: Any = None) -> Any:
        """Call Label Studio's API, and give what it answers."""
        reply = self._http.request(verb, path, json=body)
        if reply.is_error:
            raise RuntimeError(f"{verb} {path}: {reply.status_code} {reply.text[:500]}")
        return reply.json() if reply.content else None

    def annotate(self, task: int, result: list[Any], **more: Any) -> int:
        """Label a task; give the annotation's number."""
        made = self.ask("POST", f"/api/tasks/{task}/annotations/", {"result": result, **more})
        return int(made["id"])

    def correct(self, annotation: int, result: list[Any], **more: Any) -> None:
        self.ask("PATCH", f"/api/annotations/{annotation}/", {"result": result, **more})

    def delete(self, annotation: int) -> None:
        self.ask("DELETE", f"/api/annotations/{annotation}/")

    def project(self, config: str, tasks: list[dict[str, Any]], title: str = "birds") -> int:
        """Make a project with these tasks; give its number."""
        number = self.ask("POST", "/api/projects", {"title": title, "label_config": config})["id"]
        if tasks:
            self.ask("POST", f"/api/projects/{number}/import", tasks)
        return int(number)

    def tasks(self, project: int) -> list[int]:
        """The numbers of a project's tasks, in order."""
        found = self.ask("GET", f"/api/tasks?project={project}&page_size=1000")["tasks"]
        return sorted(int(task["id"]) for task in found)

    def hook(self, project: int, url: str, key: str) -> None:
        """Have the events of a project sent to an address, with a key."""
        headers = {"Authorization": f"Bearer {key}"}
        self.ask("POST", "/api/webhooks/", {"project": project, "url": url, "headers": headers})


class Studio:
    """A server that runs."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.owner = Person(url, token)
        self.version = str(self.owner.ask("GET", "/api/version")["release"])

    @classmethod
    @contextmanager
    def running(cls, environment: Path, folder: Path) -> Iterator["Studio"]:
        """Start a server with nothing in it, and end it."""
        program, port, token = install(environment), free_port(), secrets.token_hex(20)
        url = f"http://127.0.0.1:{port}"
        settings = {
            **QUIET,
            "LABEL_STUDIO_USERNAME": "owner@example.org",
            "LABEL_STUDIO_PASSWORD": PASSWORD,
            "LABEL_STUDIO_USER_TOKEN": token,
            "SSRF_PROTECTION_ENABLED": "false",  # else it refuses hooks to this very machine
        }
        arguments = ["start", "--no-browser", "--enable-legacy-api-token"]
        arguments += ["--internal-host", "127.0.0.1", "--port", str(port)]
        arguments += ["--data-dir", str(folder / "label-studio")]
        with (folder / "label-studio.log").open("wb") as log:
            process = subprocess.Popen(
                [str(program), *arguments],
                env={**os.environ, **settings},
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                _wait(url, process, folder / "label-studio.log")
                yield cls(url, token)
            finally:
                process.terminate()
                process.wait(30)

    def join(self, name: str) -> Person:
        """Have a person join by invitation, as they would in the browser."""
        path = self.owner.ask("GET", "/api/invite")["invite_url"]
        path = path[path.index("/user/") :]
        with httpx.Client(base_url=self.url, timeout=60, trust_env=False) as browser:
            form = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', browser.get(path).text)
            assert form is not None
            shown = {"email": f"{name}@example.org", "password": PASSWORD}
            browser.post(path, data={"csrfmiddlewaretoken": form[1], **shown})
            return Person(self.url, browser.get("/api/current-user/token").json()["token"])


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server is up."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise RuntimeError(f"Label Studio did not start:\n{log.read_text(errors='replace')[-2000:]}")


def choice(*chosen: str, name: str = "bird") -> list[dict[str, Any]]:
    """The result of an annotation that chose so."""
    value = {"choices": list(chosen)}
    return [{"from_name": name, "to_name": "text", "type": "choices", "value": value}]
