"""CONTRIBUTING shows the way of a label as it is: one real call of each kind is traced."""

import re
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from server.served import serving, until

import labelquorum as lq

ROOT = Path(__file__).parent.parent
SOURCE = f"{Path(lq.__file__).parent}/"


def stations():
    """The two pictures: (module, function) of each station."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    part = re.search(r"^## The path of a label\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)[1]
    pictures = re.findall(r"^```\n(.*?)^```", part, re.DOTALL | re.MULTILINE)
    return [re.findall(r"^ *\d+  (\S+\.py) +(\w+)", picture, re.M) for picture in pictures]


POST, PARTIAL_FIT = stations()


@contextmanager
def tracing():
    """Collect the functions of labelquorum in the order in which they are first entered."""
    entered = {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE):
            entered.setdefault((code.co_filename.removeprefix(SOURCE), code.co_name), len(entered))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def packages(modules):
    return {module.split("/")[0] for module in modules}


def check(shown, entered):
    assert [station for station in shown if station not in entered] == []
    places = [entered[station] for station in shown]
    assert places == sorted(places), sorted(shown, key=entered.get)
    assert packages(module for module, _ in entered) == packages(module for module, _ in shown)


@pytest.fixture(scope="module")
def posted(tmp_path_factory):
    """What a service enters from a POST to the consensus; its threads start under the trace."""
    rules = {"labels_per_item": 2, "chunk_items": 2, "max_wait": None}
    labels = [{"task": t, "worker": w, "label": "owl"} for t in "ab" for w in "xy"]
    with tracing() as entered, serving(tmp_path_factory.mktemp("store")) as running:
        admin = running.client()
        admin.post("/v1/streams", json={"name": "birds", "rules": rules}).raise_for_status()
        entered.clear()
        admin.post("/v1/streams/birds/labels", json=labels).raise_for_status()
        until(lambda: admin.get("/v1/streams/birds/items").json()["items"])
        return dict(entered)


def test_the_picture_of_a_post_is_the_way_its_labels_take(posted):
    check(POST, posted)


def test_the_picture_of_partial_fit_is_the_way_its_labels_take():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"task": [1, 1, 2], "worker": list("aba"), "label": list("xyx")})
    model = lq.BiLA().partial_fit(table)  # the first chunk also imports and builds
    with tracing() as entered:
        model.partial_fit(table.assign(task=[3, 3, 4]))
    check(PARTIAL_FIT, entered)


def test_the_pictures_are_short():
    assert 0 < len(POST) <= 12
    assert 0 < len(PARTIAL_FIT) <= 7


def test_a_picture_in_another_order_is_noticed():
    entered = {("a/x.py", "f"): 0, ("b/y.py", "g"): 1}
    check([("a/x.py", "f"), ("b/y.py", "g")], entered)
    for wrong in ([("b/y.py", "g"), ("a/x.py", "f")], [("a/x.py", "f")], [("a/x.py", "h")]):
        with pytest.raises(AssertionError):
            check(wrong, entered)
