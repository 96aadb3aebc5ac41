"""Learning keeps up with what is accepted, also in small chunks."""

import signal

import pytest
from faults import source
from faults.load import RULES, Load
from faults.service import running

from labelquorum.store.store import Store

pytestmark = pytest.mark.kill


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_small_chunks_are_learned_as_fast_as_labels_are_accepted(
    request, tmp_path, size, record_property, kind
):
    where = str(tmp_path / "store") if kind == "sqlite" else request.getfixturevalue("database")
    with running(where) as service:
        with service.client() as http:
            made = {"name": "s", "settings": {"classes": source.CLASSES}, "rules": RULES}
            http.post("/v1/streams", json=made).raise_for_status()
        load = Load(service, where, "s")
        load.send(size(0.2, 5))  # the first chunk takes its time
        found = load.send(size(1.5, 60))
        refused = load.refused
        load.close()
        service.end(signal.SIGTERM)
    for name, figure in {**found, "refused": refused}.items():
        record_property(name, round(figure, 3))
    # What is sent waits for learning at a lag of 40 chunks; those are soon learned from.
    assert found["seconds until learned"] < 10 and not refused
    if size(True, False):  # as long a replay as the run itself
        with Store.open(where) as store:
            stream = store.stream("s")
            stream.settle(flush=True)
            chunks, state = source.recorded(store), stream.state_hash()
        assert source.replayed(chunks, tmp_path / "again", None) == state
    # One by one, a commit has one chunk, and two versions are seldom missed between two looks.
    assert found["chunks behind at the last label"] < 10 or found["chunks per commit"] > 2.5
