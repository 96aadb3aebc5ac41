"""Items found by a part of their ids and by their answers, in every order, on both databases."""

import itertools

import pytest

from labelquorum.errors import StateError
from labelquorum.store import search as search_module
from labelquorum.store.rules import Rules
from labelquorum.store.search import find_items, find_undecided

TASKS = ['say "owl"', "back\\slash", "OWL-7", 7, 77, "żółw", "100%", "a_b", "axb", "owl", "Owlet"]


@pytest.fixture
def stream(store):
    rules = Rules(labels_per_item=2, chunk_items=3, max_wait=None, max_chunk_wait=None)
    stream = store.create("s", classes=["a", "b"], rules=rules)
    for n, task in enumerate(TASKS):
        stream.accept({task: {"ann": "a" if n % 3 else "b", "bob": "a" if n % 2 else "b"}})
        stream.settle()
    stream.settle(flush=True)
    assert stream.count()["answered_items"] == len(TASKS)
    return stream


def walk(stream, limit, **wanted):
    """All pages of a search."""
    found, after = [], None
    for _ in range(100):
        page = find_items(stream, after=after, limit=limit, **wanted)
        found += page.items
        after = page.next
        if after is None:
            return found
    raise AssertionError("it comes to no end")


ORDERS = {
    "task": lambda one: 0,
    "confidence": lambda one: one.confidence,
    "-confidence": lambda one: -one.confidence,
    "newest": lambda one: -one.chunk,
}


@pytest.mark.parametrize("sort", ORDERS)
@pytest.mark.parametrize("window", [search_module.WINDOW, 2])
def test_every_order_gives_every_item_once(stream, sort, window, monkeypatch):
    monkeypatch.setattr(search_module, "WINDOW", window)
    everything = {one.item_id: one for one in stream.answers()}
    for limit, wanted in itertools.product((1, 4, 50), ({}, {"label": "a"}, {"search": "o"})):
        if window == 2 and "search" in wanted:
            continue  # of many items those whose ids begin so: see below
        found = walk(stream, limit, sort=sort, **wanted)
        ids = [one.item_id for one in found]
        assert len(ids) == len(set(ids))
        assert set(ids) == {
            item
            for item, one in everything.items()
            if one.label == wanted.get("label", one.label)
            and wanted.get("search", "") in str(item).lower()
        }
        keys = [ORDERS[sort](one) for one in found]
        assert keys == sorted(keys)
        assert all(everything[one.item_id].label == one.label for one in found)


def found(stream, search, **wanted):
    page = find_items(stream, search=search, **wanted)
    assert page.total is None or page.total == len(page.items)
    return {one.item_id for one in page.items}


def test_a_part_of_an_id_is_taken_as_it_is(stream):
    assert found(stream, "owl") == {'say "owl"', "OWL-7", "owl", "Owlet"}
    assert found(stream, "OWL") == found(stream, "owl")
    assert found(stream, '"') == {'say "owl"'}
    assert found(stream, "\\") == {"back\\slash"}
    assert found(stream, "7") == {"OWL-7", 7, 77}
    assert found(stream, "%") == {"100%"} and found(stream, "_") == {"a_b"}
    assert found(stream, "ół") == {"żółw"} and found(stream, "\x00") == set()


def test_of_more_items_than_are_looked_through_those_come_whose_ids_begin_so(stream, monkeypatch):
    monkeypatch.setattr(search_module, "WINDOW", 5)
    assert found(stream, "owl") == {"owl"} and found(stream, "7") == {7, 77}
    assert found(stream, "OWL") == {"OWL-7"}
    assert found(stream, "7", sort="newest") == {7, 77}
    page = find_items(stream, search="lash", limit=3)  # nothing begins so
    assert page.total is None
    assert {one.item_id for one in walk(stream, 3, search="lash")} == {"back\\slash"}


def test_answers_are_found_by_confidence_and_change(stream):
    everything = stream.answers()
    middle = sorted(one.confidence for one in everything)[5]
    below = walk(stream, 2, confidence_below=middle, sort="-confidence")
    assert {one.item_id for one in below} == {
        one.item_id for one in everything if one.confidence < middle
    }
    later = walk(stream, 2, changed_since=2, search="o")
    assert {one.chunk for one in later} <= {3, 4} and later
    assert find_items(stream, changed_since=2).total == sum(one.chunk > 2 for one in everything)
    with pytest.raises(StateError, match="`sort` must be one of"):
        find_items(stream, sort="colour")


def test_what_waits_is_cut_or_is_set_aside_is_undecided(store):
    rules = Rules(labels_per_item=2, chunk_items=1, max_wait=None, grace=1e9)
    stream = store.create("s", classes=["a", "b"], rules=rules)
    stream.accept({"done": {"x": "a", "y": "a"}})
    stream.settle()
    stream.accept({"cut": {"x": "a", "y": "b"}})
    stream.cut()
    stream.accept({"waits": {"x": "a"}, "done": {"z": "b"}})  # the second is answered already
    reply = find_undecided(stream)
    assert [(one.item_id, one.n_labels, one.ready) for one in reply.items] == [
        ("cut", 2, True),
        ("waits", 1, False),
    ]
    assert reply.total == 2 and reply.next is None
    first = find_undecided(stream, limit=1)
    assert first.next == (None, "cut") and first.total == 2
    assert [one.item_id for one in find_undecided(stream, "cut").items] == ["waits"]
    assert [one.item_id for one in find_undecided(stream, search="AIT").items] == ["waits"]
    for _ in range(3):
        stream.failed(2, RuntimeError("it is poison"))
    assert [one.item_id for one in find_undecided(stream).items] == ["cut", "waits"]


def test_what_is_undecided_comes_by_page_each_once_and_is_counted_with_the_first(
    store, monkeypatch
):
    rules = Rules(labels_per_item=2, chunk_items=3, max_wait=None, max_chunk_wait=None)
    stream = store.create("s", classes=["a", "b"], rules=rules)
    for n in range(6):
        stream.accept({f"t{n}": {"ann": "a", "bob": "b"}})
    assert stream.cut() is not None and stream.cut() is not None
    stream.accept({f"t{n}5": {"ann": "a"} for n in range(6)})
    found, totals, after = [], [], None
    while not totals or after is not None:
        page = find_undecided(stream, after, 2)
        found += [one.item_id for one in page.items]
        totals.append(page.total)
        after = None if page.next is None else page.next[1]
    assert sorted(found) == sorted({*found}) and len(found) == 12
    assert found == sorted(found, key=lambda task: f'"{task}"')
    assert totals == [12, None, None, None, None, None]
    monkeypatch.setattr(search_module, "WINDOW", 11)
    assert find_undecided(stream, None, 2).total is None


def test_a_total_is_told_with_the_first_page_alone(stream):
    first = find_items(stream, limit=4)
    assert first.total == len(TASKS)
    assert find_items(stream, after=first.next, limit=4).total is None
