"""The targets of the engine, what was measured before, and what is measured now.

"Before" is from issue 19: the engine that compiled every shape with XLA, on 2 quiet cores.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["ELSEWHERE", "rows"]

HERE = Path(__file__).parent
ELSEWHERE = {
    "gpu": HERE / "results" / "gpu.json",
    "service": HERE / "results" / "service.json",
    "spark": HERE.parent / "experiments" / "spark" / "results" / "scale.json",
}
SPARK_LABELS = 10**8

Parts = dict[str, Any]


def rows(parts: Parts) -> list[list[str]]:
    """Measure, before, target, measured; parts measured by other commands are read from files."""
    known = {
        name: json.loads(path.read_text()) for name, path in ELSEWHERE.items() if path.exists()
    }
    known |= parts
    return [
        [measure, before, target, read(known) if part in known else f"not yet (`{part}`)"]
        for measure, part, before, target, read in TARGETS
    ]


def _start(parts: Parts) -> str:
    ways = {"from a DataFrame to `labels_`": parts["start"]}
    if "records" in parts["start"]:  # of the engine before, pandas alone
        ways = {"from records to `answers_`": parts["start"]["records"]} | ways
    found = []
    for way, part in ways.items():
        seconds = (f"{part[kind]['to_first_answer_s']:.2f} s" for kind in KINDS)
        found.append(f"{way} {' / '.join(seconds)}")
    return "; ".join(found)


KINDS = ("cold", "warm")


def _stalls(parts: Parts) -> str:
    part = parts["stalls"]
    more = f"{part['above_100_ms']} above 100 ms, {part['above_250_ms']} above 250 ms"
    return f"{part['slowest_ms']:.0f} ms; {more}"


def _latency(part: Parts) -> list[Parts]:
    """`partial_fit` on a DataFrame, the smallest first."""
    return [row for row in part["latency"] if row["level"] == "door"]


def _chunk(parts: Parts) -> str:
    least = _latency(parts["history"])[0]
    return f"{least['p50_ms']:.2f} / {least['p99_ms']:.2f} ms"


def _growth(part: str) -> Callable[[Parts], str]:
    def read(parts: Parts) -> str:
        found = [row["p50_ms"] for row in _latency(parts[part])]
        return f"× {found[-1] / found[0]:.2f}"

    return read


def _million(parts: Parts) -> str:
    return f"{1e6 / parts['throughput']['by_chunk'][-1]['partial_fit_labels_per_second']:.2f} s"


def _taken(part: Parts) -> str:
    if "failed" in part:
        return str(part["failed"])
    return f"{part['seconds']:.1f} s, {part['peak_mb'] / 1024:.2f} GB"


def _csv(parts: Parts) -> str:
    ours, theirs = (_taken(parts["csv"][side]) for side in ("labelquorum", "crowdkit"))
    return f"{ours}; Crowd-Kit {theirs}"


def _classes(parts: Parts) -> str:
    names = {
        "dawid_skene": "`DawidSkene`",
        "crowdkit_drop_in": "drop-in",
        "bila": "`BiLA()`",
        "online": "in chunks of 500 tasks",
    }
    return "; ".join(f"{noun} {_taken(parts['classes'][name])}" for name, noun in names.items())


def _gpu(parts: Parts) -> str:
    part = parts["gpu"]
    rates = f"{part['labels_per_second'] / 1e6:.1f} M labels/s, {part['labels']:,} labels"
    device = 1e3 / part.get("device_ns_per_label", float("nan"))
    return f"{rates}; the device alone {device:.0f} M/s"


def _spark(parts: Parts) -> str:
    if "engine" not in parts["spark"]["made"]:  # of the engine before
        return "not yet (`spark`)"
    found = [
        row["seconds"]
        for row in parts["spark"]["rows"]
        if row["way"] == "bila_one_pass" and row["labels"] == SPARK_LABELS and row.get("seconds")
    ]
    return f"{min(found):.0f} s" if found else "not yet (`spark`)"


def _service(parts: Parts) -> str:
    found = parts["service"]["parts"]
    if "learner_cpu_ms_per_request" not in found["batches"]:  # of the engine before
        return "not yet (`service.py --only batches limit`)"
    text = f"{found['batches']['learner_cpu_ms_per_request']:.2f} ms"
    if "limit" in found:
        text += f"; holds {found['limit']['held_labels_per_second']:,} labels/s"
    return text


TARGETS: list[tuple[str, str, str, str, Callable[[Parts], str]]] = [
    (
        "process start to first answer, cache empty / filled",
        "start",
        "5.4 s / 1.5 s",
        "≤ 1.5 s / ≤ 0.7 s",
        _start,
    ),
    (
        "slowest of 300 chunks of random size after the first, cache empty",
        "stalls",
        "2.9 s; 14 above 250 ms",
        "≤ 100 ms, none",
        _stalls,
    ),
    (
        "50-task chunk from a DataFrame, p50 / p99",
        "history",
        "3.3 / 6.4 ms",
        "≤ 1 / ≤ 3 ms",
        _chunk,
    ),
    ("the same at 10⁶ known workers", "workers", "× 1.05", "≤ × 1.1", _growth("workers")),
    ("the same after 10⁷ labels", "history", "× 0.95", "≤ × 1.1", _growth("history")),
    ("a million labels in chunks of 1,000 tasks", "throughput", "2.85 s", "≤ 0.7 s", _million),
    (
        "`fit` of 10⁷ labels from integer columns",
        "fit",
        "not measured",
        "≤ 6 s, ≤ 2 GB",
        lambda parts: _taken(parts["fit"]),
    ),
    (
        "`labelquorum aggregate` of a CSV of 10⁷ labels with text ids",
        "csv",
        "not measured",
        "≤ 25 s",
        _csv,
    ),
    (
        "3,000 workers × 500 classes, 10⁵ labels",
        "classes",
        "MemoryError",
        "`DawidSkene` ≤ 10 s, `BiLA()` ≤ 60 s; ≤ 1 GB",
        _classes,
    ),
    (
        "one H200, labels in bulk from integer arrays",
        "gpu",
        "0.76 M labels/s",
        "≥ 30 M labels/s",
        _gpu,
    ),
    ("Spark, 10⁸ labels, one pass", "spark", "370 s", "≤ 200 s", _spark),
    (
        "service, 20,000 labels/s in batches of 100: the learner's CPU per request",
        "service",
        "2.2 ms",
        "≤ 0.7 ms; then the rate at which it breaks",
        _service,
    ),
    (
        "installed size of `pip install '.[serve]'`",
        "installed",
        "about 1 GB",
        "as small as can be",
        lambda parts: f"{parts['installed']['mb']:,} MB",
    ),
]
