"""`labelquorum datasets`, as a person or a script would use it."""

import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labelquorum.cli import app
from labelquorum.evaluation import known_datasets
from labelquorum.evaluation.datasets import download
from labelquorum.evaluation.datasets.load import DATA_VARIABLE, TOY

KNOWN = known_datasets()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    (tmp_path / "data" / "mine").mkdir(parents=True)
    (tmp_path / "data" / "mine" / "labels.csv").write_text("task,worker,label\n1,a,x\n1,b,y\n")
    return tmp_path / "data"


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["datasets", *arguments])
    assert result.exit_code == code, result.output
    return result


def rows(text):
    """The rows of the table, cell by cell, below its header."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines()[3:] if line.strip()}


def test_without_a_folder_everything_known_is_listed_and_the_toy_is_there():
    said = run()
    found = rows(said.stdout)
    assert set(found) == set(KNOWN)
    assert found["toy"] == ["yes", "3", "4", "12", "2", "4", "Apache-2.0"]
    assert found["rte"][:5] == ["164", "800", "8,000", "2", "800"]
    assert "arrival" in found["metaphor_novelty"]
    assert found["age"][-1] == "unknown"
    assert "Pass --data, or set LABELQUORUM_DATA" in said.stderr


def test_what_is_in_the_folder_besides_is_your_own(folder):
    said = run("--data", "data")
    assert rows(said.stdout)["mine"] == ["own", "2", "1", "2", "2", "0"]
    assert "set LABELQUORUM_DATA" not in said.stderr


def test_the_list_says_how_what_is_absent_can_be_had(folder):
    names = [
        *("cifar10n", "toloka_search_relevance", "trec2011_delft", "llmbar_natural"),
        *(f"llmbar_adversarial_{kind}" for kind in ("manual", "neighbor", "gptinst")),
        *("llmbar_one_prompt", "care_civilcomments", "valence5", "paclabels_stance"),
    ]
    by_hand = f"Put the files there yourself: {', '.join(names)}."
    reply = run("--data", "data").stderr.splitlines()
    assert reply == [
        "To get sets that are not here: labelquorum datasets --download NAME…",
        by_hand,
        "Data not available, not public: age, heart.",
    ]
    for name in KNOWN:
        (folder / name).mkdir()
        (folder / name / "truth.csv").write_text("task,label\n")
    assert run("--data", "data").stderr == ""


def test_the_variable_names_the_folder(folder, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    assert "mine" in rows(run().stdout)
    (folder / "web").mkdir()
    (folder / "web" / "truth.csv").write_text("task,label\n1,5\n")
    assert rows(run().stdout)["web"][0] == "yes"


def test_a_set_of_yours_that_is_broken_is_listed_and_its_line_named(folder):
    (folder / "mine" / "labels.csv").write_text("task,worker,label\n1,a,\n")
    said = run("--data", "data")
    assert rows(said.stdout)["mine"] == ["own", "?", "?", "?", "?", "?"]
    assert "labels.csv line 2" in said.stderr
    said = run("mine", "--data", "data", code=1)
    assert said.stdout == "" and "labels.csv line 2" in said.stderr


def test_the_list_as_json_has_every_fact(folder):
    facts = {fact["name"]: fact for fact in json.loads(run("--data", "data", "--json").stdout)}
    assert set(facts) == {*KNOWN, "mine"}
    joy = facts["snow_joy"]
    assert joy["family"] == "snow_emotions" and "snow_fear" in joy["relatives"]
    assert joy["expected"] == {
        "workers": 38,
        "items": 100,
        "labels": 1000,
        "classes": 2,
        "truth": 100,
    }
    assert joy["sources"][0].startswith("https://github.com/") and joy["folder"] is None
    assert facts["mine"]["known"] is False
    assert facts["mine"]["found"]["labels"] == 2
    assert facts["mine"]["folder"] == str(Path("data/mine"))


def test_one_set_is_told_in_full():
    said = run("adult", "toy").stdout
    for word in ("HCOMP 2010", "Apache 2.0", "https://github.com/ipeirotis", "with adult2_gold"):
        assert word in said
    assert "--download adult" in said
    assert "found     3 workers, 4 items, 12 labels, 2 classes, truth of 4 items" in said
    assert "counts and checksums are right" in said and str(TOY) in said


def test_what_nobody_offers_is_said_to_be_not_available(folder):
    said = " ".join(run("age", "--data", "data").stdout.split())
    assert "Data not available: age is not public. If you own it, put labels.csv" in said
    assert f"into {Path('data/age')}" in said
    assert "Put labels.csv and truth.csv into DIR/cifar10n yourself" in run("cifar10n").stdout


def test_an_unknown_name_gives_its_nearest_neighbours(folder):
    said = run("adlt", code=1)
    assert said.stdout == ""
    assert "no data set 'adlt'. The nearest are 'adult'" in said.stderr
    assert "'mine'" in run("mina", "--data", "data", code=1).stderr


def test_a_folder_that_is_not_there_is_named():
    assert "'nowhere', which is no folder" in run("--data", "nowhere", code=1).stderr


def test_check_says_what_is_right_and_what_is_not(folder):
    assert run("--check", "--data", "data").stdout == "toy: ok\nmine: ok\n"
    (folder / "toy").mkdir()
    (folder / "toy" / "labels.csv").write_text("task,worker,label\n1,a,x\n")
    (folder / "mine" / "labels.csv").write_text("task,worker,label\n1,a,\n")
    said = run("--check", "--data", "data", code=1).stdout.splitlines()
    assert "toy: 3 workers were expected. Got 1." in said[0] and "SHA-256" in said[0]
    assert "labels.csv line 2" in said[1]
    [reply] = json.loads(run("--check", "--json", "toy", "--data", "data", code=1).stdout)
    assert reply["name"] == "toy" and len(reply["wrong"]) == 6
    assert "no data set 'rte'" in run("--check", "rte", "--data", "data", code=1).stdout


class Response(io.BytesIO):
    headers = {}  # noqa: RUF012


def test_download_asks_the_source_and_says_where_the_set_is(folder, monkeypatch):
    asked = []

    def urlopen(address, timeout):
        asked.append(address)
        return Response(b"labels" if "labels" in address else b"gold")

    monkeypatch.setattr(download, "urlopen", urlopen)
    said = run("--download", "adult2_all", "--data", "data", code=1)
    assert "nothing was written" in said.stderr
    base = "https://github.com/ipeirotis/Get-Another-Label/raw/HEAD/data/AdultContent2"
    assert asked == [f"{base}/labels.txt", f"{base}/gold.txt"]

    monkeypatch.setattr(
        download, "download_dataset", lambda name, root, progress: Path(root) / name
    )
    said = run("--download", "mine", "--data", "data")
    assert said.stderr == f"mine is in {Path('data/mine')}.\n"
    assert "mine, your own" in said.stdout


def test_download_without_a_name_or_a_folder_is_explained():
    assert "Name the data sets to get" in run("--download", code=2).stderr
    assert "set LABELQUORUM_DATA" in run("--download", "rte", code=1).stderr
