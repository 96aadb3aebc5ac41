"""Pictures and the page of a stream, as a person would ask for them."""

import base64
import re
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from cli.test_cli import ROWS, as_csv, run, unboxed

from labelquorum.evaluation.simulate.arrivals import truth_by_item
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.learn.estimators import BiLA
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

STORE = ("--store", "data")
TRUTH = {
    task: ("cat", "dog", "fox")[c]
    for task, c in truth_by_item(class_conditional_crowd(60, 8, 3, 4, seed=5)).items()
}
EVIL = '<img src=x onerror="alert(1)">&'


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a store, a model's file and a file of truths."""
    folder = tmp_path_factory.mktemp("plots")
    (folder / "truth.csv").write_text(
        "task,label\n" + "".join(f"{task},{label}\n" for task, label in TRUTH.items())
    )
    model = BiLA()
    with Store.open(folder / "data") as store:
        rules = Rules(labels_per_item=4, chunk_items=20, grace=1000.0)
        stream = store.create("animals", classes=["cat", "dog", "fox"], rules=rules)
        table = {}
        for task, worker, label in ROWS:
            table.setdefault(task, {})[worker] = label
        stream.accept(table)
        stream.settle()
        store.create("empty")
        stream.gold(dict(list(TRUTH.items())[:10]))
        stream.settle(flush=True)
        evil = store.create(EVIL, rules=Rules(labels_per_item=2, chunk_items=1))
        evil.accept({EVIL + "t": {EVIL + "w": EVIL + "c", "bob": "wren"}})
        evil.settle()
    (folder / "labels.csv").write_text(as_csv())
    model.partial_fit(folder / "labels.csv").save(folder / "crowd.lq")
    return folder


@pytest.fixture(autouse=True)
def _inside(place, monkeypatch):
    monkeypatch.chdir(place)


def texts(path):
    """What is written in an SVG: matplotlib notes each text in a comment."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [line.strip()[5:-4] for line in lines if line.strip().startswith("<!-- ")]


# ── plot ─────────────────────────────────────────────────────────────────────────────────


def test_a_stream_is_drawn_along_time():
    said = run("plot", "stream", "animals", *STORE, "-o", "stream.svg")
    assert said.stderr == "Wrote stream.svg.\n" and said.stdout == ""
    written = texts("stream.svg")
    assert "How animals went" in written and "60" in written
    assert any(re.fullmatch(r"cat  \d+ %", text) for text in written)


@pytest.mark.parametrize("source", [("animals", *STORE), ("crowd.lq",)], ids=["store", "file"])
@pytest.mark.parametrize("kind", ["workers", "confusion"])
def test_workers_are_drawn_from_a_store_and_from_a_file(kind, source):
    run("plot", kind, *source, "-o", f"{kind}.svg", "--title", "So they are")
    written = texts(f"{kind}.svg")
    assert {row[1] for row in ROWS} <= set(written) and "So they are" in written
    counts = {text for text in written if text.endswith(" labels")}
    assert len(counts) >= 1


def test_workers_may_be_named_or_fewer():
    run("plot", "confusion", "animals", *STORE, "-o", "some.svg", "--workers", "w1, w3")
    assert {"w1", "w3"} == {text for text in texts("some.svg") if re.fullmatch(r"w\d", text)}
    run("plot", "workers", "animals", *STORE, "-o", "some.svg", "--limit", "3")
    written = texts("some.svg")
    assert sum(bool(re.fullmatch(r"w\d", text)) for text in written) == 3
    assert "How often each worker is right (3 of 8)" in written
    said = run("plot", "workers", "animals", *STORE, "-o", "no.svg", "--workers", "w1,joe", code=1)
    assert said.stderr == "animals: worker 'joe' is not known. Check the id.\n"
    assert not Path("no.svg").exists()


def test_calibration_holds_answers_against_truths_nobody_told():
    truth = ("--truth", "truth.csv")
    run("plot", "calibration", "animals", *STORE, *truth, "-o", "sure.svg")
    assert any(text.startswith("50 tasks · calibration error ") for text in texts("sure.svg"))
    run("plot", "calibration", "crowd.lq", *truth, "-o", "sure.svg")
    assert any(text.startswith("60 tasks · calibration error ") for text in texts("sure.svg"))


def test_calibration_asks_for_truths_and_nothing_else_does():
    ask = ("animals", *STORE, "-o", "no.svg")
    said = run("plot", "calibration", *ask, code=2)
    assert "Name their file with --truth" in unboxed(said.stderr)
    said = run("plot", "workers", *ask, "--truth", "truth.csv", code=2)
    assert "takes no truths" in unboxed(said.stderr)
    Path("other.csv").write_text("task,label\nelsewhere,cat\n")
    said = run("plot", "calibration", *ask, "--truth", "other.csv", code=1)
    assert "the truth is known of none of its tasks" in said.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("stream", "crowd.lq"), "does not tell when tasks were answered"),
        (("stream", "empty", *STORE), "Stream 'empty' has decided nothing yet"),
        (("stream", "owls", *STORE), "there is no stream 'owls'"),
        (("workers", "animals", "--store", "elsewhere"), "there is no store"),
    ],
)
def test_what_cannot_be_drawn_is_told_in_a_sentence(arguments, sentence):
    said = run("plot", *arguments, "-o", "no.svg", code=1)
    assert sentence in said.stderr and said.stderr.count("\n") == 1
    assert not Path("no.svg").exists()


def test_a_picture_of_another_kind_is_refused():
    said = run("plot", "stream", "animals", *STORE, "-o", "no.gif", code=1)
    assert "must end in .png, .svg, .pdf" in said.stderr


# ── report ───────────────────────────────────────────────────────────────────────────────


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def report(stream):
    said = run("report", stream, *STORE, "-o", "report.html")
    assert re.fullmatch(r"Wrote report\.html, \d\.\d MB\.\n", said.stderr)
    assert Path("report.html").stat().st_mode & 0o777 == 0o600
    source = Path("report.html").read_text(encoding="utf-8")
    return source, Page(source)


def test_the_report_tells_what_was_decided_by_whom_and_how_surely():
    _, page = report("animals")
    words = " ".join(" ".join(page.words).split())
    assert "60 tasks decided in" in words
    assert {row[1] for row in ROWS} <= set(page.words)
    assert re.search(r"wrong on 10 tasks whose truth was sent later \d+\.\d% \(", words)
    assert len(page.all("img")) == 3 and all(image["alt"] for image in page.all("img"))
    assert all(header.get("scope") for header in page.all("th"))


def test_the_report_asks_for_nothing_from_elsewhere_and_runs_nothing():
    source, page = report("animals")
    assert not page.all("script") and not page.all("link") and not page.all("a")
    assert all(image["src"].startswith("data:image/svg+xml;base64,") for image in page.all("img"))
    [policy] = [m["content"] for m in page.all("meta") if "http-equiv" in m]
    style = re.search(r"<style>(.*?)</style>", source, re.DOTALL)[1]
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_names_are_shown_in_the_report_as_they_were_typed():
    source, page = report(EVIL)
    assert EVIL not in source
    assert {EVIL, EVIL + "t", EVIL + "w", EVIL + "c"} <= set(page.words)
    assert len(page.all("img")) == 3 and not any("onerror" in tag for _, tag in page.tags)


def test_a_report_of_what_is_not_there_is_refused():
    said = run("report", "empty", *STORE, "-o", "none.html", code=1)
    assert "has decided nothing yet" in said.stderr
    assert not Path("none.html").exists()
