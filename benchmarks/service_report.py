"""Write docs/load.md from results/service.json.

python3 run.py python benchmarks/service_report.py [RESULT.json] [-o PAGE.md]
"""

import argparse
import json
from pathlib import Path
from typing import Any

from report import HERE, table, verdicts

PAGE = HERE.parent / "docs" / "load.md"

INTRO = """How much load does `labelquorum serve` take? A command writes this page from
measurements. The service has a SQLite store; the client runs on the same cores. Every request has
a key and an idempotency key, tasks get three labels, and every chunk is learned from under load.
Requests are sent at a fixed rate (open loop), and latency counts from the moment a request was due.
"Chunks behind" are cut and not learned from yet."""


def page(result: dict[str, Any]) -> str:
    parts, machine = result["parts"], result["machine"]
    sections = ["# Load", INTRO, verdicts(result["verdicts"])]
    loads = [parts[name] for name in ("singles", "batches", "steady") if name in parts]
    if loads:
        sections.append(f"## Labels sent at a rate\n\n{table(*_loads(loads))}")
    for name in ("limit", "small"):
        if name in parts:
            sections.append(_limit(parts[name]))
    if "restart" in parts:
        sections.append(_restart(parts["restart"]))
    sections.append(
        f"Made by `{result['command']} --save` and `python3 run.py python "
        f"benchmarks/service_report.py` on {machine['cores']} cores ({machine['cpu']}), "
        f"{machine['system']}, Python {machine['python']}, JAX {machine['jax']}, labelquorum "
        f"{machine['labelquorum']}."
    )
    return "\n\n".join(sections) + "\n"


def _loads(loads: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    header = [
        "labels per request",
        "seconds",
        "requests per second",
        "labels per second",
        "refused",
        "p50, ms",
        "p99, ms",
        "longest, ms",
        "tasks per chunk",
        "chunks behind: p50",
        "most",
        "MB after a tenth",
        "MB at the end",
        "CPU per request, µs: service",
        "reader subprocess",
        "learner subprocess",
        "machine load before",
    ]
    lines = [
        [
            f"{one['batch']}",
            f"{one['seconds']:g}",
            f"{one['requests_per_second']:,.0f}",
            f"{one['labels_per_second']:,}",
            f"{one['refused']:,}",
            f"{one['p50_ms']:.1f}",
            f"{one['p99_ms']:.1f}",
            f"{one['max_ms']:.0f}",
            f"{one['chunk_items']}",
            f"{one['chunks_behind_p50']:g}",
            f"{one['chunks_behind_max']:g}",
            f"{one['resident_mb_tenth']:.0f}",
            f"{one['resident_mb_end']:.0f}",
            *(f"{cpu:,}" for cpu in one["cpu_us_per_request"]),
            f"{one['load_before']:.2f}",
        ]
        for one in loads
    ]
    return header, lines


def _limit(part: dict[str, Any]) -> str:
    header = ["labels per second offered", "seconds", "answered", "refused", "p50, ms", "p99, ms"]
    header += ["chunks behind, most", "CPU per request, ms: service", "learner subprocess"]
    header += ["not kept"]
    lines = [
        [
            f"{step['offered_labels_per_second']:,}",
            f"{step['seconds']:g}",
            f"{step['labels_per_second']:,}",
            f"{step['refused']:,}",
            f"{step['p50_ms']:.1f}",
            f"{step['p99_ms']:.1f}",
            f"{step['chunks_behind_max']:g}",
            f"{step['cpu_us_per_request'][0] / 1000:.2f}",
            f"{step['learner_cpu_ms_per_request']:.2f}",
            ", ".join(step["broken"]) or "–",
        ]
        for step in part["steps"]
    ]
    broken = part["broken_labels_per_second"]
    found = "no rate broke it" if broken is None else f"{broken:,} broke it"
    size = part.get("chunk_items", 2000)  # before small chunks were measured, too
    return (
        f"## Until it breaks: chunks of {size:,} tasks\n\nWith chunks of {size:,} tasks the "
        f"service held {part['held_labels_per_second']:,} labels per second for "
        f"{part['seconds']:g} seconds; {found}. Requests of 100 labels are sent at a rate that "
        "rises by a quarter, to a new service each time, until a latency, a lag or the "
        f"rate itself is not kept. The last rate that was kept is then offered for "
        f"{part['seconds']:g} seconds.\n\n{table(header, lines)}"
    )


def _restart(part: dict[str, Any]) -> str:
    starts = ", ".join(f"{seconds:.2f}" for seconds in part["ready_s"])
    return (
        f"## Starting on a full store\n\n{part['items']:,} tasks answered from {part['labels']:,} "
        f"labels of {part['workers']:,} workers, {part['store_mb']:,} MB on disk. From the command "
        f"until `/readyz` is ready: {starts} seconds. The first page of items then took "
        f"{part['first_page_s']:.3f} s; {part['resident_mb']:.0f} MB resident."
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("result", nargs="?", type=Path, default=HERE / "results" / "service.json")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    text = page(json.loads(options.result.read_text(encoding="utf-8")))
    options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
