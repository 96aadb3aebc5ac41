"""Make the pictures of the pages again: two of the demo's crowd, and the dashboard's pages.

    python3 run.py python docs/pictures.py

All show simulated people. The first two are the same whenever they are drawn; the others are taken
of a running demo, so their numbers differ a little.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import labelquorum as lq
from labelquorum.demo.crowd import CLASSES, KINDS, WORKERS, Scene, simulate
from labelquorum.evaluation import (
    label_table,
    oracle,
    plot_confusion,
    plot_error_along_stream,
    stream,
)

IMAGES = Path(__file__).resolve().parent / "images"
N_ITEMS, CHUNK_ITEMS = 10_000, 50
SHOWN = ("stream", "item", "workers", "worker", "ask", "stream-dark", "stream-phone")
"""The pages that are shown, out of all the demo takes."""
MOST_BYTES = 200_000


def draw_error(scene: Scene) -> None:
    """Draw the error along the stream of BiLA, the vote and the oracle."""
    crowd = scene.crowd
    table, truth = label_table(crowd, text_ids=False), dict(enumerate(crowd.truth.tolist()))
    makers = {"BiLA": lambda: lq.BiLA(classes=[0, 1, 2, 3]), "majority vote": lq.MajorityVote}
    curves = {
        name: stream(make, table, truth, chunk_items=CHUNK_ITEMS).curve
        for name, make in makers.items()
    }
    items = curves["BiLA"][:, 0].astype(int).tolist()
    errors = {name: curve[:, 1].tolist() for name, curve in curves.items()}
    wrong = np.cumsum(oracle(crowd) != crowd.truth)
    errors["oracle"] = [wrong[n - 1] / n for n in items]
    plot_error_along_stream(IMAGES / "error.png", errors, items)


def draw_confusion(scene: Scene) -> None:
    """Draw what BiLA learns about one worker of each kind."""
    crowd = scene.crowd
    table = label_table(crowd, text_ids=False)
    table = table._replace(
        worker_ids=[WORKERS[k] for k in crowd.worker], labels=[CLASSES[z] for z in crowd.label]
    )
    model = lq.BiLA(classes=CLASSES).fit(table)
    place = {worker: k for k, worker in enumerate(model.workers_)}
    chosen = [scene.of_kind(kind.name)[0] for kind in KINDS]
    plot_confusion(
        IMAGES / "confusion.png",
        model.confusion_[[place[worker] for worker in chosen]],
        [kind.name for kind in KINDS],
        CLASSES,
        columns=5,
        skills=[model.skills_[worker] for worker in chosen],
        title="What BiLA learned about one worker of each kind",
    )


def take_dashboard() -> None:
    """Run the demo headless, and keep some of its pictures."""
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "labelquorum", "demo", "--headless", "--output", folder]
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
        for name in SHOWN:
            [taken] = Path(folder).glob(f"[0-9][0-9]-{name}.png")
            size = taken.stat().st_size
            if size > MOST_BYTES:
                raise SystemExit(f"{taken.name} has {size:,} bytes, more than {MOST_BYTES:,}.")
            (IMAGES / f"dashboard-{name}.png").write_bytes(taken.read_bytes())


PICTURES = {"error": draw_error, "confusion": draw_confusion}


def main(arguments: list[str] | None = None) -> None:
    """Make the pictures that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pictures", nargs="*", help="error, confusion, dashboard; all unless given")
    wanted = parser.parse_args(arguments).pictures or [*PICTURES, "dashboard"]
    scene = simulate(N_ITEMS, rate=60.0, turn=0.5)
    for name in wanted:
        if name == "dashboard":
            take_dashboard()
        else:
            PICTURES[name](scene)


if __name__ == "__main__":
    main()
