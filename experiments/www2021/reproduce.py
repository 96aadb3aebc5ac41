"""The paper's figures beside ours: RTE and the synthetic crowd, online and offline.

    python3 run.py python experiments/www2021/reproduce.py

writes `results/*.json`, one file a data set, and the tables of README.md from them. RTE and the
true digits are read from the folder LABELQUORUM_DATA; without it only the synthetic crowd is
run, on balanced digits. `--quick` is a look at whether it works, `--report` only writes the
tables again.
"""

import argparse
import json
import platform
import sys
import tomllib
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter
from typing import Any

from labelquorum import BiLA, LabelError, MajorityVote
from labelquorum.trial import (
    balanced_truth,
    bimodal_crowd,
    label_table,
    list_datasets,
    oracle_error,
    read_dataset,
)
from labelquorum.trial.prequential import stream

HERE = Path(__file__).parent
PAPER = tomllib.loads((HERE / "paper.toml").read_text(encoding="utf-8"))
COMMAND = "python3 run.py python experiments/www2021/reproduce.py"
BEGIN, END = "<!-- written by reproduce.py -->", "<!-- end -->"

Row = dict[str, Any]

METHODS: dict[str, Callable[..., Any]] = {
    "majority vote": MajorityVote,
    "authors": partial(BiLA, "authors"),
    "www2021": partial(BiLA, "www2021"),
    "default": BiLA,
}
# BiLA-WA knows two classes: RTE only.
WORKER_ABILITY: dict[str, Callable[..., Any]] = {
    f"{preset}, WA": partial(BiLA, preset, generative="worker_ability")
    for preset in ("authors", "www2021", "default")
}


def measure_rte(seeds: int, quick: bool) -> list[Row]:
    """RTE in file order, 500 initial items, chunks of 25 and 50; and offline."""
    data = read_dataset("rte")
    rows = []
    for method, method_class in {**METHODS, **WORKER_ABILITY}.items():
        for chunk_items in (50,) if quick else (25, 50):
            for repeat_warmup in (False, True):
                protocol = {
                    "chunk_items": chunk_items,
                    "warmup_items": 500,
                    "repeat_warmup": repeat_warmup,
                }
                # An open item's labels are learned from once; closed at once, it is new again.
                settings = {"open_items": 0} if repeat_warmup else {}
                runs = [
                    stream(
                        partial(method_class, seed=seed, **settings),
                        data.table,
                        data.truth,
                        **protocol,
                    )
                    for seed in range(seeds)
                ]
                rows.append(online_row(method, protocol, runs))
        began = perf_counter()
        errors = []
        for seed in range(seeds):
            labels = method_class(seed=seed).fit_predict(data.table).to_dict()
            errors.append(100 * mean(labels[item] != true for item, true in data.truth.items()))
        row = {"method": method, "mode": "offline", **summary("emitted_error", errors)}
        rows.append({**row, "seconds": round((perf_counter() - began) / seeds, 3)})
        say(f"  rte, {method}: offline {rows[-1]['emitted_error']:.2f} %")
    return rows


def measure_pendigits(seeds: int, quick: bool) -> list[Row]:
    """The synthetic crowd: 10 workers, noise 0.6, missing 0.1, chunks of 200 after 1000 items."""
    truth: Any = balanced_truth(10_992)
    if has_data("pendigits_truth"):
        truth = [int(true) for true in read_dataset("pendigits_truth").truth.values()]
    truth = truth[:2000] if quick else truth
    crowds = [
        bimodal_crowd(truth, 10, noise_rate=0.6, missing_rate=0.1, seed=s) for s in range(seeds)
    ]
    limit = summary("emitted_error", [100 * oracle_error(crowd) for crowd in crowds])
    rows: list[Row] = [{"method": "oracle", "mode": "limit", **limit}]
    protocol = {"chunk_items": 200, "warmup_items": 1000}
    for method, method_class in METHODS.items():
        runs = []
        for seed, crowd in enumerate(crowds):
            known = dict(enumerate(crowd.truth.tolist()))
            table = label_table(crowd, text_ids=False)
            runs.append(stream(partial(method_class, seed=seed), table, known, **protocol))
        rows.append(online_row(method, protocol, runs))
        say(f"  synthetic crowd, {method}: {rows[-1]['emitted_error']:.2f} %")
    return rows


def online_row(method: str, protocol: Row, runs: Iterable[Any]) -> Row:
    runs = list(runs)
    return {
        "method": method,
        "mode": "online",
        **protocol,
        **summary("emitted_error", [100 * run.emitted_error for run in runs]),
        **summary("final_error", [100 * run.final_error for run in runs]),
        "seconds": round(mean(float(run.seconds.sum()) for run in runs), 3),
    }


def summary(name: str, values: list[float]) -> Row:
    spread = stdev(values) if len(values) > 1 else 0.0
    rounded = [round(value, 4) for value in values]
    return {name: round(mean(values), 4), f"{name}_sd": round(spread, 4), f"{name}s": rounded}


def has_data(name: str) -> bool:
    try:
        return name in list_datasets()
    except LabelError:
        return False


def result_file(name: str, seeds: int, quick: bool, rows: list[Row], **facts: Any) -> Row:
    return {
        "data": name,
        **facts,
        "command": f"{COMMAND} --seeds {seeds}{' --quick' if quick else ''}",
        "seeds": seeds,
        "labelquorum": version("labelquorum"),
        "jax": version("jax"),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "results": rows,
    }


# ── tables ───────────────────────────────────────────────────────────────────────────────────


def rte_table(result: Row) -> str:
    paper, rows = PAPER["rte"], result["results"]
    lines = []
    for chunk_items in sorted({row["chunk_items"] for row in rows if row["mode"] == "online"}):
        printed = [
            paper["online"][method][str(chunk_items)] for method in ("majority_vote", "bila")
        ]
        for repeat_warmup in (False, True):
            again = ", initial set streamed again" if repeat_warmup else ""
            ours = {
                row["method"]: cell(row)
                for row in rows
                if row.get("chunk_items") == chunk_items and row["repeat_warmup"] == repeat_warmup
            }
            lines.append([f"online, chunks of {chunk_items}{again}", *map(str, printed), ours])
    offline = {row["method"]: cell(row) for row in rows if row["mode"] == "offline"}
    printed = [str(paper["offline"][method]) for method in ("majority_vote", "bila")]
    lines.append(["offline", *printed, offline])
    return (
        f"### RTE\n\nError in per cent, mean ± standard deviation over {result['seeds']} seeds. "
        "800 items in file order; online, the first 500 are the initial set; every label is scored "
        "as it was emitted. The authors' released code streams the initial set a second time after "
        "learning from it: these are the rows that say so. WA is BiLA-WA.\n\n" + markdown(lines)
    )


def pendigits_table(result: Row) -> str:
    rows = {row["method"]: row for row in result["results"]}
    oracle = rows.pop("oracle")
    chunk_items = next(iter(rows.values()))["chunk_items"]
    paper = PAPER["pendigits"]["online"]
    printed = [str(paper[method][str(chunk_items)]) for method in ("majority_vote", "bila")]
    ours = {"oracle": cell(oracle), **{method: cell(row) for method, row in rows.items()}}
    lines = [[f"online, chunks of {chunk_items}", *printed, ours]]
    return (
        f"### The synthetic crowd on {result['truth']}\n\nError in per cent, mean ± standard "
        f"deviation over {result['seeds']} seeds of crowd and model. 10 workers, noise 0.6, "
        f"missing 0.1, {result['items']} items, the first 1000 of them the initial set. The oracle "
        "is Bayes' rule with the true matrices: nobody can expect to err less.\n\n"
        + markdown(lines)
    )


TABLES = {"rte": rte_table, "pendigits": pendigits_table}


def cell(row: Row) -> str:
    return f"{row['emitted_error']:.2f} ± {row['emitted_error_sd']:.2f}"


def markdown(lines: list[list[Any]]) -> str:
    methods = list(lines[0][-1])
    header = ["", "paper: MV", "paper: BiLA-CM", *methods]
    cells = [header, ["---"] * len(header)]
    cells += [[*line[:-1], *(line[-1][method] for method in methods)] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def write_tables(folder: Path) -> None:
    """Put the tables of all results between the marks of README.md."""
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("results/*.json"))]
    results.sort(key=lambda result: list(TABLES).index(result["data"]))
    tables = "\n\n".join(TABLES[result["data"]](result) for result in results)
    commands = sorted({result["command"] for result in results})
    made = f"Made by `{'`, `'.join(commands)}`; the figures are in `results/`."
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else f"{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{BEGIN}\n{tables}\n\n{made}\n{END}{after}", encoding="utf-8")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one small run, to see that it works")
    parser.add_argument("--report", action="store_true", help="write only the tables")
    parser.add_argument("--output", type=Path, default=HERE, help="default: beside this file")
    options = parser.parse_args(arguments)
    folder, quick = options.output, options.quick
    if quick and folder == HERE:
        parser.error("--quick needs --output DIR, so that it replaces no real result.")
    if not options.report:
        files = []
        seeds = 1 if quick else options.seeds
        if has_data("rte"):
            files.append(result_file("rte", seeds, quick, measure_rte(seeds, quick)))
        else:
            say("RTE is left out: LABELQUORUM_DATA does not name a folder that has it.")
        real = has_data("pendigits_truth")
        facts = {
            "truth": "the Pendigits truth"
            if real
            else "balanced random digits (no Pendigits data)",
            "items": 2000 if quick else 10_992,
        }
        rows = measure_pendigits(seeds, quick)
        files.append(result_file("pendigits", seeds, quick, rows, **facts))
        (folder / "results").mkdir(parents=True, exist_ok=True)
        for file in files:
            path = folder / "results" / f"{file['data']}.json"
            path.write_text(json.dumps(file, indent=2) + "\n", encoding="utf-8")
    write_tables(folder)
    say(f"Written: {folder / 'README.md'} and {folder / 'results'}.")


if __name__ == "__main__":
    main()
