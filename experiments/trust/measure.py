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
import tomllib
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from crowds import KINDS, draw_jury

import labelquorum as lq
from labelquorum.demo.crowd import simulate
from labelquorum.evaluation import calibration_error, label_table, read_dataset
from labelquorum.ingest.labels import LabelTable

HERE = Path(__file__).parent
COMMAND = "python3 run.py python experiments/trust/measure.py"
BINS, CHUNK_ITEMS, N_CROWDS, N_JURIES, N_ORDERS = 10, 50, 20, 300, 10
BIG_ITEMS = 5000  # sets with more tasks are streamed in one order
FIRST_SEED, FIRST_JURY = 1000, 3000
PLAN = tomllib.loads((HERE.parent / "accuracy" / "plan.toml").read_text(encoding="utf-8"))["sets"]
JURIES = (
    *("llmbar_natural", "llmbar_adversarial_manual", "llmbar_adversarial_neighbor"),
    *("llmbar_adversarial_gptinst", "llmbar_one_prompt", "care_civilcomments", "valence5"),
)
WRONG, SOUND = 0.35, "sound"
"""From this error on a misled jury counts as one whose answers are near chance or swapped."""


class Scores(NamedTuple):
    """What the answers to a stream are worth; shares."""

    ece: float
    error: float
    vote_error: float
    expected_error: float  # the mean of 1 − confidence
    in_doubt: bool  # at the end
    doubted: float  # `Doubt.expected_error`
    unguarded_error: float = float("nan")  # of a simulated jury without the guard


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
    )


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
    seeds = range(FIRST_JURY, FIRST_JURY + N_JURIES // 2)
    found += [("jury", name, seed) for name in (SOUND, "misled") for seed in seeds]
    return found


Found = dict[tuple[str, str], dict[Any, Scores]]


def mean(scores: Mapping[Any, Scores], field: str) -> float:
    """In per cent, over streams; fits to everything at once are left out."""
    return 100 * fmean(getattr(s, field) for way, s in scores.items() if way != "offline")


def summary(found: Found) -> dict[str, Any]:
    """The figures that have a target."""
    sets = {name: runs for (group, name), runs in found.items() if group == "set"}
    kinds = {name: mean(runs, "ece") for (group, name), runs in found.items() if group == "kind"}
    demo = found["demo", "demo"]
    sound, misled = found["jury", SOUND], found["jury", "misled"]
    wrong = [one for one in misled.values() if one.unguarded_error >= WRONG]
    juries = {name: runs for (group, name), runs in found.items() if group == "jury set"}
    above = {name: mean(runs, "error") - mean(runs, "vote_error") for name, runs in sets.items()}
    worst = max(above, key=lambda name: above[name])
    return {
        "sets": len(sets),
        "ece of the sets": fmean(mean(runs, "ece") for runs in sets.values()),
        "mean ece of the kinds": fmean(kinds.values()),
        "worst kind": max(kinds, key=lambda name: kinds[name]),
        "ece of the worst kind": max(kinds.values()),
        "demo: expected error less error": abs(mean(demo, "expected_error") - mean(demo, "error")),
        "demos within 2 points": sum(
            abs(one.expected_error - one.error) <= 0.02 for one in demo.values()
        ),
        "sets in doubt at the end": sorted(
            {name for name, runs in sets.items() for one in runs.values() if one.in_doubt}
        ),
        "jury sets in doubt": sorted(n for n, runs in juries.items() if runs["offline"].in_doubt),
        "worst ece of the llmbar sets": max(
            100 * runs["offline"].ece for name, runs in juries.items() if "llmbar" in name
        ),
        "misled juries with wrong answers": len(wrong),
        "recall on misled juries": 100 * fmean(one.in_doubt for one in wrong),
        "false alarms on sound juries": 100 * fmean(one.in_doubt for one in sound.values()),
        "emitted error of the ten sets": fmean(mean(sets[name], "error") for name in PLAN["ten"]),
        "worst set against the vote": worst,
        "worst error less the vote's": above[worst],
    }


TARGETS: dict[str, tuple[str, float]] = {
    "ece of the sets": ("ECE of emitted answers, development sets, %", 6.0),
    "mean ece of the kinds": ("ECE, mean of the simulated kinds, %", 2.5),
    "ece of the worst kind": ("ECE, worst simulated kind, %", 5.0),
    "demo: expected error less error": (
        "the demo's mean expected error less its mean error, points",
        2,
    ),
    "worst ece of the llmbar sets": ("ECE, worst llmbar set, offline, %", 20.0),
    "recall on misled juries": ("misled simulated juries in doubt, %", -90.0),
    "false alarms on sound juries": ("sound simulated juries in doubt, %", 5.0),
    "emitted error of the ten sets": ("mean emitted error, ten development sets, %", 15.6),
    "worst error less the vote's": ("emitted error less the vote's, worst set, points", 1.0),
}
"""What each figure should be at most; at least, where it is negative."""


def table(lines: list[list[str]]) -> str:
    """Markdown; the first line is the head, and all columns but the first are numbers."""
    head, *rows = lines
    align = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, align, *rows])


def target_table(found: Found) -> str:
    lines = [["without gold", "measured", "wanted", ""]]
    figures = summary(found)
    for name, (title, bound) in TARGETS.items():
        value, sign = figures[name], "≥" if bound < 0 else "≤"
        held = value >= -bound if bound < 0 else value <= bound
        lines.append(
            [title, f"{value:.2f}", f"{sign} {abs(bound):g}", "met" if held else "**not met**"]
        )
    doubted_sets = ", ".join(f"`{name}`" for name in figures["jury sets in doubt"])
    crowds = ", ".join(f"`{name}`" for name in figures["sets in doubt at the end"]) or "none"
    return (
        table(lines)
        + f"\nIn doubt, fitted offline: {doubted_sets}. Of {figures['sets']} crowd sets in doubt "
        f"at the end of a stream or offline: {crowds}. The set farthest above the vote is "
        f"`{figures['worst set against the vote']}`, the worst kind *{figures['worst kind']}*. "
        f"Of {N_CROWDS} demos, {figures['demos within 2 points']} are within 2 points.\n"
        f"\nMade by `{COMMAND}`.\n"
    )


def calibration_table(found: Found) -> str:
    lines = [["crowds", "error", "expected error", "ECE"]]
    for (group, name), runs in found.items():
        if group in ("kind", "demo"):
            figures = (mean(runs, field) for field in ("error", "expected_error", "ece"))
            lines.append([name, *(f"{value:.1f}" for value in figures)])
    return table(lines) + f"\nIn %, {N_CROWDS} crowds each, chunks of {CHUNK_ITEMS}, {BINS} bins.\n"


def set_table(found: Found) -> str:
    lines = [["set", "vote", "error", "less the vote", "expected error", "ECE", "in doubt"]]
    for (group, name), runs in found.items():
        if group == "set":
            vote, error = mean(runs, "vote_error"), mean(runs, "error")
            rest = (f"{mean(runs, field):.1f}" for field in ("expected_error", "ece"))
            doubted = "yes" if any(one.in_doubt for one in runs.values()) else ""
            cells_ = [f"{vote:.1f}", f"{error:.1f}", f"{error - vote:+.1f}", *rest, doubted]
            lines.append([name, *cells_])
    return table(lines) + "\nIn %, emitted answers, chunks of 50 in random orders.\n"


def guard_table(found: Found) -> str:
    lines = [["jury", "vote", "error", "ECE", "expected error of a guess = 1", "in doubt"]]
    for (group, name), runs in found.items():
        if group == "jury set":
            for way, one in runs.items():
                rest = [f"{100 * value:.1f}" for value in (one.vote_error, one.error, one.ece)]
                doubted = f"{one.doubted:.2f}", "yes" if one.in_doubt else ""
                lines.append([f"{name}, {way}", *rest, *doubted])
    return table(lines) + "\nIn %, no gold; online: final doubt, errors as emitted.\n"


PAGES: dict[str, Callable[[Found], str]] = {
    "trust_targets": target_table,
    "trust_calibration": calibration_table,
    "trust_sets": set_table,
    "trust_guard": guard_table,
}


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
                str(way): [round(float(value), 5) for value in one[:6]] for way, one in runs.items()
            }
            for (group, name), runs in found.items()
            if group != "jury"
        },
        "columns": Scores._fields[:6],
        "command": COMMAND,
    }
    text = json.dumps(kept, indent=1).replace("NaN", "null")
    (results / "measured.json").write_text(text + "\n", encoding="utf-8")
    for name, page in PAGES.items():
        (results / f"{name}.md").write_text(page(found), encoding="utf-8")
    print(json.dumps(kept["summary"], indent=1))


if __name__ == "__main__":
    main()
