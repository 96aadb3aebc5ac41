"""What the demo found, in words: errors beside the limit, and every worker beside what he is."""

from io import StringIO
from math import isnan
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labelquorum.client import Client
from labelquorum.demo.crowd import CLASSES, WORKERS, Scene
from labelquorum.demo.feeder import GOLD_EVERY
from labelquorum.evaluation.simulate.crowds import oracle

__all__ = ["Errors", "errors_of", "summary"]

WIDTH = 100


class Errors(NamedTuple):
    """How many of the decided tasks each method got wrong; those whose truth was told are out."""

    n_items: int
    wrong: dict[str, int]


def errors_of(scene: Scene, labels: Any, sent: int, seed: int = 0) -> Errors:
    """Hold what was decided against the truth, beside a vote and an oracle on the same labels.

    Parameters
    ----------
    labels
        What was decided, a Series by task.
    sent
        So many labels, in order of arrival, are known to all methods.
    """
    rows = scene.arrivals.row[:sent]
    full = scene.crowd
    crowd = full._replace(item=full.item[rows], worker=full.worker[rows], label=full.label[rows])
    place = {task: i for i, task in enumerate(scene.tasks)}
    items = np.array([place[task] for task in labels.index], np.intp)
    kept = items % GOLD_EVERY != 0
    items = items[kept]
    said = labels.map(CLASSES.index).to_numpy()[kept]
    votes = np.zeros((full.truth.size, len(CLASSES)))
    np.add.at(votes, (crowd.item, crowd.label), 1.0)
    votes += np.random.default_rng(seed).random(votes.shape) / 2  # who is level draws lots
    answers = {"BiLA": said, "majority vote": votes.argmax(axis=1)[items]}
    answers["oracle"] = oracle(crowd)[items]
    truth = full.truth[items]
    return Errors(len(items), {name: int((a != truth).sum()) for name, a in answers.items()})


def summary(client: Client, stream: str, scene: Scene, sent: int) -> str:
    """Write the summary of a demo, as it stands now."""
    decided = client.items(stream)["label"]
    if decided.empty:
        return "Nothing was decided: the demo was stopped before its first chunk.\n"
    found = errors_of(scene, decided, sent)
    counts = client.stream(stream)["counts"]
    lines = [
        f"{sent:,} labels of {len(WORKERS)} workers came in; {len(decided):,} tasks are decided, "
        f"{counts['waiting_items']:,} wait for more labels.",
        f"Of {found.n_items:,} decided tasks whose truth nobody told, BiLA got "
        f"{found.wrong['BiLA']:,} wrong, the majority vote {found.wrong['majority vote']:,}, and "
        f"an oracle that knows every worker's habits {found.wrong['oracle']:,}.",
        "",
    ]
    page = StringIO()
    console = Console(file=page, width=WIDTH, highlight=False)
    console.print("\n".join(lines), soft_wrap=True)
    console.print(_worker_table(client.workers(stream), scene))
    return page.getvalue()


def _worker_table(workers: Any, scene: Scene) -> Table:
    """Every worker as estimated, the worst first, beside what is true of them."""
    crowd = scene.crowd
    assert crowd.cast is not None
    right, later = (
        np.diagonal(matrices, axis1=1, axis2=2) @ crowd.class_prior
        for matrices in (crowd.confusion, crowd.cast.later)
    )
    table = Table(box=SIMPLE_HEAD, title="The workers, the worst first", title_justify="left")
    for name in ("worker", "behaviour", "true skill", "estimated skill", "labels", "flags"):
        is_number = name in ("true skill", "estimated skill", "labels")
        table.add_column(name, justify="right" if is_number else "left")
    for worker, row in workers.sort_values("skill", kind="stable").iterrows():
        k = WORKERS.index(str(worker))
        changed = abs(right[k] - later[k]) > 0.01
        skill = f"{right[k]:.0%}, then {later[k]:.0%}" if changed else f"{right[k]:.0%}"
        bounds = (
            ""
            if row["low"] is None or isnan(row["low"])
            else f" ({row['low']:.0%}–{row['high']:.0%})"
        )
        cells = (
            str(worker),
            scene.kinds[k],
            skill,
            f"{row['skill']:.0%}{bounds}",
            f"{row['labels']:,}",
            str(row["flags"]).replace("_", " "),
        )
        table.add_row(*map(Text, cells))
    return table
