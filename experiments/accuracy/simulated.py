"""Parts 3, 5 and 6 of the report: the paper's protocols, probabilities, and troublemakers."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from cells import standard_error
from targets import (
    RANDOM,
    TITLES,
    Part,
    Scores,
    Target,
    Value,
    family,
    largest,
    over_families,
    over_sets,
    plus_minus,
    table,
    written,
)

METHODS = ("vote", "recipe", "bila")
SCORES = ("ece", "log_loss")
WAYS = {"added": "added to the clean labels", "replaced": "in honest workers' place"}
RISES = ("added", "worst_added", "replaced", "oracle_replaced")


def paper(scores: Scores) -> Part:
    """The paper's synthetic crowd, and RTE as the paper streams it."""
    part = Part("The paper's protocols")
    part.say(
        "The synthetic crowd, chunks of 200 after an initial set of 1,000 items: emitted error in "
        "per cent, mean ± standard error over crowds. The oracle knows the true matrices."
    )
    lines, rows = [], []
    wanted = [("paper", 1000), ("paper", 0), ("paper_spread", 1000), ("paper_cifar10", 1000)]
    for name, initial in wanted:
        others = {"chunk": 200, "initial": initial}
        reply = _row(scores, name, others)
        title = scores.plan.crowds[name]["title"] + ("" if initial else ", no initial set")
        above = scores.differences((name, "bila", others), (name, "oracle", {}))
        lines.append([title, *reply, plus_minus(above, "+.2f"), str(len(above))])
        excess = fmean(above) if above else None
        rows.append({"crowd": title, **_figures(scores, name, others), "bila_less_oracle": excess})
        if initial and name in ("paper", "paper_cifar10"):
            promise = f"`bila` less the oracle, {title}, points"
            error = standard_error(above) if above else None
            part.targets.append(Target(promise, excess, 1.0, error=error))
    head = ["crowd", *(TITLES[m] for m in ("oracle", *METHODS)), "`bila` − oracle", "crowds"]
    part.add("crowds", table(head, lines), rows)
    part.say("RTE, chunks of 25 and 50 after an initial set of 500 items:")
    lines, rows = [], []
    for order in ("file", "random"):
        for chunk in (25, 50):
            others = {"chunk": chunk, "initial": 500, "order": order}
            runs = scores.runs("rte", "bila", **others)
            n_orders = len(runs.runs) if runs else 0
            reply = "file order" if order == "file" else f"{n_orders} random orders"
            title = f"{reply}, chunks of {chunk}"
            lines.append([title, *_row(scores, "rte", others)[1:]])
            rows.append({"order": order, **_figures(scores, "rte", others)})
            mean = scores.mean("rte", "bila", **others)
            error = scores.error(["rte"], "bila", **others)
            part.targets.append(Target(f"`bila` on RTE, {title}, %", mean, 7.5, error=error))
    part.add("rte", table(["RTE", *(TITLES[m] for m in METHODS)], lines), rows)
    return part


def _row(scores: Scores, name: str, others: Mapping[str, Any]) -> list[str]:
    runs = [scores.runs(name, method, **others) for method in ("oracle", *METHODS)]
    return [plus_minus(run.values()) if run else "–" for run in runs]


def _figures(scores: Scores, name: str, others: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **others,
        **{m: _rounded(scores.mean(name, m, **others)) for m in ("oracle", *METHODS)},
    }


# ── probabilities ────────────────────────────────────────────────────────────────────────────


def calibration(scores: Scores) -> Part:
    """ECE and log loss of the emitted probabilities, on real and simulated crowds."""
    part = Part("Probabilities")
    ten, every = scores.plan.names("ten"), scores.plan.names("development")
    part.say(
        "ECE (15 bins, per cent) and log loss (nats) of the probabilities given as chunks of 50 "
        "arrive. Real crowds:"
    )
    groups: list[tuple[str, list[str], Any]] = [
        (f"{len(ten)} sets of the recipe", ten, over_sets),
        (f"{len(every)} development sets", every, over_sets),
        (f"{len({*map(family, every)})} families of these", every, over_families),
    ]
    lines, rows = [], []
    for title, names, mean in groups:
        reply = {(m, s): mean(scores.means(names, m, s)) for m in METHODS for s in SCORES}
        lines.append([title, *_scores(reply)])
        rows.append({"group": title, **{f"{m}_{s}": _rounded(v) for (m, s), v in reply.items()}})
        part.targets.append(Target(f"ECE of `bila`, {title}, %", reply["bila", "ece"], 6.0, ".1f"))
    head = [text for m in METHODS for text in (f"{TITLES[m]}, ECE", "log loss")]
    part.add("means", table(["mean over", *head], lines), rows)
    simulated = scores.plan.names("independent")
    errors = [scores.mean(name, "bila", "ece", **RANDOM) for name in simulated]
    reply = f"ECE of `bila`, the worst of {len(simulated)} simulated independent crowds, %"
    part.targets.append(Target(reply, largest(errors), 3.0, ".1f"))
    part.say(
        f"Simulated crowds, {_seeds(scores, simulated)} each. The ECE of a finite sample is not 0 "
        "even for the oracle, whose probabilities are exact. In the last "
        f"{len(scores.plan.names('dependent'))}, workers err together, which only the oracle knows."
    )
    lines, rows = [], []
    for name in (*simulated, *scores.plan.names("dependent")):
        known = {
            (m, s): scores.mean(name, m, s, **RANDOM) for m in ("oracle", *METHODS) for s in SCORES
        }
        lines.append([scores.plan.crowds[name]["title"], *_scores(known)])
        rows.append({"crowd": name, **{f"{m}_{s}": _rounded(v) for (m, s), v in known.items()}})
    part.add("crowds", table(["crowd", "oracle, ECE", "log loss", *head], lines), rows)
    part.say("Set by set:")
    lines = []
    for name in every:
        known = {(m, s): scores.mean(name, m, s, **RANDOM) for m in METHODS for s in SCORES}
        lines.append([name, *_scores(known)])
    part.add("sets", table(["set", *head], lines), [])
    return part


def _scores(values: Mapping[tuple[str, str], Value]) -> list[str]:
    return [written(v, ".1f" if score == "ece" else ".3f") for (_, score), v in values.items()]


def _seeds(scores: Scores, names: list[str]) -> str:
    counts = {len(run.runs) for name in names if (run := scores.runs(name, "bila", **RANDOM))}
    return f"{min(counts)} crowds" if counts else "none yet"


# ── troublemakers ────────────────────────────────────────────────────────────────────────────


def robustness(scores: Scores) -> Part:
    """Spammers, bots, adversaries and rings among honest workers."""
    part = Part("Troublemakers")
    plan, offices = scores.plan, scores.plan.names("offices")
    shown = [name for name in plan.troubles if _has(scores, name)]
    counted = [name for name in plan.troubles if not plan.troubles[name].get("extra")]
    rows = [_trouble(scores, office, name) for office in offices for name in shown]
    reply = [row for row in rows if row["trouble"] in counted]
    whole = len(reply) == len(offices) * len(counted)
    for way, how in WAYS.items():
        worst = largest(row[way] for row in reply) if whole else None
        part.targets.append(Target(f"`bila`, troublemakers {how}: worst rise, points", worst, 2.0))
    n_runs = sum(row["runs"] for row in reply)
    lost = sum(row["worse_than_vote"] for row in reply) if whole else None
    part.targets.append(
        Target(f"of {n_runs} crowds, those on which `bila` errs more than the vote", lost, 0, ".0f")
    )
    first = plan.crowds[offices[0]]
    low, high = first["skill"]
    part.say(
        f"{first['n_items']:,} items, {first['n_workers']} workers right with probability {low} to "
        f"{high}, {first['n_classes']} classes, {first['labels_per_item']} labels per item, chunks "
        f"of 50, {max((row['runs'] for row in rows), default=0)} crowds each. Some workers turn "
        "into troublemakers; nobody else's label changes. *Added* compares with the same crowd "
        "without their labels. *Replaced* compares with the crowd in which they were honest: there "
        "the oracle loses too, and its own rise stands beside. Differences are paired crowd by "
        "crowd, and the worst crowd is that of *added*."
    )
    for office in offices:
        part.say(f"Honest workers: {plan.crowds[office]['title']}.")
        lines = []
        for row in rows:
            if row["crowd"] == office:
                errors = [row[name] for name in ("vote", "recipe", "bila", "oracle")]
                rises = [written(row[name], "+.2f") for name in RISES]
                told_line = [*map(written, errors), *rises]
                title = plan.troubles[row["trouble"]]["title"]
                lines.append([title, *told_line, f"{row['worse_than_vote']} of {row['runs']}"])
        clean = [scores.mean(office, m, **RANDOM) for m in (*METHODS, "oracle")]
        lines.insert(0, ["nobody", *map(written, clean), "", "", "", "", ""])
        head = ["among them", TITLES["vote"], TITLES["recipe"], TITLES["bila"], "oracle"]
        head += ["`bila`, added", "worst crowd", "`bila`, replaced", "oracle, replaced"]
        part.add(office, table([*head, "worse than vote"], lines), [])
    part.rows["all"] = rows
    return part


def _has(scores: Scores, trouble: str) -> bool:
    return any(
        scores.runs(office, "bila", **RANDOM, trouble=trouble)
        for office in scores.plan.names("offices")
    )


def _trouble(scores: Scores, office: str, trouble: str) -> dict[str, Any]:
    with_them = {**RANDOM, "trouble": trouble}
    ours = (office, "bila", with_them)
    added = scores.differences(ours, (office, "bila", {**with_them, "without": True}))
    replaced = scores.differences(ours, (office, "bila", RANDOM))
    limit = scores.differences((office, "oracle", with_them), (office, "oracle", RANDOM))
    above = scores.differences(ours, (office, "vote", with_them))
    return {
        "crowd": office,
        "trouble": trouble,
        "runs": len(above),
        **{m: _rounded(scores.mean(office, m, **with_them)) for m in (*METHODS, "oracle")},
        "added": _rounded(fmean(added)) if added else None,
        "worst_added": _rounded(max(added)) if added else None,
        "replaced": _rounded(fmean(replaced)) if replaced else None,
        "oracle_replaced": _rounded(fmean(limit)) if limit else None,
        "worse_than_vote": sum(gap > 1e-9 for gap in above),
    }


def _rounded(value: Value) -> Value:
    return None if value is None else round(value, 4)
