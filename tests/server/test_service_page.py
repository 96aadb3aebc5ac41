"""The page of the service names all there is to name."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from typer.main import get_command

from labelquorum.cli import app
from labelquorum.learn.analysis.flags import FLAGS
from labelquorum.server import write_queue
from labelquorum.server.auth import ROUTES
from labelquorum.server.config import Settings
from labelquorum.server.routes import workers
from labelquorum.store.api_keys import SCOPES

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
CODE = set(re.findall(r"`([^`\n]+)`", PAGE))


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=" ".join)
def test_every_route_is_on_the_page(method, path):
    assert f"{method} {path.replace(':path', '')}" in CODE


@pytest.mark.parametrize("setting", [field.name for field in fields(Settings)])
def test_every_setting_is_on_the_page(setting):
    assert setting in CODE


def test_every_option_scope_and_flag_is_on_the_page():
    serve = get_command(app).commands["serve"]
    options = {option for parameter in serve.params for option in parameter.opts}
    assert {option for option in options if option.startswith("--")} - {"--help"} <= CODE
    assert set(SCOPES) <= CODE
    assert len(FLAGS) == 5 and set(FLAGS) <= CODE


def test_the_limits_of_what_waits_are_on_the_page():
    labels, chunks = write_queue.MAX_QUEUED_LABELS, write_queue.MAX_CHUNKS_BEHIND
    assert f"| labels that wait to be committed | {labels:,}; then 503 |" in PAGE
    assert f"to be learned from | {chunks}; then its labels get 503 |" in PAGE


def test_every_status_that_is_answered_is_on_the_page():
    reply = {
        int(number)
        for row in re.findall(r"^\| ([\d, ]+) \|", PAGE, re.M)
        for number in row.split(", ")
    }
    folder = Path(workers.__file__).parents[1]
    source = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    answered = {
        int(n) for n in re.findall(r"(?:ApiError\(|refuse\(|error_response\()\s*(\d{3})", source)
    }
    assert len(answered) > 10 and answered | {404, 405, 507} <= reply


def test_limits_are_those_of_the_code():
    settings = Settings()
    for number, unit in (
        (settings.body_bytes / 2**20, "MiB"),
        (settings.unpacked_bytes / 2**20, "MiB"),
        (settings.read_seconds, "seconds"),
        (settings.keep_alive_seconds, "seconds"),
        (settings.beat_seconds, "seconds"),
        (settings.stop_seconds, "seconds"),
    ):
        assert f"{number:g} {unit}" in PAGE
