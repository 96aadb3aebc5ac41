"""Killed at every named point and from outside: nothing lost, nothing doubled, the same state."""

from collections import Counter
from itertools import count

import pytest
from faults.kills import WAYS

# Both modes together: more than 100 kills of a stream in SQLite.
KILLS = {("settled", "sqlite"): 60, ("free", "sqlite"): 50}
KILLS |= {("settled", "postgresql"): 18, ("free", "postgresql"): 18}


@pytest.mark.parametrize(("mode", "kind"), KILLS)
def test_a_stream_killed_again_and_again_loses_and_doubles_nothing(
    request, arena, tmp_path, mode, kind
):
    kills = Counter()
    for seed in count():
        where = tmp_path / f"{seed}" if kind == "sqlite" else request.getfixturevalue("database")
        checked = arena.killed(where, seed, mode, n_items=40, grace=1e9 * (seed % 2))
        assert (checked.lost, checked.doubled, checked.equal) == (0, 0, True), seed
        kills.update(checked.kills)
        if kind == "postgresql" or kills.total() >= KILLS[mode, kind]:
            break
    assert kills.total() >= 1
    if kind == "sqlite":
        assert set(kills) == set(WAYS)
