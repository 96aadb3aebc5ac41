"""Write docs/performance.md from results/engine.json.

python3 run.py python benchmarks/report.py [RESULT.json] [-o PAGE.md]
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from targets import ELSEWHERE
from targets import rows as target_rows

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"

LEVELS = {"door": "`partial_fit` on a DataFrame", "functions": "`update` and `aggregate`"}


def page(result: dict[str, Any]) -> str:
    parts, machine = result["parts"], result["machine"]
    sections = [SECTIONS[name](part) for name, part in parts.items() if name in SECTIONS]
    made = (
        f"Made by `{result['command']} --save` and `python3 run.py python benchmarks/report.py` on "
        f"{machine['cores']} cores ({machine['cpu']}), {machine['system']}, Python "
        f"{machine['python']}, JAX {machine['jax']}, NumPy {machine['numpy']}, pandas "
        f"{machine['pandas']}, Crowd-Kit {machine['crowd-kit']}, labelquorum "
        f"{machine['labelquorum']}. Load before the start: {machine['load_before']}."
    )
    if ELSEWHERE["gpu"].exists():
        sections.append(gpu(json.loads(ELSEWHERE["gpu"].read_text(encoding="utf-8"))))
    return "\n\n".join(["# Performance", INTRO, targets(parts), *sections, made]) + "\n"


INTRO = """How fast is `BiLA()`, and does it stay so? A command writes this page from measurements.
A chunk is 50 tasks with 10 labels each in 4 classes, unless stated. Latency is end to end, from a
DataFrame with text ids to `labels_`. Every part runs in its own process, and models that are
compared take turns."""
CURVE_POINTS = 5
"""Points of the memory curve that are shown: enough to see whether it rises."""


def targets(parts: dict[str, Any]) -> str:
    header = ["measure", "before", "target", "measured"]
    return (
        f"## Targets\n\n{table(header, target_rows(parts))}\n\n"
        '"Before" is from issue 19, which set the targets: the engine that compiled every shape '
        "with XLA, on 2 cores. A part that is not measured yet is named; `--only PART` measures it."
    )


def verdicts(rows: list[dict[str, Any]]) -> str:
    lines = [
        [
            row["promise"],
            number(row["measured"]),
            number(row["limit"]),
            "yes" if row["holds"] else "no",
        ]
        for row in rows
    ]
    return table(["promise", "measured", "limit", "holds"], lines)


def throughput(part: dict[str, Any]) -> str:
    names = ("update", "aggregate", "partial_fit")
    lines = [
        [str(row["chunk_items"]), *(f"{row[f'{name}_labels_per_second']:,}" for name in names)]
        for row in part["by_chunk"]
    ]
    header = ["tasks per chunk", *(f"`{name}`" for name in names)]
    return (
        f"## Labels per second\n\n{part['known_workers']:,} known workers.\n\n"
        f"{table(header, lines)}"
    )


def history(part: dict[str, Any]) -> str:
    lines = latency_lines(part["latency"], "history_labels")
    memory = part["memory"]
    header = ["labels streamed before", "level", "p50, ms", "p99, ms"]
    last = len(memory["curve"]) - 1
    shown = sorted({round(i * last / (CURVE_POINTS - 1)) for i in range(CURVE_POINTS)})
    points = [memory["curve"][i] for i in shown]
    curve = table(
        ["labels", "MB"],
        [[f"{point['labels']:,}", f"{point['resident_mb']:,.1f}"] for point in points],
    )
    return (
        f"## Latency against history\n\n{part['known_workers']:,} known workers.\n\n"
        f"{table(header, lines)}\n\n## Resident memory along the stream\n\n"
        f"{memory['at_tenth_mb']:,.1f} MB after a tenth of the stream, "
        f"{memory['at_end_mb']:,.1f} MB at the end.\n\n{curve}"
    )


def workers(part: dict[str, Any]) -> str:
    lines = latency_lines(part["latency"], "known_workers")
    return (
        "## Latency against known workers\n\nEvery known worker has labelled before; a chunk's "
        "workers are drawn from all of them.\n\n"
        f"{table(['known workers', 'level', 'p50, ms', 'p99, ms'], lines)}\n\n"
        f"A worker takes {part['state_bytes_per_worker']} bytes in the state, "
        f"{part['door_resident_bytes_per_worker']} bytes of resident memory with id and counts, "
        f"and {part['file_bytes_per_worker']} bytes in a saved file."
    )


def start(part: dict[str, Any]) -> str:
    ways = {"a DataFrame, `labels_`": part}
    if "records" in part:
        ways["records, `answers_`"] = part["records"]
    lines = [
        [way, name, *(f"{found[kind][key]:.2f}" for key in START_KEYS)]
        for way, found in ways.items()
        for name, kind in (("empty", "cold"), ("filled", "warm"))
    ]
    header = ["labels, answers", "compilation cache", "process to first answer, s"]
    text = (
        "Records are tuples (task, worker, label) and their answers a dict, for which the process "
        "does not import pandas."
    )
    return f"## Start\n\n{text}\n\n{table([*header, 'imports, s', 'first chunk, s'], lines)}"


START_KEYS = ("to_first_answer_s", "imports_s", "first_chunk_s")


def refit(part: dict[str, Any]) -> str:
    crowd, lines = part["crowd"], []
    for row in part["by_workers"]:
        ours, theirs = row["labelquorum"], row["crowdkit_refit"]
        errors = [ours["emitted_error"], theirs["emitted_error"], ours["final_error"]]
        errors += [theirs["final_error"], row["majority_vote_error"], row["oracle_error"]]
        seconds = [
            f"{ours['seconds']:.2f}",
            f"{theirs['seconds']:.1f}",
            f"{row['times_faster']:.0f}",
        ]
        lines.append([f"{row['workers']:,}", *seconds, *(f"{error:.2f}" for error in errors)])
    header = ["workers", "ours, s", "refit, s", "times faster", "emitted error %: ours", "refit"]
    header += ["final error %: ours", "refit", "majority vote", "oracle"]
    low, high = crowd["skill"]
    return (
        f"## Against refitting\n\n`{part.get('model', 'BiLA()')}` updates at every chunk of 50 "
        "tasks; Crowd-Kit's `DawidSkene()`, with its defaults, is fitted again on all labels so "
        f"far. {part['by_workers'][0]['labels']:,} labels, {crowd['labels_per_item']} per task, "
        f"{crowd['n_classes']} classes, workers right with probability {low} to {high} on average "
        "(`class_conditional_crowd`). Ours has a filled compilation cache; imports are not counted "
        "on either side. The emitted error is of answers given as their chunk arrived, the final "
        "error of all tasks at the end.\n\n"
        f"{table(header, lines)}"
    )


def gpu(part: dict[str, Any]) -> str:
    """Each stage by itself, and what sets the pace."""
    stages = {
        "make a chunk and send it to the device, one thread": part["make_ns_per_label"],
        "learn": part["learn_ns_per_label"],
        "answer": part["answer_ns_per_label"],
        "the device, of all three": part.get("device_ns_per_label", float("nan")),
    }
    lines = [[stage, f"{ns:.1f}", f"{1e3 / ns:.0f}"] for stage, ns in stages.items()]
    return (
        f"## On a GPU\n\n{part['labels']:,} labels of {part['workers']:,} workers in "
        f"{part['classes']} classes, in chunks of {part['chunk_labels']:,}, from integer arrays "
        f"to the class of every task: {part['seconds']:.2f} s, "
        f"{part['labels_per_second'] / 1e6:.1f} M labels per second ({part['device']}, "
        f"{part['machine']['cores']} cores). {part['threads']} threads make chunks ahead, one "
        "answers, and one learns. The first chunk is not counted: "
        f"{part['first_chunk_s']:.0f} s, more where no earlier process has compiled for it.\n\n"
        f"{table(['stage, by itself', 'ns per label', 'M labels per second'], lines)}\n\n"
        "The device is idle most of the time. The rest of the way is the processor's: rows would "
        "have to be sorted on the device, from columns as they come, and probabilities to stay "
        "there until they are asked for. Of 100,000 labels learned in chunks of 5,000, "
        f"{part['labels_that_differ_from_the_default_engine']} answers differ from the C engine's, "
        "and probabilities by at most "
        f"{part['largest_difference_of_a_probability']:.0e}.\n\nMade by `{part['command']} --save`."
    )


SECTIONS = {
    "throughput": throughput,
    "history": history,
    "workers": workers,
    "start": start,
    "refit": refit,
}


def latency_lines(rows: Iterable[dict[str, Any]], size: str) -> list[list[str]]:
    return [
        [f"{row[size]:,}", LEVELS[row["level"]], f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}"]
        for row in rows
    ]


def number(value: float) -> str:
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def table(header: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *lines))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("result", nargs="?", type=Path, default=HERE / "results" / "engine.json")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    text = page(json.loads(options.result.read_text(encoding="utf-8")))
    options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
