"""Input that is poison: refused by row or kept as documented, and the model stays finite."""

import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from faults.source import CLASSES, RULES, labels_of, opened, table_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labelquorum.errors import LabelError
from labelquorum.store.learner import LocalLearner
from labelquorum.store.store import Store

pytestmark = pytest.mark.kill

NAN = float("nan")
AT_ONCE = RULES.changed(labels_per_item=1, chunk_items=1)
GOOD = st.tuples(
    st.sampled_from(["t1", "t2", "t3"]), st.sampled_from(["w1", "w2"]), st.sampled_from(CLASSES)
)
BAD = st.one_of(
    st.tuples(st.just("t1"), st.just("w1"), st.sampled_from([NAN, None, "z", "", 7, True, "A"])),
    st.tuples(st.sampled_from([NAN, None, ""]), st.just("w1"), st.sampled_from(CLASSES)),
    st.tuples(st.just("t1"), st.sampled_from([NAN, None, ""]), st.sampled_from(CLASSES)),
)
ODD = st.one_of(
    st.lists(GOOD, max_size=6),
    st.lists(st.one_of(GOOD, BAD), max_size=6),
    st.lists(st.tuples(st.just("t1"), st.just("w1"), st.just("a")), max_size=3),  # one of each
)


def frame(rows):
    return pd.DataFrame(rows, columns=["task", "worker", "label"], dtype=object)


def assert_finite_model(stream):
    """All numbers of the model; a label without a score has NaN in its place."""
    for name, array in stream.snapshot().arrays.items():
        if array.dtype.kind == "f" and not name.endswith("score"):
            assert np.isfinite(array).all(), name


def assert_finite(stream):
    assert_finite_model(stream)
    for given_ in stream.answers():
        assert np.isfinite(given_.probs).all()
        assert math.isclose(given_.probs.sum(), 1, rel_tol=1e-4)
    assert {chunk["state"] for chunk in stream.chunks()} <= {"applied"}


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    with Store.open(tmp_path_factory.mktemp("poison")) as store:
        yield store


quiet = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@quiet
@given(tables=st.lists(ODD, min_size=1, max_size=3), skip=st.booleans())
def test_odd_tables_are_refused_by_row_or_leave_the_model_finite(house, tables, skip):
    name = f"s{len(house.streams())}"
    stream = house.create(name, rules=AT_ONCE, classes=CLASSES, on_bad="skip" if skip else "error")
    for rows in tables:
        before = stream.count()
        try:
            receipt = stream.accept(frame(rows))
        except LabelError as error:
            assert not skip
            assert "row" in str(error) or "line" in str(error)
            assert stream.count() == before
        else:
            assert receipt.accepted + receipt.late + sum(receipt.skipped.values()) == len(rows)
            stream.settle()
    stream.settle(flush=True)
    assert_finite(stream)


@pytest.mark.parametrize(
    "rows",
    [
        [("t", "w", "a")],
        [("t", f"w{n}", "a") for n in range(50)],
        [(f"t{n}", "w", "a") for n in range(50)],
        [(f"t{n}", "w", CLASSES[n % 3]) for n in range(50)],
        [("t", f"w{n}", CLASSES[n % 3]) for n in range(300)],
    ],
    ids=["one label", "one class", "one worker", "one worker, all classes", "one item"],
)
def test_a_stream_of_one_kind_only_stays_finite(house, rows):
    stream = house.create(f"s{len(house.streams())}", rules=RULES, classes=CLASSES)
    for _ in range(2):
        stream.accept(frame(rows))
        stream.settle(flush=True)
    assert_finite(stream)


@pytest.mark.parametrize("weight", [NAN, math.inf, -1.0, 0.0, 5e-324, 1e-30, 1e30, 1e308])
def test_weights_beyond_all_measure_are_refused_or_leave_the_model_finite(house, weight):
    stream = house.create(f"s{len(house.streams())}", rules=RULES, classes=CLASSES)
    rows = labels_of(8)
    table = frame(rows).assign(weight=[weight, *[1.0] * (len(rows) - 1)])
    try:
        stream.accept(table)
    except LabelError as error:
        assert "weight" in str(error)
        assert stream.count()["waiting_labels"] == 0
    stream.settle(flush=True)
    stream.accept(frame(labels_of(8, seed=6)))
    assert stream.settle(flush=True)
    assert_finite_model(stream)
    assert all(np.isfinite(one.probs).all() for one in stream.answers())


class Choking:
    """A learner that cannot stand some items."""

    def __init__(self, how):
        self.how, self.tried = how, 0

    def configure(self, *arguments):
        return LocalLearner().configure(*arguments)

    def learn(self, work):
        outcome = LocalLearner().learn(work)
        if not any("poison" in item for item in outcome.answers.item):
            return outcome
        self.tried += 1
        raise self.how


@pytest.mark.parametrize(
    "how", [ValueError("no"), MemoryError(), RecursionError(), FloatingPointError("nan"), OSError()]
)
def test_a_chunk_that_fails_thrice_is_set_aside_and_the_stream_goes_on(tmp_path, how):
    learner = Choking(how)
    with Store.open(tmp_path, learner=learner) as store:
        stream = opened(store)
        rows = labels_of(12)
        bad = [("poison", f"w{n}", "a") for n in range(3)]
        stream.accept(table_of([*rows[:24], *bad, *rows[24:]]))
        stream.settle(flush=True)
        states = [chunk["state"] for chunk in stream.chunks()]
        assert states.count("quarantined") == 1
        assert states.count("applied") == len(states) - 1 > 1
        assert learner.tried == 3
        assert not any(one.item_id == "poison" for one in stream.answers())
        [quarantined] = [one for one in stream.chunks() if one["state"] == "quarantined"]
        assert type(how).__name__ in quarantined["error"]
        assert_finite_model(stream)
    with Store.open(tmp_path, learner=learner) as store:
        stream = store.stream("s")
        stream.accept(table_of([(f"u{n}", f"w{m}", "b") for n in range(4) for m in range(3)]))
        assert len(stream.settle()) == 1


FLOOD = """
import sys
from labelquorum.errors import LimitError
from labelquorum.ingest.labels import LabelTable
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

folder, n_workers, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def peak():  # of this program; what getrusage tells is also of the process that has started it
    [line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024

with Store.open(folder) as store:
    stream = store.stream("s")
    stream.accept(LabelTable(["t"], ["w"], ["a"]))
    before, refused, size = peak(), 0, 5000
    for start in range(0, n_workers, size):
        names = [f"w{n}" for n in range(start, start + size)]
        try:
            stream.accept(LabelTable(names, names, ["a"] * size))
        except LimitError as error:
            assert "max_workers" in str(error)
            refused += 1
    known = stream.count()["waiting_labels"]
    print(peak() - before, refused, known)
"""


def test_a_flood_of_new_workers_is_refused_and_takes_little_memory(tmp_path, size, record_property):
    most, n_workers = size(50_000, 100_000), size(300_000, 1_000_000)
    with Store.open(tmp_path) as store:
        opened(store, RULES.changed(max_workers=most))
    reply = subprocess.run(
        [sys.executable, "-c", FLOOD, str(tmp_path), str(n_workers), str(most)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert reply.returncode == 0, reply.stderr
    megabytes, refused, known = map(int, reply.stdout.split())
    record_property("new workers", n_workers)
    record_property("requests refused", refused)
    record_property("MB more", megabytes)
    assert known <= most + 1
    assert refused == (n_workers - most) // 5000 + 1
    assert megabytes < 300
