"""What needs a person, in plain words, and by which rule."""

from collections.abc import Iterator, Sequence
from typing import Any

from labelquorum.store.rules import Rules
from labelquorum.store.stats import DEPTH, StreamStats

__all__ = ["alarms"]

BEHIND = 10
"""So many chunks may wait to be learned from."""

GREW = 3
"""By so many more than a minute ago."""

LABELS = 2.0
"""So many labels an item should have at the least, on average."""

FEWER = 0.05
"""Such a share of the items of late may have fewer labels than are wanted."""

STILL = 3600.0
"""Seconds without a chunk after which items are not those of late any more."""

ITEMS = 20
"""Items of late without which nothing is said about how many labels they have."""

SHOWN = 5
"""Of workers and classes so many are named."""

Warned = dict[str, Any]


def alarms(
    tally: StreamStats,
    rules: Rules,
    behind: int,
    grew: int,
    quarantined: Sequence[int],
    turned: Sequence[Warned],
    healthy: bool,
    now: float,
) -> list[Warned]:
    """What needs a person, the gravest first.

    Parameters
    ----------
    behind, grew
        Chunks that wait to be learned from, and by how many more than a minute ago.
    quarantined
        Chunks that could not be learned from.
    turned
        Workers who are drifting: worker, says, since.
    healthy
        Whether the store takes labels.
    now
        Seconds since 1970.
    """
    found = [*_of_service(behind, grew, quarantined, healthy)]
    for lost in tally.lost()[:SHOWN]:
        says = (
            f"{lost.label!r} was {lost.share:.0%} of the answers until chunk {lost.since}, and "
            f"none of the {lost.answers:,} since. Look at the tasks that come, or at who labels."
        )
        found.append(
            {
                "code": "class_vanished",
                "says": says,
                "since": lost.since,
                "label": lost.label,
            }
        )
    for one in turned[:SHOWN]:
        says = one["says"]
        told = {**one, "says": f"Worker {one['worker']}: {says[:1].lower()}{says[1:]}"}
        found.append({"code": "worker_turned", **told})
    if tally.moved_at is None or now - tally.moved_at <= STILL:
        found += _of_depth(tally.depth, rules)
    return found


def _of_service(
    behind: int, grew: int, quarantined: Sequence[int], healthy: bool
) -> Iterator[Warned]:
    if not healthy:
        yield {
            "code": "store",
            "says": "The store does not take labels at the moment. Look at its disk, or its "
            "database; what was acknowledged is safe.",
        }
    if behind > BEHIND or grew >= GREW:
        more = f", {grew} more than a minute ago" if grew > 0 else ""
        says = (
            f"Learning is {behind} chunks behind{more}. Answers come late; larger chunks, or fewer "
            "labels at a time, would help."
        )
        yield {"code": "lag", "says": says}
    if quarantined:
        n = len(quarantined)
        which = f"Chunk {quarantined[0]}" if n == 1 else f"{n} chunks"
        says = (
            f"{which} could not be learned from, and {'is' if n == 1 else 'are'} set aside with "
            "the labels. The reason is with the chunk."
        )
        yield {"code": "quarantined", "says": says, "since": quarantined[0]}


def _of_depth(depth: Sequence[int], rules: Rules) -> Iterator[Warned]:
    n_items = sum(depth)
    if n_items < ITEMS:
        return
    mean = sum(n * items for n, items in enumerate(depth)) / n_items
    wanted = min(rules.labels_per_item, DEPTH)
    fewer = sum(depth[:wanted])
    if mean < LABELS:
        says = (
            f"The last {n_items:,} tasks have {mean:.1f} labels each. With less than {LABELS:g} "
            "nobody can tell who is right; ask more workers for each task."
        )
        yield {"code": "few_labels", "says": says}
    elif fewer > FEWER * n_items:
        says = (
            f"{fewer:,} of the last {n_items:,} tasks have fewer than the "
            f"{rules.labels_per_item} labels that are wanted, for they had waited long enough."
        )
        yield {"code": "few_labels", "says": says}
