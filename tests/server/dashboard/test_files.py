"""The dashboard's files: whole, accounted for, and without a way to read text as markup."""

import json
import re
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import pytest

DASHBOARD = files("labelquorum.server").joinpath("dashboard")
VENDORED = {
    "uPlot": DASHBOARD.joinpath("vendor"),
    "axe-core": Path(__file__).parent / "vendor",
}
OURS = {
    path.relative_to(str(DASHBOARD)).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(Path(str(DASHBOARD)).rglob("*"))
    if path.is_file() and path.parent.name != "vendor"
}
SCRIPTS = {name: text for name, text in OURS.items() if name.endswith(".js")}


@pytest.mark.parametrize("library", VENDORED)
def test_a_vendored_library_is_to_the_byte_what_was_published(library):
    folder = VENDORED[library]
    reply = json.loads(folder.joinpath("vendored.json").read_text(encoding="utf-8"))
    assert re.fullmatch(r"npm:[\w-]+@\d+\.\d+\.\d+", reply["package"])
    assert reply["package"].endswith(f"@{reply['version']}") and reply["licence"]
    kept = {one.name for one in folder.iterdir()} - {"vendored.json"}
    assert kept == set(reply["files"]) and "LICENSE" in kept
    for name, one in reply["files"].items():
        body = folder.joinpath(name).read_bytes()
        assert sha256(body).hexdigest() == one["sha256"], name
    version = reply["version"].encode()
    assert any(version in folder.joinpath(name).read_bytes() for name in kept if ".js" in name)


def test_the_package_holds_every_page():
    pages = (
        "agreement",
        "ask",
        "item",
        "items",
        "jury",
        "login",
        "settings",
        "stream",
        "streams",
        "worker",
        "workers",
    )
    assert {f"pages/{page}.js" for page in pages} <= set(OURS)
    assert {"index.html", "style.css", "app.js", "icon.svg"} <= set(OURS)
    for name in OURS:
        assert DASHBOARD.joinpath(*name.split("/")).read_bytes()


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_reads_text_as_markup_or_as_code(name):
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|setHTML|srcdoc"
        r"|createContextualFragment|\beval\b|new Function|javascript:|setTimeout\([\"'`]"
    )
    assert re.findall(forbidden, SCRIPTS[name]) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_import_of_a_script_is_a_file_that_is_here(name):
    here = Path(str(DASHBOARD)) / name
    found = re.findall(r"^(?:import|export)\b[^;]*?from \"([^\"]+)\";", SCRIPTS[name], re.M)
    assert found or name in ("api.js", "dom.js", "format.js")
    for path in found:
        assert path.startswith("."), "the page may load its own files alone"
        assert (here.parent / path).resolve().is_file(), path


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_inline():
    for name, text in OURS.items():
        found = re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text.replace("http://www.w3.org", ""))
        assert found == [], name
    page = OURS["index.html"]
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?![^>]*\ssrc=)", page)
    assert re.search(r'<html lang="en">', page) and "<noscript>" in page


def test_a_row_is_as_high_in_the_script_as_in_the_sheet():
    [script] = re.findall(r"const ROW = (\d+);", OURS["table.js"])
    [sheet] = re.findall(r"--row: (\d+)px;", OURS["style.css"])
    assert script == sheet
