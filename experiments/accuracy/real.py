"""Parts 1, 2 and 4 of the report: real crowds in chunks of 50, the benchmark, and chunk sizes."""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cells import HERE
from targets import (
    RANDOM,
    TITLES,
    Part,
    Scores,
    Target,
    Value,
    by_family,
    family,
    largest,
    less,
    over_families,
    over_sets,
    plus_minus,
    table,
    written,
)

BENCHMARK = HERE.parents[1] / "benchmarks" / "online"
OURS = ("bila", "bila:recipe", "majority_vote")  # measured here
STREAMED = ("online", "windowed")  # kinds of the benchmark that answer chunk by chunk and forget


def ten_sets(scores: Scores) -> Part:
    """The ten sets of the research the recipe came from."""
    names = scores.plan.names("ten")
    part = Part(f"{counted(names)} sets in chunks of 50")
    means = {m: over_sets(scores.means(names, m)) for m in ("vote", "recipe", "bila")}
    final = {m: over_sets(scores.means(names, m, "final")) for m in ("recipe", "bila")}
    part.targets = [
        Target(promise, mean, limit, error=scores.error(names, method, score))
        for promise, mean, limit, method, score in (
            ("mean emitted error of `bila:recipe`, %", means["recipe"], 16.2, "recipe", "emitted"),
            ("mean final error of `bila:recipe`, %", final["recipe"], 16.0, "recipe", "final"),
            ("mean emitted error of `bila`, %", means["bila"], 15.7, "bila", "emitted"),
        )
    ]
    part.say(
        f"Emitted and final error in per cent, {scores.orders(names, 'bila')} random orders, "
        "mean ± standard error over orders. Differences are paired order by order; that of the "
        "last line has its standard error over sets."
    )
    lines, rows, paired = [], [], {}
    for name in names:
        row = _row(scores, name)
        lines.append([name, *_errors(scores, name), plus_minus(row["paired"], "+.2f")])
        paired[name] = row["difference"]
        rows.append(row)
    differences = [value for value in paired.values() if value is not None]
    reply = [written(means["vote"]), written(means["recipe"]), written(final["recipe"])]
    reply += [written(means["bila"]), written(final["bila"]), plus_minus(differences, "+.2f")]
    lines.append(["**mean**", *reply])
    head = ["set", TITLES["vote"], TITLES["recipe"], "final", TITLES["bila"], "final"]
    part.add("sets", table([*head, "`bila` − `bila:recipe`"], lines), rows)
    return part


def _row(scores: Scores, name: str) -> dict[str, Any]:
    pairs = scores.pairs(name, "bila", "recipe", **RANDOM)
    reply: dict[str, Any] = {"set": name, "family": family(name)}
    for method in ("vote", "recipe", "bila"):
        for score in ("emitted", "final", "log_loss", "ece"):
            reply[f"{method}_{score}"] = _rounded(scores.mean(name, method, score, **RANDOM))
    difference = less(*(scores.mean(name, m, **RANDOM) for m in ("bila", "recipe")))
    return reply | {"paired": [round(d, 4) for d in pairs], "difference": _rounded(difference)}


def _errors(scores: Scores, name: str) -> list[str]:
    runs = {m: scores.runs(name, m, **RANDOM) for m in ("vote", "recipe", "bila")}
    reply = [plus_minus(runs["vote"].values() if runs["vote"] else [])]
    for method in ("recipe", "bila"):
        run = runs[method]
        reply += [plus_minus(run.values()), f"{run.mean('final'):.2f}"] if run else ["–", "–"]
    return reply


# ── the benchmark ────────────────────────────────────────────────────────────────────────────


@cache
def benchmark_rows(folder: Path = BENCHMARK) -> list[dict[str, Any]]:
    """Rows of the online benchmark under its usual protocol that have a figure."""
    rows = [
        row
        for path in sorted(folder.glob("*.json"))
        for row in json.loads(path.read_text(encoding="utf-8"))["results"]
    ]
    usual = {"chunk_items": 50, "order": "random", "arrival": "items", "warmup_items": 0}
    return [
        row
        for row in rows
        if row.get("emitted_error") is not None and all(row[n] == v for n, v in usual.items())
    ]


def benchmark(scores: Scores) -> Part:
    """All development sets, beside every method of the benchmark."""
    names = scores.plan.names("development")
    families = {family(name) for name in names}
    part = Part(f"All {len(names)} development sets")
    ours = {m: scores.means(names, m) for m in ("vote", "recipe", "bila")}
    others = _others(names)
    kinds = {"recipe": "online", "vote": "online"} | {m: kind for m, (kind, _) in others.items()}
    errors = {m: dict(ours[m]) for m in ("recipe", "vote")}
    errors |= {m: dict(done) for m, (_, done) in others.items()}
    compared = {m: _compare(ours["bila"], done) for m, done in errors.items() if done}
    for mean, place in (("sets", 0), ("families", 1)):
        for kind, title in (("online", "other online"), ("batch", "batch")):
            gaps = [
                gap[place]
                for m, gap in compared.items()
                if (kinds[m] in STREAMED) == (kind == "online") and kinds[m] != "refit"
            ]
            part.targets.append(
                Target(
                    f"`bila` less the best {title} method, mean over {mean}, points",
                    largest(gaps) if others else None,
                    0.0,
                    "+.2f",
                    strictly=kind == "online",
                )
            )
    against = {name: less(ours["bila"][name], ours["vote"][name]) for name in names}
    part.targets.append(
        Target("`bila` less majority vote, worst set, points", largest(against.values()), 2.5)
    )
    part.say(
        f"{len(names)} sets of {len(families)} families, {scores.orders(names, 'bila')} orders. "
        "Sets of one family share items or workers' labels; a family's sets are averaged before "
        "the families are."
    )
    lines = []
    for name in sorted(names, key=lambda name: (family(name), name)):
        reply = [family(name), *_errors(scores, name)]
        reply.append(plus_minus(scores.pairs(name, "bila", "recipe", **RANDOM), "+.2f"))
        lines.append([name, *reply, written(against[name], "+.2f")])
    for title, mean in (("mean over sets", over_sets), ("mean over families", over_families)):
        lines.append([f"**{title}**", "", *_mean_line(scores, names, mean)])
    head = ["set", "family", TITLES["vote"], TITLES["recipe"], "final", TITLES["bila"], "final"]
    head += ["`bila` − `bila:recipe`", "`bila` − vote"]
    part.add("sets", table(head, lines), [_row(scores, name) for name in names])
    _method_table(part, compared, kinds, errors)
    return part


def _mean_line(scores: Scores, names: list[str], mean: Any) -> list[str]:
    values = {(m, s): scores.means(names, m, s) for m in ("recipe", "bila") for s in BOTH}
    vote = scores.means(names, "vote")
    reply = [mean(vote), *(mean(values[m, s]) for m in ("recipe", "bila") for s in BOTH)]
    emitted = {m: values[m, "emitted"] for m in ("recipe", "bila")}
    gap = {name: less(emitted["bila"][name], emitted["recipe"][name]) for name in names}
    gaps = by_family(gap) if mean is over_families else [g for g in gap.values() if g is not None]
    against = mean({name: less(emitted["bila"][name], vote[name]) for name in names})
    return [*map(written, reply), plus_minus(gaps, "+.2f"), written(against, "+.2f")]


BOTH = ("emitted", "final")


def _others(names: Iterable[str]) -> dict[str, tuple[str, dict[str, float]]]:
    """The benchmark's other methods: kind, and emitted error by set."""
    found: dict[str, tuple[str, dict[str, float]]] = {}
    for row in benchmark_rows():
        if row["method"] not in OURS and row["dataset"] in names:
            done = found.setdefault(row["method"], (row["kind"], {}))[1]
            done[row["dataset"]] = row["emitted_error"]
    return found


def _compare(ours: Mapping[str, Value], done: Mapping[str, Value]) -> tuple[Value, Value]:
    """Ours less theirs on the sets they did: means over sets and over families."""
    mine = {name: ours[name] for name in done}
    return (
        less(over_sets(mine), over_sets(done)),
        less(over_families(mine), over_families(done)),
    )


def _method_table(
    part: Part,
    compared: Mapping[str, tuple[Value, Value]],
    kinds: Mapping[str, str],
    errors: Mapping[str, Mapping[str, Value]],
) -> None:
    part.say(
        "`bila` beside every other method, on the sets that method did: one that ran out of time, "
        "or takes two classes only, did fewer. Figures of the others are those of "
        "[the benchmark](../../../docs/benchmark.md). A batch method has seen everything before it "
        "gives its first answer; `refit:` keeps all labels and fits them again at each chunk, is "
        "measured on small sets only, and is held against no target."
    )
    lines, rows = [], []
    for method, gaps in sorted(compared.items(), key=lambda pair: -(pair[1][1] or 0)):
        title = {"recipe": "bila:recipe", "vote": "majority_vote"}.get(method, method)
        means = over_sets(errors[method]), over_families(errors[method])
        reply = [written(means[0]), written(gaps[0], "+.2f")]
        reply += [written(means[1]), written(gaps[1], "+.2f")]
        lines.append([f"`{title}`", kinds[method], str(len(errors[method])), *reply])
        rows.append(
            {
                "method": title,
                "kind": kinds[method],
                "sets": len(errors[method]),
                "mean_over_sets": _rounded(means[0]),
                "bila_less": _rounded(gaps[0]),
                "mean_over_families": _rounded(means[1]),
                "bila_less_over_families": _rounded(gaps[1]),
            }
        )
    head = ["method", "kind", "sets", "mean over sets", "`bila` less it"]
    part.add("methods", table([*head, "over families", "`bila` less it"], lines), rows)


# ── chunk sizes ──────────────────────────────────────────────────────────────────────────────

SIZES = (10, 50, 200, 0)


def chunk_sizes(scores: Scores) -> Part:
    """Whole items in chunks of any size, and labels that come singly."""
    names = scores.plan.names("ten")
    part = Part("Chunk sizes, and labels that come singly")

    def mean(method: str, score: str, **others: Any) -> Value:
        return over_sets(scores.means(names, method, score, **others))

    singly = {"chunk": 1, "arrival": "labels"}
    sizes = [mean("bila", "emitted", chunk=size) for size in SIZES]
    known = [size for size in sizes if size is not None]
    spread = max(known) - min(known) if len(known) == len(sizes) else None
    one = mean("bila", "emitted", chunk=1)
    off = None if one is None or spread is None else max(abs(one - size) for size in known)
    late = less(mean("bila", "final", **singly), mean("bila", "final", chunk=50))
    part.targets = [
        Target("`bila`, emitted error of chunks of 10 to whole: range, points", spread, 1.0),
        Target("`bila`, chunks of 1: distance from the farthest of these, points", off, 1.5),
        Target(
            "`bila`, final error after single labels less after chunks of 50", late, 0.3, "+.2f"
        ),
    ]
    part.say(
        "Mean over the same sets of the emitted and the final error. A label that comes singly is "
        "learned from and answered at once; the final model is then asked about all labels. That "
        "it errs less than after whole items would not count against it."
    )
    lines, rows = [], []
    ways: list[tuple[str, dict[str, Any]]] = [
        ("labels, one by one", singly),
        ("1 item", {"chunk": 1}),
    ]
    ways += [(f"{size} items" if size else "whole", {"chunk": size}) for size in SIZES]
    for title, others in ways:
        reply = {(m, s): mean(m, s, **others) for m in ("recipe", "bila") for s in BOTH}
        lines.append([title, *map(written, reply.values()), scores.orders(names, "bila", **others)])
        figures = {f"{m}_{s}": _rounded(value) for (m, s), value in reply.items()}
        rows.append({"chunks": title, **others, **figures})
    head = ["chunks of", TITLES["recipe"], "final", TITLES["bila"], "final", "orders"]
    part.add("sizes", table(head, lines), rows)
    part.say("Set by set, emitted error of `bila`, and the final error after single labels:")
    lines = []
    for name in names:
        reply = [scores.mean(name, "bila", chunk=size, **RANDOM) for size in (1, *SIZES)]
        ends = [scores.mean(name, "bila", "final", **RANDOM, **w) for w in ({"chunk": 50}, singly)]
        lines.append([name, *map(written, (*reply, *ends))])
    head = ["set", "1", *(str(size) if size else "whole" for size in SIZES)]
    part.add("sets", table([*head, "final, 50", "final, singly"], lines), [])
    return part


def counted(names: list[str]) -> str:
    return {10: "Ten", 2: "Two"}.get(len(names), str(len(names)))


def _rounded(value: Value) -> Value:
    return None if value is None else round(value, 4)
