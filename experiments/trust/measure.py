"""Measure what can be trusted without gold: confidence, the guard, and the distance from the vote.

    LABELQUORUM_DATA=… python3 run.py python experiments/trust/measure.py

LABELQUORUM_DATA may name several folders, separated by `:`. The command writes
`results/measured.json` and the tables of `docs/trust.md`, which says what was chosen with which of
these crowds in view.
"""

import csv
import gzip
import json
import os
import sys
import warnings
from collections.abc import Hashable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from crowds import KINDS, draw_jury
from measure_report import (
    BINS,
    CHUNK_ITEMS,
    COMMAND,
    FIRST_JURY,
    N_CROWDS,
    N_JURIES,
    N_MORE_JURIES,
    PAGES,
    PLAN,
    SOUND,
    Found,
    Scores,
    summary,
)
from numpy.typing import NDArray

import labelquorum as lq
from labelquorum.demo.crowd import simulate
from labelquorum.evaluation import calibration_error, label_table, read_dataset
from labelquorum.ingest.labels import LabelTable

HERE = Path(__file__).parent
N_ORDERS, N_SAMPLES = 10, 20
BIG_ITEMS = 5000  # sets with more tasks are streamed in one order
FIRST_SEED = 1000
JURIES = (
    *("llmbar_natural", "llmbar_adversarial_manual", "llmbar_adversarial_neighbor"),
    *("llmbar_adversarial_gptinst", "llmbar_one_prompt", "care_civilcomments", "valence5"),
)


def parts(table: LabelTable, order: int | None, chunk_items: int | None) -> Iterator[LabelTable]:
    """Whole tasks in chunks, in the order of the table or a random one; None is one chunk."""
    place: dict[Hashable, int] = {}
    task = np.array([place.setdefault(i, len(place)) for i in table.item_ids])
    if order is not None:
        # As `evaluation.stream` does: the r-th task is the r-th of the permutation.
        task = np.argsort(np.random.default_rng(order).permutation(len(place)))[task]
    rows = np.argsort(task, kind="stable").tolist()
    columns = ([column[row] for row in rows] for column in table[:3])
    yield from lq.cut_chunks([LabelTable(*columns)], chunk_items or len(place))


def stream(
    table: LabelTable,
    truth: Mapping[Any, Any],
    order: int | None,
    chunk_items: int | None,
    **settings: Any,
) -> Scores:
    """Stream a table through `BiLA()` and score what is emitted."""
    model, probs, right, vote_right = lq.BiLA(**settings), [], [], []
    for part in parts(table, order, chunk_items):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.partial_fit(part)
        known = [i in truth for i in model.labels_.index]
        true = [truth[i] for i in model.labels_.index[known]]
        probs.append(model.probas_.to_numpy()[known].max(axis=1))
        right.append((model.labels_[known] == true).to_numpy())
        votes: dict[Any, dict[Any, int]] = {}
        for item, label in zip(part.item_ids, part.labels, strict=True):
            votes.setdefault(item, {}).setdefault(label, 0)
            votes[item][label] += 1
        for item in model.labels_.index[known]:
            best = max(votes[item].values())
            tied = [label for label, count in votes[item].items() if count == best]
            vote_right.append((truth[item] in tied) / len(tied))
    confidence, ok = np.concatenate(probs), np.concatenate(right)
    doubt = model.doubt()
    # Two columns are enough for the highest probability: right is class 0.
    two = np.stack([confidence, np.zeros_like(confidence)], axis=1)
    return Scores(
        ece=calibration_error(two, np.where(ok, 0, 1), bins=BINS),
        error=float(1 - ok.mean()),
        vote_error=1 - fmean(vote_right),
        expected_error=float(1 - confidence.mean()),
        in_doubt=doubt.in_doubt,
        doubted=doubt.expected_error,
        sampling_ece=sampling_error(confidence),
    )


def sampling_error(confidence: NDArray[np.float64]) -> float:
    """The mean ECE if answers are right exactly as often as their probabilities say."""
    rng, two = np.random.default_rng(0), np.stack([confidence, np.zeros_like(confidence)], axis=1)
    drawn = rng.random((N_SAMPLES, len(confidence))) < confidence
    return fmean(calibration_error(two, np.where(ok, 0, 1), bins=BINS) for ok in drawn)


def folder_of(name: str) -> Path:
    """The folder of LABELQUORUM_DATA that holds a data set."""
    for folder in os.environ.get("LABELQUORUM_DATA", "").split(":"):
        if (Path(folder) / name).is_dir():
            return Path(folder)
    raise SystemExit(f"{name} is in no folder of LABELQUORUM_DATA.")


def read_jury(name: str) -> tuple[LabelTable, dict[str, str]]:
    """A set of judges' votes, and the truth."""
    place = folder_of(name) / name
    with gzip.open(place / "labels.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with open(place / "truth.csv", encoding="utf-8") as file:
        truth = {row["task"]: row["label"] for row in csv.DictReader(file)}
    columns = ([row[name] for row in rows] for name in ("task", "worker", "label"))
    return LabelTable(*columns), truth


def run(cell: tuple[str, str, Any]) -> tuple[str, str, Any, Scores]:
    """One stream: its group, its name, its seed or order, and its scores."""
    group, name, number = cell
    if group == "set":
        data = read_dataset(name, folder_of(name))
        offline = number == "offline"
        order, size = (None, None) if offline else (number, CHUNK_ITEMS)
        return *cell, stream(data.table, dict(data.truth), order, size)
    if group == "jury set":
        table, votes_truth = read_jury(name)
        return *cell, stream(table, votes_truth, None, None if number == "offline" else CHUNK_ITEMS)
    if group == "kind":
        crowd = KINDS[name](number)
    elif group == "demo":
        crowd = simulate(3000, 60.0, 0.5, number).crowd
    else:
        crowd = draw_jury(number, sound=name == SOUND).crowd
    truth, votes = dict(enumerate(crowd.truth.tolist())), label_table(crowd, text_ids=False)
    if group != "jury":
        return *cell, stream(votes, truth, None, CHUNK_ITEMS)
    # A number as `dependence` changes no label, and there is no guard.
    unguarded = stream(votes, truth, None, None, dependence=0.0).error
    return *cell, stream(votes, truth, None, None)._replace(unguarded_error=unguarded)


def cells() -> list[tuple[str, str, Any]]:
    """Everything that is streamed."""
    found: list[tuple[str, str, Any]] = []
    for name in PLAN["development"]:
        n_items = len(set(read_dataset(name, folder_of(name)).table.item_ids))
        orders = 1 if n_items > BIG_ITEMS else N_ORDERS
        found += [("set", name, order) for order in range(orders)] + [("set", name, "offline")]
    found += [("jury set", name, way) for name in JURIES for way in ("offline", "online")]
    seeds = range(FIRST_SEED, FIRST_SEED + N_CROWDS)
    found += [("kind", name, seed) for name in KINDS for seed in seeds]
    found += [("demo", "demo", seed) for seed in range(N_CROWDS)]
    seeds = range(FIRST_JURY, FIRST_JURY + (N_JURIES + N_MORE_JURIES) // 2)
    found += [("jury", name, seed) for name in (SOUND, "misled") for seed in seeds]
    return found


def main() -> None:
    """Stream everything, and write results."""
    found: Found = {}
    todo = cells()
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for done, (group, name, number, scores) in enumerate(pool.map(run, todo), start=1):
            found.setdefault((group, name), {})[number] = scores
            if done % 50 == 0 or done == len(todo):
                print(f"{done} of {len(todo)} streams", file=sys.stderr, flush=True)
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    kept = {
        "summary": summary(found),
        "streams": {
            f"{group}/{name}": {
                str(way): [round(float(value), 5) for value in one[:7]] for way, one in runs.items()
            }
            for (group, name), runs in found.items()
            if group != "jury"
        },
        "columns": Scores._fields[:7],
        "command": COMMAND,
    }
    text = json.dumps(kept, indent=1).replace("NaN", "null")
    (results / "measured.json").write_text(text + "\n", encoding="utf-8")
    for name, page in PAGES.items():
        (results / f"{name}.md").write_text(page(found), encoding="utf-8")
    print(json.dumps(kept["summary"], indent=1))


if __name__ == "__main__":
    main()
