"""The recorded streams of the goldens, in PostgreSQL; `test_goldens.py` has them in SQLite.

And stores and model files that earlier versions wrote: see `fixtures/README.md`.
"""

import gc
import gzip
import json
from pathlib import Path

import golden_parts
import goldens
import pytest
from store.conftest import store_on
from store.fixtures import made

import labelquorum as lq
from labelquorum.store.backup import restore
from labelquorum.store.check import examine_store
from labelquorum.store.store import Store

FIXTURES = Path(__file__).parent / "fixtures"
where = store_on("sqlite", "postgresql")


@pytest.fixture(scope="module", params=["before_held_labels", "before_attributes"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def recorded(name):
    return json.loads((FIXTURES / f"{name}.json").read_text())


def test_a_store_of_an_earlier_version_keeps_rules_answers_and_hashes(
    where, tmp_path, name, recorded
):
    backup = tmp_path / "backup"
    backup.write_bytes(gzip.decompress((FIXTURES / f"{name}.backup.gz").read_bytes()))
    restore(backup, where)
    with Store.open(where, lambda: recorded["clock"]) as store:
        streams = [store.stream(name) for name in store.streams()]
        for stream in streams:
            found, expected = made.state(stream), recorded["before"][stream.name]
            assert found == expected
        for stream in streams:
            assert made.go_on(stream) == recorded["after"][stream.name]
    assert not [one for one in examine_store(where) if one.name == "broken"]


def test_a_store_of_an_earlier_version_takes_scores_and_attributes(where, tmp_path, recorded):
    backup = tmp_path / "backup"
    backup.write_bytes(gzip.decompress((FIXTURES / "before_attributes.backup.gz").read_bytes()))
    restore(backup, where)
    with Store.open(where, lambda: recorded["clock"]) as store:
        stream = store.stream("kept")
        rows = [
            {"task": task, "worker": worker, "label": label, "score": 0.5, "model": f"m{worker}"}
            for task, labels in made.MORE.items()
            for worker, label in labels.items()
        ]
        stream.accept(rows)
        stream.settle(flush=True)
        assert stream.worker("eve")["model"] == "meve" and "model" not in stream.worker("ann")


def test_a_model_file_of_an_earlier_version_says_what_it_said(name, recorded):
    found = json.loads(json.dumps(made.predicted(lq.load(FIXTURES / f"{name}.lq"))))
    assert found == recorded["model"]


# The export of workers over HTTP asks for columns alone and leaves its cursor open.
@pytest.mark.filterwarnings("ignore:<psycopg.ServerCursor:ResourceWarning")
def test_postgresql_does_what_was_recorded(database):
    goldens.read()  # says what to do where nothing was recorded
    found = goldens.check("postgresql", golden_parts.on_postgresql(database))
    gc.collect()
    assert [line for lines in found.values() for line in lines] == []
