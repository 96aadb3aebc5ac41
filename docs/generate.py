"""Write what the pages show: tables between marks, and what their code prints.

    python3 run.py python docs/generate.py            # all pages
    python3 run.py python docs/generate.py --pictures # and docs/images, by docs/pictures.py

A generated table stands between `<!-- name -->` and `<!-- /name -->`. A `python` block is run,
all blocks of a page one after the other in one namespace and one empty folder, and what it prints
stands in the `text` block after it. A `console` block is run by the shell in that folder, and what
it prints stands below its `$` lines. `tests/test_docs.py` makes every page again and compares.
"""

import argparse
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["PAGES", "ROOT", "TABLES", "fill_tables", "render", "run_code"]

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/README.md",
    "docs/choosing.md",
    "docs/faq.md",
    "docs/migrating.md",
    "docs/tutorial.md",
    "docs/howto.md",
    "docs/reference.md",
    "docs/model.md",
    "docs/methods.md",
    "docs/benchmark.md",
    "docs/paper.md",
    "docs/worker-models.md",
    "docs/hierarchical.md",
    "docs/accuracy.md",
    "docs/confidence.md",
    "docs/doubt.md",
    "docs/gold.md",
    "docs/crowd.md",
    "docs/trust.md",
    "docs/judges.md",
    "docs/store.md",
    "docs/tutorial-service.md",
    "docs/label-studio.md",
    "docs/service.md",
    "docs/dashboard.md",
    "docs/spark.md",
    "docs/faults.md",
    "benchmarks/online/README.md",
    "experiments/confidence/notes.md",
    "experiments/crowd/notes.md",
)
NEED_DATA = ("docs/tutorial-service.md",)
"""Pages whose code reads a data set of the folder that LABELQUORUM_DATA names."""
PORT = "8765"
"""Where pages have the service listen; while they are run, a port that is free."""
RESULTS = ROOT / "experiments" / "www2021"
STUDIO = ROOT / "experiments" / "label_studio" / "results" / "measured.json"
CONFIDENCE = ROOT / "experiments" / "confidence" / "results" / "measured.json"
CROWD = ROOT / "experiments" / "crowd" / "results" / "measured.json"
BENCHMARK = (
    "python3 run.py python -m labelquorum evaluate --methods all --min-truth 100 "
    "-o benchmarks/online"
)
VOTE = "majority_vote"
REPRODUCE = "python3 run.py reproduce"
ACCURACY = ROOT / "experiments" / "accuracy" / "results"
FAULTS = ROOT / "experiments" / "faults" / "results"
SPARK = ROOT / "experiments" / "spark" / "results"
TRUST = ROOT / "experiments" / "trust" / "results"
SETTING_LINKS = {
    "two worker models": "worker-models.md",
    "the hierarchical one": "hierarchical.md",
    "an encoder network": "model.md#the-preset-network",
    "p(y)": "model.md#the-class-prior",
    "a worker's own counts": "hierarchical.md#a-workers-own-matrix",
    "temperature": "worker-models.md#dependence",
    "What is known of workers": "#history",
}
"""Words in the docstring of `BiLA` that the reference page links."""

FENCE = re.compile(
    r"^```(?P<kind>python|console)\n(?P<code>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)


def render(page: str) -> str:
    """Make a page again from itself: its tables filled in, its code run."""
    text = fill_tables((ROOT / page).read_text(encoding="utf-8"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        return run_code(text.replace(PORT, port), Path(folder), page).replace(port, PORT)


# ── code ─────────────────────────────────────────────────────────────────────────────────────


def run_code(text: str, folder: Path, page: str = "page") -> str:
    """Run the blocks of a page in order, in one namespace and one folder, and show what they print.

    Parameters
    ----------
    text
        The page.
    folder
        Where the blocks read and write.
    page
        Its name, for tracebacks.
    """
    namespace: dict[str, Any] = {"__name__": "__page__"}

    def replace(block: re.Match[str]) -> str:
        code = block["code"]
        if block["kind"] == "console":
            return f"```console\n{_run_shell(code)}```\n"
        line = text.count("\n", 0, block.start("code"))
        printed = io.StringIO()
        with redirect_stdout(printed):
            # Blank lines before the code, so that a traceback names the line of the page.
            exec(compile("\n" * line + code, page, "exec"), namespace)
        output = "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())
        return f"```python\n{code}```\n" + (f"\n```text\n{output}```\n" if output else "")

    try:
        with chdir(folder), _quiet_shell():
            return FENCE.sub(replace, text)
    finally:
        for value in namespace.values():
            if isinstance(value, subprocess.Popen) and value.poll() is None:
                value.kill()  # a page that failed half-way leaves nothing running
                value.communicate()


def _run_shell(block: str) -> str:
    """Run the `$` lines of a block; give them back with what they print below them."""
    shown = []
    for command in re.findall(r"^\$ ((?:.*\\\n)*.*)\n", block, re.MULTILINE):
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"$ {command}\nended with {done.returncode}.\n{done.stderr}")
        output = "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
        shown.append(f"$ {command}\n{output}")
    return "".join(shown)


@contextmanager
def _quiet_shell() -> Iterator[None]:
    """Let the shell find `labelquorum`, and programs print 100 plain columns."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    ours = {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# ── tables ───────────────────────────────────────────────────────────────────────────────────


def fill_tables(text: str) -> str:
    """Put each generated table between its marks."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if begin in text:
            before, rest = text.split(begin)
            text = before + begin + make() + end + rest.split(end, 1)[1]
    return text


def results() -> str:
    """The errors that `experiments/www2021` measured, beside those the paper printed."""
    files = [RESULTS / "results" / f"{name}.json" for name in ("table2", "table3")]
    if not all(file.exists() for file in files):
        return f"No results yet. They are made by `{REPRODUCE}`.\n"
    online, offline = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    columns = {
        "majority vote": "mv",
        "BiLA, `www2021`": "www2021",
        "BiLA, `authors`": "authors",
        "**BiLA()**": "default",
    }
    lines = [["error in %", "paper: BiLA", *columns, "oracle"], ["---", *["---:"] * 6]]
    seen = set()
    for row in (*online["rows"], *offline["rows"]):
        name = ", ".join(filter(None, (row["title"], row.get("variant"))))
        how = f"chunks of {row['chunk']}" if "chunk" in row else "offline"
        # The small chunks stand first, and rows that change more than the order are left out.
        usual = row.get("variant", "") in ("", "structured crowd", "file order", "random orders")
        if not row["available"] or not usual or (name, "chunk" in row) in seen:
            continue
        seen.add((name, "chunk" in row))
        cells = {cell["method"]: cell for cell in row["cells"]}
        errors = [cells[method].get("mean") for method in columns.values()]
        limit = (row.get("oracle") or {}).get("mean")
        shown = ["–" if error is None else f"{error:.2f}" for error in (*errors, limit)]
        lines.append([f"{name}, {how}", f"{cells['default']['printed']:.2f}", *shown])
    return f"""{_table(lines)}
`www2021` is our reading of the paper's Algorithm 1, `authors` behaves as their released code.
CIFAR-10 and Pendigits are labelled by the paper's synthetic crowd; the oracle knows its true
confusion matrices and is the limit.

Made by `{online["made"]["command"]}` and `python3 run.py python docs/generate.py`.
"""


def settings() -> str:
    """Every setting of `BiLA`: its default, and what the docstring says."""
    import inspect

    from labelquorum import BiLA

    doc = inspect.getdoc(BiLA) or ""
    means = dict(re.findall(r"^(\w+)\n((?:    .*\n)+)", doc, re.MULTILINE))
    lines = [["setting", "default", "meaning"], ["---"] * 3]
    for name, setting in inspect.signature(BiLA).parameters.items():
        meaning = " ".join(means[name].split()).removesuffix(".")
        meaning = re.sub(r'"\w+"', r"`\g<0>`", meaning)
        for words, target in SETTING_LINKS.items():
            meaning = meaning.replace(words, f"[{words}]({target})")
        lines.append([f"`{name}`", f"`{setting.default!r}`", meaning])
    return _table(lines)


def presets() -> str:
    """Every setting of BiLA's method under every preset; a dash where it has no effect."""
    from labelquorum.learn.bila import PRESETS
    from labelquorum.learn.bila.settings import SETTINGS, counted_models, has_effect

    def idle(preset: str, name: str) -> bool:
        generative = PRESETS[preset].get("generative", SETTINGS["generative"].default)
        if name == "record_epochs":
            return bool(counted_models(generative))
        return not has_effect(name, generative)

    lines = [["setting", *(f"`{name}`" for name in PRESETS)], ["---"] * (1 + len(PRESETS))]
    for name, setting in SETTINGS.items():
        cells = []
        for preset, changes in PRESETS.items():
            value = changes.get(name, setting.default)
            mark = "**" if value != setting.default and not idle("default", name) else ""
            cells.append("–" if idle(preset, name) else f"{mark}`{value!r}`{mark}")
        lines.append([f"`{name}`", *cells])
    return _table(lines)


def commands() -> str:
    """The command line, from the program itself: what each command does, and its options."""
    from typer.main import get_command

    from labelquorum.cli import app

    lines = [["command", "what it does", "options"], ["---"] * 3]
    return _table([*lines, *_commands(get_command(app), "")])


def _commands(group: Any, above: str) -> Iterator[list[str]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, f"{above}{name} ")
            continue
        says = (command.help or "").partition("\n\n")[0]
        arguments, options = [], []
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                arguments.append(parameter.metavar or parameter.name.upper())
            elif not parameter.hidden and "--help" not in parameter.opts:
                options += [
                    f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts)
                ]
        usage = " ".join([f"{above}{name}", *arguments])
        yield [f"`{usage}`", " ".join(says.split()), " ".join(options)]


def routes() -> str:
    """Every route of the service, the key it takes and what it is for."""
    from labelquorum.server.app import PARTS
    from labelquorum.server.auth import ROUTES

    said = {
        (method, route.path): (route.endpoint.__doc__ or "").partition("\n")[0]
        for part in PARTS
        for route in part.router.routes
        for method in route.methods
    }
    reach = {"stream": "", "any": ", any stream", "all": ", all streams"}
    lines = [["route", "key", "what"], ["---"] * 3]
    for (method, path), need in ROUTES.items():
        key = "none" if need is None else f"{need.scope}{reach[need.reach]}"
        shown = path.replace(":path", "")
        lines.append([f"`{method} {shown}`", key, said[method, path]])
    return _table(lines)


def more() -> str:
    """The pages that other commands write."""
    others = [path for path in sorted(ROOT.glob("docs/*.md")) if f"docs/{path.name}" not in PAGES]
    titles = {path.name: path.read_text(encoding="utf-8").partition("\n")[0] for path in others}
    return "".join(f"- [{title.strip('# ')}]({name})\n" for name, title in titles.items())


def _table(lines: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _benchmark_rows(*kinds: str) -> list[dict[str, Any]]:
    from labelquorum.evaluation.benchmark import Protocol
    from labelquorum.evaluation.results import Results

    rows = Results(ROOT / "benchmarks" / "online").rows(Protocol())
    return [row for row in rows if not kinds or row["kind"] in kinds]


def benchmark_scores() -> str:
    """Every method's scores, means over the sets that all did."""
    from labelquorum.evaluation.results import score_table, shared_sets

    rows = _benchmark_rows()
    vote = {row["dataset"]: row["emitted_error"] for row in rows if row["method"] == VOTE}
    sets = shared_sets(rows)
    orders = max((row["orders"] for row in rows if "orders" in row), default=0)
    streams = [row for row in rows if row["kind"] == "online" and row.get("emitted_error")]
    worst = {
        method: max(row["emitted_error"] - vote[row["dataset"]] for row in own)
        for method in sorted({row["method"] for row in streams})
        if (own := [row for row in streams if row["method"] == method])
    }
    first = next(line for line in score_table(rows).splitlines() if "| online |" in line)
    best, error = first.split("`")[1], first.split("|")[3].strip()
    return f"""Of the online methods, `{best}` errs least on average, {error} %; on single sets it
can be {worst[best]:.1f} points worse than the vote.

{score_table(rows)}
The means are over the {len(sets)} sets that all methods with means did.

Made by `{BENCHMARK} --orders {orders}`, which keeps its results in `benchmarks/online/`.
"""


def benchmark_caps() -> str:
    """How much processor time each method had for a set."""
    caps: dict[str, dict[float, int]] = {}
    for row in _benchmark_rows():
        had = caps.setdefault(row["method"], {})
        had[row["time_cap"]] = had.get(row["time_cap"], 0) + 1
    groups: dict[float, list[str]] = {}
    for method, had in caps.items():
        groups.setdefault(max(had, key=lambda cap: had[cap]), []).append(f"`{method}`")
    usual = max(groups, key=lambda cap: len(groups[cap]))
    lines = [
        f"- {'all others' if cap == usual else ', '.join(sorted(groups[cap]))}: {cap:g} seconds.\n"
        for cap in sorted(groups, reverse=True)
    ]
    return f"{''.join(lines)}\nSome methods had more on single large sets.\n"


def benchmark_errors(*kinds: str) -> str:
    """Emitted errors of some kinds of methods, set by set."""
    from labelquorum.evaluation.results import error_table

    rows = _benchmark_rows(*kinds)
    return error_table(rows, sorted({row["method"] for row in rows}))


def benchmark_memory() -> str:
    """Peak memory of each method on a data set, the least first."""
    from labelquorum.evaluation.results import Results

    rows = Results(ROOT / "benchmarks" / "memory").rows()
    measured = [row for row in rows if row.get("peak_memory_mb") is not None]
    measured.sort(key=lambda row: row["peak_memory_mb"])
    lines = [
        [f"`{row['method']}`", row["kind"], f"{row['peak_memory_mb']:.0f}"] for row in measured
    ]
    made = "python3 run.py python -m labelquorum evaluate web --orders 1 --memory"
    return _table([["method", "kind", "MB"], ["---", "---", "---:"], *lines]) + (
        f"\nMade by `{made} -o benchmarks/memory`.\n"
    )


def benchmark_missing() -> str:
    """Which cells are empty, and why."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in _benchmark_rows():
        if "reason" in row:
            reasons.setdefault((row["method"], row["reason"]), []).append(row["dataset"])
    lines = [
        f"- `{method}` on {', '.join(sorted(sets))}: {reason.rstrip('.')}.\n"
        for (method, reason), sets in sorted(reasons.items())
    ]
    return "".join(lines) or "Nothing.\n"


def _measured(part: str) -> tuple[list[dict[str, Any]], str]:
    """Rows that `experiments/confidence` measured, and what made them."""
    data = json.loads(CONFIDENCE.read_text(encoding="utf-8"))
    return data[part], f"\nMade by `{data['made']['command']}`.\n"


def _crowd(row: dict[str, Any]) -> str:
    """A simulated crowd in words."""
    correlation = row.get("correlation")
    together = f", errors correlated by {correlation}" if correlation else ""
    unequal = ", unequal" if row.get("skewed") else ""
    return f"{row['kind']}, {row['n_classes']} classes{unequal}{together}"


def coverage() -> str:
    """How often intervals cover, crowd by crowd."""
    rows, made = _measured("coverage")
    columns = ("skill_0.95", "entry_0.95", "skill_0.8", "entry_0.8")
    plain = ("plain_skill_0.95", "plain_entry_0.95")
    names = ["skill 95 %", "entry 95 %", "skill 80 %", "entry 80 %", "width", "Laplace alone"]
    lines = [["crowd", "labels per task", "per worker", *names], ["---", *["---:"] * 8]]
    for row in rows:
        shares = [f"{100 * row[column]:.0f}" for column in columns]
        alone = " / ".join(f"{100 * row[column]:.0f}" for column in plain)
        sizes = [str(row["labels_per_item"]), str(row["labels_per_worker"])]
        lines.append([_crowd(row), *sizes, *shares, f"{row['skill_width']:.2f}", alone])
    return (
        _table(lines)
        + f'\nIn %, of {rows[0]["workers"]} workers each. "Width" is that of the skill\'s 95 % '
        'interval; "Laplace alone" is what (1) covers at 95 %, skill / entry.\n' + made
    )


def coverage_summary() -> str:
    """How often intervals cover, in a few sentences."""
    rows, _ = _measured("coverage")
    covered = sorted((round(100 * row["skill_0.95"]), i) for i, row in enumerate(rows))
    alone = sorted(round(100 * row["plain_skill_0.95"]) for row in rows)
    least = rows[covered[0][1]]
    enough = sum(share >= 90 for share, _ in covered)
    return (
        f"In {len(rows)} simulated crowds of {rows[0]['workers']} workers each, the 95 % interval "
        f"covered the true skill of {covered[0][0]} to {covered[-1][0]} % of the workers, and of "
        f"at least 90 % in {enough} crowds. The worst crowd: {_crowd(least)}, "
        f"{least['labels_per_item']} labels per task. Laplace's approximation alone, (1), covers "
        f"{alone[0]} to {alone[-1]} %.\n"
    )


def gain() -> str:
    """Whether expected gains come true, crowd by crowd."""
    rows, made = _measured("gain")
    names = ["accuracy", "mean confidence", "expected gain", "rise of accuracy"]
    lines = [["crowd", "labels per task", "ρ", *names], ["---", *["---:"] * 6]]
    for row in rows:
        rho = "learned" if row["dependence"] is None else f"{row['dependence']:g}"
        rise = f"{100 * row['rise']:.1f} ± {100 * row['error']:.1f}"
        shares = [f"{100 * row[n]:.1f}" for n in ("accuracy", "confidence", "expected")]
        lines.append([_crowd(row), str(row["labels_per_item"]), rho, *shares, rise])
    return (
        _table(lines)
        + f"\nIn %, of {rows[0]['items']} tasks, each with one more label by a random worker. "
        "Labels of these crowds are independent given the truth. With the learned temperature the "
        "gains come true, apart from what the label teaches about workers; a fixed ρ expects less "
        "than comes.\n" + made
    )


def gain_summary() -> str:
    """Whether expected gains come true, in one sentence."""
    rows = [row for row in _measured("gain")[0] if row["dependence"] is None]
    expected, rise = (100 * sum(row[n] for row in rows) / len(rows) for n in ("expected", "rise"))
    return (
        f"In {len(rows)} simulated crowds, one more label by a random worker was expected to raise "
        f"the accuracy by {expected:.1f} points on average, and raised it by {rise:.1f}.\n"
    )


def asking() -> str:
    """What asking by gain is worth."""
    rows, made = _measured("asking")
    ways = list(rows[0]["errors"])
    lines = [["error in %, asking …", *ways], ["---", *["---:"] * len(ways)]]
    lines += [[_crowd(row), *(f"{100 * row['errors'][w]:.1f}" for w in ways)] for row in rows]
    return (
        _table(lines)
        + f"\n{rows[0]['items']} tasks with two labels each, and half as many labels more, in ten "
        f"rounds; means of {rows[0]['seeds']} crowds.\n" + made
    )


def flags() -> str:
    """How often flags are right, crowd by crowd."""
    data = json.loads(CROWD.read_text(encoding="utf-8"))
    kinds = list(data["flags"][0]["by_flag"])
    names = ["workers", "labels per task", "precision", "recall", *(f"`{kind}`" for kind in kinds)]
    lines = [["crowd", *names], ["---", *["---:"] * len(names)]]
    for row in data["flags"]:
        sizes = [str(row["workers"]), str(row["labels_per_item"])]
        shares = [f"{100 * row[name]:.0f}" for name in ("precision", "recall")]
        each = []
        for counted in row["by_flag"].values():
            found = f"{counted['found']} of {counted['wanted']}"
            wrong = counted["flags"] - counted["right"]
            each.append(found + (f", {wrong} wrong" if wrong else ""))
        lines.append([row["crowd"], *sizes, *shares, *each])
    return (
        _table(lines)
        + f"\nPrecision and recall in %, of {data['flags'][0]['seeds']} crowds each; then how many "
        f"workers got the flag they should have.\n\nMade by `{data['made']['command']}`.\n"
    )


def flags_summary() -> str:
    """Precision and recall of flags, crowd by crowd."""
    data = json.loads(CROWD.read_text(encoding="utf-8"))
    lines = [["crowd", "workers", "labels per task", "precision, %", "recall, %"]]
    lines.append(["---", *["---:"] * 4])
    for row in data["flags"]:
        sizes = [str(row["workers"]), str(row["labels_per_item"])]
        shares = [f"{100 * row[name]:.0f}" for name in ("precision", "recall")]
        lines.append([row["crowd"], *sizes, *shares])
    dense = [row["by_flag"]["drifting"] for row in data["flags"] if row["labels_per_item"] >= 6]
    found, wanted = (sum(counted[name] for counted in dense) for name in ("found", "wanted"))
    return (
        _table(lines)
        + f"\n{data['flags'][0]['seeds']} crowds each. Where tasks have six labels or more, "
        f"{found} of {wanted} sleepers were found within ten chunks, "
        f"{100 * found / wanted:.0f} %.\n\nMade by `{data['made']['command']}`.\n"
    )


def calm() -> str:
    """How many honest workers are flagged where all are, crowd by crowd."""
    data = json.loads(CROWD.read_text(encoding="utf-8"))
    kinds = list(data["calm"][0]["ever"])
    names = ["labels per task", "workers", *(f"`{kind}`" for kind in kinds)]
    lines = [["crowd", *names], ["---", *["---:"] * len(names)]]
    for row in data["calm"]:
        counts = [row["labels_per_item"], row["workers"], *row["ever"].values()]
        lines.append([row["crowd"], *map(str, counts)])
    return (
        _table(lines)
        + f"\nWorkers who were ever flagged in {data['calm'][0]['chunks']} chunks, looking at "
        f"every fifth.\n\nMade by `{data['made']['command']}`.\n"
    )


def calm_summary() -> str:
    """How many honest workers are flagged, in one sentence."""
    rows = json.loads(CROWD.read_text(encoding="utf-8"))["calm"]
    workers = sum(row["workers"] for row in rows)
    ever = sum(sum(row["ever"].values()) for row in rows)
    return (
        f"In {len(rows)} crowds with {workers:,} honest workers in all, {ever} flags were raised "
        f"in {rows[0]['chunks']} chunks.\n"
    )


def stopping() -> str:
    """What stopping at a confidence saved and cost, crowd by crowd."""
    data = json.loads(CROWD.read_text(encoding="utf-8"))
    names = ["saved", "error", "closed", "error of those", "predicted: saved", "predicted: error"]
    head = ["crowd", "labels per task", "error with all", "confidence", *names]
    columns = ("saved", "error", "closed", "closed_error", "said_saved", "said_error")
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for row in data["stopping"]:
        first = [row["crowd"], str(row["labels_per_item"]), f"{100 * row['fixed_error']:.1f}"]
        shares = [f"{100 * row[column]:.1f}" for column in columns]
        lines.append([*first, f"{row['confidence']:g}", *shares])
    return (
        _table(lines)
        + f'\nIn %, of {data["stopping"][0]["items"]} tasks each. "Closed" are those that became '
        'sure enough before their labels ran out; "predicted" is what `stopping()` says from all '
        f"labels.\n\nMade by `{data['made']['command']}`.\n"
    )


def encoder_answers() -> str:
    """What q answers by itself and what p does, on the Pendigits crowd of `experiments/www2021`."""
    file = RESULTS / "results" / "cells.jsonl"
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    rows = {
        '`BiLA("www2021")`': ("www2021", {}),
        '`BiLA("authors")`': ("authors", {}),
        '`BiLA("www2021", labels_as="one_hot")`': ("www2021", {"labels_as": "one_hot"}),
        '`BiLA("network")`, one-hot and without hidden layers': ("network", {}),
    }

    def error(method: str, settings: dict[str, Any]) -> str:
        wanted = {"data": "pendigits", "method": method, "chunk": 200, "initial": 1000}
        wanted |= {"settings": settings} if settings else {}
        errors = [
            record["result"]["error"]
            for record in records
            if {n: v for n, v in record.get("cell", {}).items() if n != "seed"} == wanted
        ]
        if not errors:
            raise LookupError(f"{file} has no run of {wanted}. Make it by `{REPRODUCE}`.")
        mean = sum(errors) / len(errors)
        return f"{mean:.1f} ({min(errors):.1f} to {max(errors):.1f})"

    lines = [["", "by q alone", "by p"], ["---", "---:", "---:"]]
    for name, (method, settings) in rows.items():
        by_p = {**settings, "predict_by": "likelihood"} if settings or method == "network" else {}
        data = error(method, {**settings, "predict_by": "encoder"}), error(method, by_p)
        lines.append([name, *data])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def stopping_summary() -> str:
    """What stopping at 0.95 saved and cost, in one sentence."""
    rows = json.loads(CROWD.read_text(encoding="utf-8"))["stopping"]
    rows = [row for row in rows if row["confidence"] == 0.95]
    saved, error, before = (
        sorted(100 * row[name] for row in rows) for name in ("saved", "error", "fixed_error")
    )
    return (
        f"In {len(rows)} simulated crowds, stopping at a confidence of 0.95 saved "
        f"{saved[0]:.0f} to {saved[-1]:.0f} % of the labels; the error rose from "
        f"{before[0]:.1f}–{before[-1]:.1f} % to {error[0]:.1f}–{error[-1]:.1f} %.\n"
    )


def reported(folder: Path, part: str, command: str) -> str:
    """What an experiment's report wrote of a part; its pictures stay where they are."""
    file = folder / f"{part}.md"
    if not file.exists():
        return f"Not measured yet. It is made by `{command}`.\n"
    place = os.path.relpath(folder, ROOT / "docs")
    return re.sub(r"\]\((\w+\.svg)\)", rf"]({place}/\1)", file.read_text(encoding="utf-8"))


def label_studio() -> str:
    """What a run with a real Label Studio showed."""
    data = json.loads(STUDIO.read_text(encoding="utf-8"))
    rows = [[what, "held" if held else "**failed**"] for what, held in data["checks"].items()]
    did = ", ".join(f"{count} {what}" for what, count in data["annotations"].items())
    return (
        _table([["check", ""], ["---", "---"], *rows])
        + f"\nAnnotations: {did} while the hook was off. {data['events']} events came by the hook, "
        f"the slowest was answered in {data['slowest_event_ms']} ms; {data['answered']} tasks have "
        f"their consensus. With Label Studio {data['label_studio']}, labelquorum "
        f"{data['labelquorum']}, Python {data['python']}.\n\nMade by `{data['command']}`.\n"
    )


def faults() -> str:
    """What `python3 run.py faults --long` wrote."""
    file = FAULTS / "faults.md"
    if not file.exists():
        return "Not measured yet. It is made by `python3 run.py faults --long`.\n"
    return file.read_text(encoding="utf-8")


def fault_points() -> str:
    """How often a stream was killed at each point."""
    file = FAULTS / "long.json"
    if not file.exists():
        return "Not measured yet. It is made by `python3 run.py faults --long`.\n"
    tests = json.loads(file.read_text(encoding="utf-8"))["tests"]
    lines = [["killed", "times"], ["---", "---:"]]
    for figures in (test["figures"] for test in tests.values()):
        for name, value in figures.items():
            if name.startswith("kills at "):
                point = name.removeprefix("kills at ")
                lines.append([f"`{point}`" if "_" in point else point, f"{value:,}"])
    return _table(lines)


TABLES: dict[str, Callable[[], str]] = {
    "faults": faults,
    "fault_points": fault_points,
    "accuracy_targets": partial(reported, ACCURACY, "targets", "python3 run.py accuracy"),
    "encoder_answers": encoder_answers,
    "votes": partial(
        reported, ACCURACY, "votes", "python3 run.py python experiments/accuracy/votes.py"
    ),
    "selection": partial(
        reported,
        ACCURACY,
        "selection",
        "python3 run.py python experiments/accuracy/selection.py",
    ),
    "spark_kills": partial(
        reported, SPARK, "kills", "python3 run.py spark experiments/spark/kills.py --save"
    ),
    "certificates": partial(
        reported, TRUST, "certificates", "python3 run.py python experiments/trust/certificates.py"
    ),
    **{
        f"trust_{part}": partial(
            reported,
            TRUST,
            f"trust_{part}",
            "python3 run.py python experiments/trust/measure.py",
        )
        for part in ("targets", "calibration", "sets", "guard")
    },
    "trust_temperature": partial(
        reported,
        TRUST,
        "trust_temperature",
        "python3 run.py python experiments/trust/temperature.py",
    ),
    "benchmark_caps": benchmark_caps,
    "benchmark_scores": benchmark_scores,
    "benchmark_online": partial(benchmark_errors, "online"),
    "benchmark_batch": partial(benchmark_errors, "batch"),
    "benchmark_refit": partial(benchmark_errors, "windowed", "refit"),
    "benchmark_memory": benchmark_memory,
    "benchmark_missing": benchmark_missing,
    "coverage": coverage,
    "coverage_summary": coverage_summary,
    "gain": gain,
    "gain_summary": gain_summary,
    "label_studio": label_studio,
    "asking": asking,
    "flags": flags,
    "flags_summary": flags_summary,
    "calm": calm,
    "calm_summary": calm_summary,
    "stopping": stopping,
    "stopping_summary": stopping_summary,
    "results": results,
    "presets": presets,
    "settings": settings,
    "commands": commands,
    "routes": routes,
    "more": more,
}
"""What stands between the marks of each name."""


def main(arguments: list[str] | None = None) -> None:
    """Write all pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pictures", action="store_true", help="draw docs/images again")
    parser.add_argument("pages", nargs="*", help="such as docs/tutorial.md; all unless given")
    options = parser.parse_args(arguments)
    if options.pictures:
        subprocess.run([sys.executable, str(ROOT / "docs" / "pictures.py")], check=True)
    for page in options.pages or PAGES:
        text = render(page)
        changed = text != (ROOT / page).read_text(encoding="utf-8")
        if changed:
            (ROOT / page).write_text(text, encoding="utf-8")
        sys.stderr.write(f"{page}: {'written' if changed else 'as it was'}\n")


if __name__ == "__main__":
    main()
