"""Killed at every named point and from outside: nothing lost, nothing doubled, the same state."""

from collections import Counter
from itertools import count

import pytest
from faults.kills import WAYS

from labelquorum.store.failpoints import GOLD_POINTS

pytestmark = pytest.mark.kill

# Kills in CI and in a long run. In CI, more than 100 of a stream in SQLite.
KILLS = {
    ("settled", "sqlite"): (60, 1200),
    ("free", "sqlite"): (50, 900),
    ("settled", "postgresql"): (20, 130),
    ("free", "postgresql"): (20, 90),
}


@pytest.mark.parametrize(("mode", "kind"), KILLS)
def test_a_stream_killed_again_and_again_loses_and_doubles_nothing(
    arena, tmp_path, databases, size, record_property, mode, kind
):
    kills, labels, lost, doubled = Counter(), 0, 0, 0
    for seed in count():
        where = tmp_path / f"{seed}" if kind == "sqlite" else databases()
        checked = arena.killed(where, seed, mode, n_items=40, grace=1e9 * (seed % 2))
        kills.update(checked.kills)
        labels, lost = labels + checked.labels, lost + checked.lost
        doubled += checked.doubled
        assert (lost, doubled, checked.equal) == (0, 0, True), seed
        if kills.total() >= size(*KILLS[mode, kind]) and set(kills) == set(WAYS):
            break
    database = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}[kind]
    figures = {f"kills in {database}": kills.total(), "streams": seed + 1, "labels": labels}
    figures |= {"lost": lost, "doubled": doubled}
    figures |= {f"kills at {way}": kills[way] for way in WAYS}
    for name, value in figures.items():
        record_property(name, value)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_stream_with_gold_scores_and_models_answers_as_one_that_was_never_killed(
    arena, tmp_path, databases, record_property, kind
):
    *_, learned = arena.uninterrupted(40, "gold")
    assert learned["tasks"] >= 10 and learned["fitted"] >= 10
    kills, ways = Counter(), (*WAYS, *GOLD_POINTS)
    for seed in count():
        where = tmp_path / f"{seed}" if kind == "sqlite" else databases()
        checked = arena.killed(where, seed, "gold", ways, n_items=40)
        kills.update(checked.kills)
        assert (checked.lost, checked.doubled, checked.equal) == (0, 0, True), seed
        if set(kills) == set(ways):
            break
    database = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}[kind]
    record_property(f"kills in {database}", kills.total())
