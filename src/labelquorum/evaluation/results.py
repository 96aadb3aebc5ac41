"""Results of the benchmark: kept as one JSON file per data set, shown as Markdown tables.

A file holds the rows of its set under any number of protocols; a row is known by its method and
its protocol, so a run that was stopped goes on where it was, and a new method is added to old ones.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from labelquorum.errors import LabelError
from labelquorum.evaluation.benchmark import Protocol, Row, n_orders
from labelquorum.evaluation.datasets.load import dataset_info
from labelquorum.ingest.writers import replacing

Key = tuple[Any, ...]

SCORES: Mapping[str, tuple[str, str]] = {
    "emitted": ("emitted_error", ".2f"),
    "final": ("final_error", ".2f"),
    "log loss": ("log_loss", ".3f"),
    "ECE": ("calibration_error", ".1f"),
    "gap to batch": ("batch_gap", "+.2f"),
    "p50, ms": ("latency_p50_ms", ".1f"),
    "p99, ms": ("latency_p99_ms", ".1f"),
}
PER_CHUNK = ("latency_p50_ms", "latency_p99_ms", "batch_gap")  # say nothing of a batch method
"""The columns of a score table, the field behind each, and how it is written."""


class Results:
    """Rows in a folder; each is written as soon as it is there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[str, dict[Key, Row]] = {}
        for path in sorted(folder.glob("*.json")):
            try:
                rows = json.loads(path.read_text(encoding="utf-8"))["results"]
                self._rows[path.stem] = {_key(row): row for row in rows}
            except (ValueError, KeyError, TypeError):
                raise LabelError(
                    f"{path}: this is no file of benchmark results. Remove it, or choose another "
                    "folder."
                ) from None

    def has(self, dataset: str, method: str, protocol: Protocol, data_sha256: str) -> bool:
        """Whether a row of the same data is there that need not be made again."""
        wanted = (method, *_protocol_key(protocol._asdict()))
        row = self._rows.get(dataset, {}).get(wanted)
        if row is None or row["data_sha256"] != data_sha256:
            return False
        if int(row.get("orders", 0)) >= n_orders(row["kind"], protocol):
            return True
        # Out of time then is out of time now; another reason may be gone.
        stopped = row.get("capped") or row.get("reason", "").startswith("stopped")
        return bool(stopped and row["time_cap"] >= protocol.cap_of(method))

    def add(self, row: Row) -> None:
        """Keep a row in place of an earlier one, and write its file."""
        rows = self._rows.setdefault(row["dataset"], {})
        rows[_key(row)] = row
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{row['dataset']}.json"
        lines = ",\n".join(json.dumps(rows[key]) for key in sorted(rows, key=str))
        with replacing(path) as temporary:
            temporary.write_text(f'{{"results": [\n{lines}\n]}}\n', encoding="utf-8")

    def rows(self, protocol: Protocol | None = None) -> list[Row]:
        """All rows, or those of a protocol."""
        wanted = None if protocol is None else _protocol_key(protocol._asdict())
        everything = [row for rows in self._rows.values() for row in rows.values()]
        return [row for row in everything if wanted in (None, _protocol_key(row))]


def _protocol_key(row: Mapping[str, Any]) -> Key:
    return tuple(row[name] for name in ("chunk_items", "order", "arrival", "warmup_items"))


def _key(row: Row) -> Key:
    return (row["method"], *_protocol_key(row))


# ── tables ───────────────────────────────────────────────────────────────────────────────


def score_table(rows: Iterable[Row], methods: Sequence[str] | None = None) -> str:
    """All scores of each method, means over the data sets that every one of these methods did.

    Sets that overlap count as one: they are averaged before the rest. "Worst" is the largest
    excess over the majority vote on any set.
    """
    by_method = _by_method(rows, methods)
    shared = _shared_sets(by_method)
    vote = by_method.get("majority_vote", {})
    lines = [["method", "kind", *SCORES, "worst against vote", "sets done"]]
    for method, done in by_method.items():
        kind = next((row["kind"] for row in done.values()), "")
        means = [
            "–"
            if kind == "batch" and field in PER_CHUNK
            else _write(_family_mean(done, field, shared), form)
            for field, form in SCORES.values()
        ]
        excess = [done[s]["emitted_error"] - vote[s]["emitted_error"] for s in done if s in vote]
        worst = _write(max(excess, default=None), "+.1f")
        lines.append([f"`{method}`", kind, *means, worst, str(len(done))])
    order = sorted(lines[1:], key=lambda line: (line[2] == "–", line[2].rjust(9)))
    return _markdown([lines[0], *order])


def shared_sets(rows: Iterable[Row], methods: Sequence[str] | None = None) -> list[str]:
    """The data sets behind the means of `score_table`."""
    return sorted(_shared_sets(_by_method(rows, methods)))


def error_table(rows: Iterable[Row], methods: Sequence[str]) -> str:
    """Emitted error of each method on each data set, mean ± sd over orders; the least in bold."""
    by_method = _by_method(rows, methods)
    names = sorted({row for done in by_method.values() for row in done})
    lines = [["data set", *(f"`{method}`" for method in by_method)]]
    for name in names:
        errors = {m: done[name]["emitted_error"] for m, done in by_method.items() if name in done}
        least = min(errors.values())
        cells = []
        for method, done in by_method.items():
            if name not in done:
                cells.append("–")
                continue
            row = done[name]
            cell = f"{row['emitted_error']:.2f}"
            cell = f"**{cell}**" if errors[method] == least else cell
            cell += f" ± {row['emitted_error_sd']:.2f}" if row["orders"] > 1 else ""
            cells.append(cell + (f" ({row['orders']} only)" if row.get("capped") else ""))
        lines.append([name, *cells])
    return _markdown(lines)


def _by_method(rows: Iterable[Row], methods: Sequence[str] | None) -> dict[str, dict[str, Row]]:
    """Rows with figures, by method and data set."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        if methods is None or row["method"] in methods:
            done = found.setdefault(row["method"], {})
            if row.get("emitted_error") is not None:
                done[row["dataset"]] = row
    order = list(found) if methods is None else [m for m in methods if m in found]
    return {method: found[method] for method in order}


def _shared_sets(by_method: Mapping[str, Mapping[str, Row]]) -> set[str]:
    """Data sets that all methods did; one that did few does not narrow them."""
    most = max((len(done) for done in by_method.values()), default=0)
    full = [set(done) for done in by_method.values() if len(done) >= 0.9 * most]
    return set.intersection(*full) if full else set()


def _family_mean(done: Mapping[str, Row], field: str, names: Iterable[str]) -> float | None:
    """The mean over families of the means over their sets; none if a set has no value."""
    families: dict[str, list[float]] = {}
    for name in names:
        number = done[name][field] if name in done else None
        if number is None:
            return None
        info = dataset_info(name)
        families.setdefault(info.family if info else name, []).append(number)
    return fmean(map(fmean, families.values())) if families else None


def _write(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(lines[0]) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [lines[0], rule, *lines[1:]])
