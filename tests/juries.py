"""Simulated juries for tests: judges who see every task and err together."""

import sys
from pathlib import Path

from labelquorum.evaluation import label_table

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "trust"))
from crowds import draw_jury

MISLED_SEED, SOUND_SEED = 1, 2


def jury_rows(seed, sound):
    """A jury's votes as rows, task by task, and the truth by task."""
    crowd = draw_jury(seed, sound=sound).crowd
    table = label_table(crowd)
    rows = list(zip(table.item_ids, table.worker_ids, table.labels, strict=True))
    tasks = dict.fromkeys(table.item_ids)
    return rows, dict(zip(tasks, crowd.truth.tolist(), strict=True))
