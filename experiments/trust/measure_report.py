"""The page of `measure.py`: figures that have a target, and tables, from its scores."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

__all__ = ["PAGES", "Scores", "summary", "table"]

HERE = Path(__file__).parent
COMMAND = "python3 run.py python experiments/trust/measure.py"
BINS, CHUNK_ITEMS, N_CROWDS, N_JURIES = 10, 50, 20, 300
N_MORE_JURIES = 900  # of further seeds, which tell the share from its sampling error
FIRST_JURY = 3000
PLAN = tomllib.loads((HERE.parent / "accuracy" / "plan.toml").read_text(encoding="utf-8"))["sets"]
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
    sampling_ece: float  # the ECE that right probabilities of this size would show
    unguarded_error: float = float("nan")  # of a simulated jury without the guard


Found = dict[tuple[str, str], dict[Any, Scores]]


def mean(scores: Mapping[Any, Scores], field: str) -> float:
    """In per cent, over streams; fits to everything at once are left out."""
    return 100 * fmean(getattr(s, field) for way, s in scores.items() if way != "offline")


def summary(found: Found) -> dict[str, Any]:
    """The figures that have a target."""
    sets = {name: runs for (group, name), runs in found.items() if group == "set"}
    kinds = {name: mean(runs, "ece") for (group, name), runs in found.items() if group == "kind"}
    demo = found["demo", "demo"]
    first = {seed for seed in found["jury", SOUND] if seed < FIRST_JURY + N_JURIES // 2}
    sound = [one for seed, one in found["jury", SOUND].items() if seed in first]
    all_wrong = {
        s: one for s, one in found["jury", "misled"].items() if one.unguarded_error >= WRONG
    }
    wrong = [one for seed, one in all_wrong.items() if seed in first]
    juries = {name: runs for (group, name), runs in found.items() if group == "jury set"}
    above = {name: mean(runs, "error") - mean(runs, "vote_error") for name, runs in sets.items()}
    worst = max(above, key=lambda name: above[name])
    return {
        "sets": len(sets),
        "ece of the sets": fmean(mean(runs, "ece") for runs in sets.values()),
        "sampling error of that": fmean(mean(runs, "sampling_ece") for runs in sets.values()),
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
            100 * one.ece for n, runs in juries.items() if "llmbar" in n for one in runs.values()
        ),
        "misled juries with wrong answers": len(wrong),
        "recall on misled juries": 100 * fmean(one.in_doubt for one in wrong),
        "false alarms on sound juries": 100 * fmean(one.in_doubt for one in sound),
        "recall on all misled juries": 100 * fmean(one.in_doubt for one in all_wrong.values()),
        "false alarms on all sound juries": 100
        * fmean(one.in_doubt for one in found["jury", SOUND].values()),
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
    "worst ece of the llmbar sets": ("ECE, worst llmbar set, offline and online, %", 20.0),
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
        f"\nRight probabilities would show an ECE of {figures['sampling error of that']:.2f} on "
        "sets of this size: the mean over truths drawn from the emitted probabilities. Of "
        f"{(N_JURIES + N_MORE_JURIES) // 2} juries of each kind, further seeds included, "
        f"{figures['recall on all misled juries']:.2f} % of the misled are in doubt and "
        f"{figures['false alarms on all sound juries']:.2f} % of the sound.\n"
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
    lines = [
        [
            "set",
            "vote",
            "error",
            "less the vote",
            "expected error",
            "ECE",
            "of which sampling",
            "in doubt",
        ]
    ]
    for (group, name), runs in found.items():
        if group == "set":
            vote, error = mean(runs, "vote_error"), mean(runs, "error")
            rest = (
                f"{mean(runs, field):.1f}" for field in ("expected_error", "ece", "sampling_ece")
            )
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
