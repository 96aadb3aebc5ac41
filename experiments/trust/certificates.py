"""Replay certificates on every data set with truth: how often they are broken, what they save.

    python3 run.py python experiments/trust/certificates.py

The model is fitted once per set, without gold; paclabels_stance is one language model with a stated
confidence, which is used as it is. Then gold is drawn at random, one task after the other, and one
looks after each. A replay stops at its first certificate; another part of it goes on to a budget of
gold and looks at every hundred. A certificate is violated where, with people's labels for all tasks
but the accepted, more labels are wrong than was promised. The truth is used for the gold that was
drawn, and for scoring.

A random audit has no thresholds: it draws gold until all answers that are left may stand, by the
same bets. What is saved is the share of tasks that no person labels.

The variable LABELQUORUM_DATA names the folders of data sets, separated by a colon. `docs/trust.md`
shows what `results/certificates.json` says.
"""

import argparse
import csv
import gzip
import json
import os
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import labelquorum as lq
from labelquorum.evaluation.datasets.load import DATA_VARIABLE, list_datasets, read_dataset
from labelquorum.learn.analysis.certificate import BETS, Audit, Certificate, certificate

RESULTS = Path(__file__).parent / "results"
COMMAND = "python3 run.py python experiments/trust/certificates.py"
ERRORS = (0.02, 0.05, 0.10)
LEVEL = 0.95
REPLAYS = 500
MAX_GOLD, LOOK_EVERY = 500, 100
AUDIT_DRAWS = 2000  # looked at together
MIN_TASKS = 40  # with fewer, gold at random is all of them
STATED = {"paclabels_stance": "score"}  # the column of the stated confidence
NUMERIC = {"paclabels_sentiment"}  # its truth is a number, not a class


class Answers(NamedTuple):
    """The tasks of a set with truth: how sure the answer is, and whether it is wrong."""

    name: str
    confidence: NDArray[np.float64]
    wrong: NDArray[np.bool_]


def main() -> None:
    """Replay, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of data sets")
    parser.add_argument("--replays", type=int, default=REPLAYS)
    parser.add_argument("--output", type=Path, default=RESULTS / "certificates.json")
    parser.add_argument("--report-only", action="store_true", help="write the tables again")
    options = parser.parse_args()
    table = options.output.with_suffix(".md")
    if options.report_only:
        body = json.loads(options.output.read_text(encoding="utf-8"))
        table.write_text(report(body), encoding="utf-8")
        return
    started, rows = time.perf_counter(), []
    for answers in read_all(options.only):
        rows += [replay(answers, error, options.replays) for error in ERRORS]
        print(*(_line(row) for row in rows[-len(ERRORS) :]), sep="\n", flush=True)
        body = {
            "command": COMMAND,
            "version": lq.__version__,
            "replays": options.replays,
            "level": LEVEL,
            "seconds": round(time.perf_counter() - started),
            "rows": rows,
        }
        options.output.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        table.write_text(report(body), encoding="utf-8")


def read_all(only: list[str] | None) -> Iterator[Answers]:
    """Answers of every set with enough truth, in the folders that are named."""
    for folder in os.environ.get(DATA_VARIABLE, "").split(os.pathsep):
        for name in list_datasets(folder):
            if name in NUMERIC or (only and name not in only):
                continue
            found = stated(name, Path(folder)) if name in STATED else fitted(name, folder)
            if found is not None:
                yield found


def fitted(name: str, folder: str) -> Answers | None:
    """What BiLA() answers, without gold."""
    data = read_dataset(name, folder)
    if not len(data.table.labels) or len(data.truth) < MIN_TASKS:
        return None
    probas = lq.BiLA().fit(data.table).probas_
    known = [task for task in probas.index if task in data.truth]
    if len(known) < MIN_TASKS:
        return None
    probs = probas.loc[known].to_numpy()
    label = probas.columns.to_numpy()[probs.argmax(axis=1)]
    truth = np.array([data.truth[task] for task in known], dtype=object)
    return Answers(name, np.clip(probs.max(axis=1).astype(np.float64), 0, 1), label != truth)


def stated(name: str, folder: Path) -> Answers:
    """The label of one language model, with the confidence it states."""
    with (folder / name / "truth.csv").open(encoding="utf-8") as lines:
        truth = {row["task"]: row["label"] for row in csv.DictReader(lines)}
    with gzip.open(folder / name / "labels.csv.gz", "rt", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    confidence = np.array([float(row[STATED[name]]) for row in rows])
    return Answers(name, confidence, np.array([row["label"] != truth[row["task"]] for row in rows]))


# ── replays ──────────────────────────────────────────────────────────────────────────────


def replay(answers: Answers, error: float, replays: int) -> dict[str, object]:
    """What certificates of one set and one error promise and keep, over draws of gold."""
    n_tasks = len(answers.wrong)
    budget = min(MAX_GOLD, n_tasks // 4)
    looks = sorted({*range(LOOK_EVERY, budget, LOOK_EVERY), budget})
    first, violated, later, ever, audits = [], 0, [], 0, []
    for number in range(replays):
        seed = sha256(f"{answers.name} {number}".encode()).digest()[:8]
        drawn = np.random.default_rng(int.from_bytes(seed)).permutation(n_tasks)
        found = first_certificate(answers, drawn, error)
        broken = is_violated(answers, drawn, found)
        first.append(found)
        violated += broken
        at = [look(answers, drawn[:n], error) for n in looks]
        later.append(at[-1])
        ever += broken or any(is_violated(answers, drawn, one) for one in at)
        audits.append(audit(answers, drawn, error))
    return {
        "set": answers.name,
        "tasks": n_tasks,
        "answers_wrong": round(float(answers.wrong.mean()), 4),
        "error": error,
        "replays": replays,
        "violated": round(violated / replays, 4),
        "violated_at_any_look": round(ever / replays, 4),
        "first_gold": round(float(np.mean([one.gold for one in first])), 1),
        "first_accepted": round(float(np.mean([one.accepted for one in first])) / n_tasks, 4),
        "budget": budget,
        "certified": round(float(np.mean([one.certified for one in later])), 4),
        "accepted": round(float(np.mean([one.accepted for one in later])) / n_tasks, 4),
        "accepted_error": round(
            float(np.mean([one.accepted_error_bound for one in later if one.certified] or [0.0])), 4
        ),
        "audit_gold": round(float(np.mean(audits)), 1),
        "audit_saved": round(1 - float(np.mean(audits)) / n_tasks, 4),
    }


def look(answers: Answers, drawn: NDArray[np.intp], error: float) -> Certificate:
    """The certificate after these draws."""
    gold = Audit(drawn, answers.wrong[drawn])
    return certificate(answers.confidence, gold, error, LEVEL)


def first_certificate(answers: Answers, drawn: NDArray[np.intp], error: float) -> Certificate:
    """The certificate at which one stops who looks after every draw.

    Without one, `gold_needed` is the least there can be, so no look before it is left out.
    """
    n = 0
    while True:
        found = look(answers, drawn[:n], error)
        if found.certified:
            return found
        assert found.gold_needed is not None and found.gold_needed > n
        n = found.gold_needed


def is_violated(answers: Answers, drawn: NDArray[np.intp], found: Certificate) -> bool:
    """Whether more final labels are wrong than was promised."""
    accepted = np.ones(len(answers.wrong), bool)
    accepted[drawn[: found.gold]] = False
    accepted[np.asarray(found.todo, np.intp)] = False
    stands = accepted if found.certified else np.zeros_like(accepted)
    return bool(answers.wrong[stands].sum() > found.error * len(stands) + 1e-9)


def audit(answers: Answers, drawn: NDArray[np.intp], error: float) -> int:
    """After how many draws all answers may stand: one set, no thresholds."""
    n_tasks = len(drawn)
    r = int(error * n_tasks + 1e-9) + 1
    end = n_tasks - r + 1  # then no more are unseen than may be wrong
    capital = np.zeros(len(BETS))
    for start in range(0, end, AUDIT_DRAWS):
        draws = np.arange(start, min(start + AUDIT_DRAWS, end - 1))
        p = r / (n_tasks - draws)[:, None]
        hit = answers.wrong[drawn[draws], None]
        steps = np.where(hit, np.log(BETS), np.log((1 - BETS * p) / (1 - p)))
        each = capital + np.cumsum(steps, axis=0)
        reached = np.flatnonzero(np.exp(each).mean(axis=1) >= 1 / (1 - LEVEL))
        if len(reached):
            return start + int(reached[0]) + 1
        capital = each[-1] if len(each) else capital
    return end


# ── tables ───────────────────────────────────────────────────────────────────────────────


def report(body: dict[str, Any]) -> str:
    """What was measured: a sentence, then the first certificates, then those of a budget."""
    rows = body["rows"]
    sets = list(dict.fromkeys(row["set"] for row in rows))
    by = {(row["set"], row["error"]): row for row in rows}
    worst, ever = (max(row[name] for row in rows) for name in ("violated", "violated_at_any_look"))
    saved = np.mean([row["first_accepted"] for row in rows])
    audits = np.mean([row["audit_saved"] for row in rows])
    says = (
        f"{len(sets)} sets, {body['replays']} replays each, at {body['level']:.0%}. Of the replays "
        f"that stop at the first certificate, at most {worst:.1%} are violated on any set and at "
        f"any error; of those that look again at every hundred gold labels, {ever:.1%}. The first "
        f"certificate saves people {saved:.0%} of the tasks on average, a random audit "
        f"{audits:.0%}.\n"
    )
    first = [
        ["set", "tasks", "wrong"]
        + [f"{error:.0%}: {name}" for error in ERRORS for name in ("violated", "gold")]
        + [f"{error:.0%}: {name}" for error in ERRORS for name in ("saved", "audit")]
    ]
    for name in sets:
        cells = [by[name, error] for error in ERRORS]
        first.append(
            [name, f"{cells[0]['tasks']:,}", _percent(cells[0]["answers_wrong"])]
            + [f(row) for row in cells for f in (_violated, _gold)]
            + [_percent(row[key]) for row in cells for key in ("first_accepted", "audit_saved")]
        )
    later = [
        ["set", "gold"]
        + [f"{error:.0%}: {name}" for error in ERRORS for name in ("accepted", "their bound")]
    ]
    for name in sets:
        cells = [by[name, error] for error in ERRORS]
        if cells[0]["budget"] == MAX_GOLD:
            shown = [_percent(row[k]) for row in cells for k in ("accepted", "accepted_error")]
            later.append([name, str(MAX_GOLD), *shown])
    return (
        f"{says}\n{_table(first)}\nIn %. *Wrong*: of all answers. *Violated*: replays in which "
        "more labels were wrong than promised. *Gold*: labels drawn until the first certificate. "
        "*Saved*: tasks that no person labels then. *Audit*: the same for a random audit.\n\n"
        f"{_table(later)}\nIn %, sets with {4 * MAX_GOLD:,} tasks or more: *accepted* of all "
        "tasks, and the mean bound on the error of these alone.\n\n"
        f"Made by `{body['command']}`.\n"
    )


def _violated(row: dict[str, Any]) -> str:
    return _percent(row["violated"])


def _gold(row: dict[str, Any]) -> str:
    return f"{row['first_gold']:.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _table(rows: list[list[str]]) -> str:
    ruled = [rows[0], ["---", *["---:"] * (len(rows[0]) - 1)], *rows[1:]]
    return "".join(f"| {' | '.join(row)} |\n" for row in ruled)


def _line(row: dict[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in row.items())


if __name__ == "__main__":
    main()
