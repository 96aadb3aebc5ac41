"""Measure what a few true labels are worth: juries of LLM judges and ordinary crowds.

    LABELQUORUM_DATA=… python3 run.py python experiments/trust/gold.py [--smoke] [--report-only]

LABELQUORUM_DATA names folders of data sets, separated by `:`. Gold is drawn at random, errors are
on the other tasks. `results/gold.json` has the figures and `results/gold.md` the tables.
`--variants` also scores other constants of the stack, chosen with each family left out.
"""

import argparse
import json
import os
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd
from gold_report import CROWDS, JURIES, LARGE, LARGE_DRAWS, report

import labelquorum as lq
import labelquorum.learn.bila.stacking as stacking
from labelquorum.evaluation import calibration_error

RESULTS = Path(__file__).parent / "results"
SIZES, CROWD_SIZES = (0, 10, 20, 50, 100, 500), (0, 20, 50)
CHUNK = 50
PENALTY = 0.05  # C of the plain stacks, as in the data sets' README
BINS = 10
EARLIER = {"SLOPE": 1.0, "FEW_TASKS": 30.0, "VARIANCES": (0.5, 2.0, 8.0, 32.0)}
VARIANTS = {
    "as committed": {},
    "slope 1": {"SLOPE": 1.0},
    "slope 0.5": {"SLOPE": 0.5, "SLOPE_VARIANCE": 0.25},
    "few tasks 5": {"FEW_TASKS": 5.0},
    "few tasks 10": {"FEW_TASKS": 10.0},
    "few tasks 30": {"FEW_TASKS": 30.0},
    "bias 0.01": {"BIAS_VARIANCE": 0.01},
    "variance 0.5 to 32": {"VARIANCES": (0.5, 2.0, 8.0, 32.0)},
    "variance 1 to 256": {"VARIANCES": (1.0, 4.0, 16.0, 64.0, 256.0)},
    "slope 1, variance 0.5 to 32, few tasks 30": EARLIER,
}


# ── data ─────────────────────────────────────────────────────────────────────────────────


def load(name):
    """Labels, truth and workers of a data set, wherever LABELQUORUM_DATA has it; or None."""
    for folder in os.environ.get("LABELQUORUM_DATA", "").split(":"):
        here = Path(folder) / name
        files = [f for f in (here / "labels.csv", here / "labels.csv.gz") if folder and f.exists()]
        if files and (here / "truth.csv").exists():
            kinds = dict.fromkeys(("task", "worker", "label"), str)
            labels = pd.read_csv(
                files[0], dtype=kinds, keep_default_na=False, na_values={"score": [""]}
            )
            truth = pd.read_csv(here / "truth.csv", dtype=str).set_index("task")["label"]
            workers = here / "workers.csv"
            known = pd.read_csv(workers, dtype=str) if workers.exists() else None
            keep = [c for c in ("task", "worker", "label", "score") if c in labels]
            return labels[keep], truth[truth.index.isin(set(labels["task"]))], known
    return None


def family(name):
    return name.split("_")[0] if name in JURIES else "crowds"


def draws_of(truth, n, draws):
    """Gold of each draw: the first n of a random order, so that more gold holds less gold."""
    for seed in range(draws):
        order = np.random.default_rng(seed).permutation(len(truth))
        yield seed, truth.iloc[order[:n]]


# ── what is compared ─────────────────────────────────────────────────────────────────────


def columns_of(labels, tasks, scores):
    """One-hot votes, or scores, by task, standardised; nothing said is 0."""
    if scores:
        table = labels.pivot_table(index="task", columns="worker", values="score", aggfunc="mean")
        table = table.reindex(tasks)
        values = table.to_numpy(float)
        mean = np.nanmean(values, axis=0)
        values = np.where(np.isnan(values), mean, values)
        spread = values.std(axis=0)
        return (values - mean) / np.where(spread > 0, spread, 1)
    column = labels["worker"] + "\x00" + labels["label"]
    values = pd.crosstab(labels["task"], column).reindex(tasks).to_numpy(float)
    spread = values.std(axis=0)
    return (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1)


def plain_stack(features, places, gold):
    """Ridge-logistic regression on the gold, and its answers on all tasks."""
    from sklearn.linear_model import LogisticRegression

    if gold.nunique() == 1:
        return np.repeat(gold.iloc[0], len(features))
    model = LogisticRegression(C=PENALTY, max_iter=1000)
    return model.fit(features[places], gold.to_numpy()).predict(features)


def best_judge(votes, vote, gold, seed):
    """The answers of the judge with the fewest errors on the gold; the vote where it has none."""
    own = votes.reindex(gold.index)
    right = own.eq(gold, axis=0).sum() + 1e-6 * np.random.default_rng(seed).random(votes.shape[1])
    return votes[right.idxmax()].fillna(vote)


def error(answers, truth):
    return float((answers.reindex(truth.index) != truth).mean())


def ece(probas, truth):
    probs = probas.reindex(truth.index)
    known = truth.isin(probs.columns).to_numpy()
    place = probs.columns.get_indexer(truth[known])
    return float(calibration_error(probs.to_numpy()[known], place, BINS))


def noise(probas, truth):
    """The ECE that as many tasks would have if each truth were drawn from its probabilities."""
    probs = probas.reindex(truth.index).to_numpy(float)
    edges = np.cumsum(probs / probs.sum(axis=1, keepdims=True), axis=1)
    drawn = np.random.default_rng(0).random((len(probs), 1))
    place = np.minimum((drawn > edges).sum(axis=1), probs.shape[1] - 1)
    return float(calibration_error(probs, place, BINS))


def online(labels, gold, workers, seed):
    """Chunks of 50 tasks in random order: final answers, and what was emitted."""
    tasks = labels["task"].unique()
    place = pd.Series(np.random.default_rng([seed, 1]).permutation(len(tasks)), index=tasks)
    chunk = labels["task"].map(place) // CHUNK
    model, emitted, probas = lq.BiLA(open_items=len(tasks)), [], []
    for _, part in labels.groupby(chunk, sort=True):
        here = gold[gold.index.isin(set(part["task"]))]
        model.partial_fit(part, true_labels=here, workers=workers)
        emitted.append(model.labels_)
        probas.append(model.probas_)
    return model.predict(labels), model.predict_proba(labels), pd.concat(emitted), pd.concat(probas)


def measure_jury(name, draws):
    labels, truth, workers = load(name)
    tasks = truth.index
    features = {"stack": columns_of(labels, tasks, scores=False)}
    if name == "care_civilcomments":
        features["scores"] = columns_of(labels, tasks, scores=True)
    votes = labels.drop_duplicates(["task", "worker"]).pivot(
        index="task", columns="worker", values="label"
    )
    votes = votes.loc[tasks, votes.loc[tasks].notna().mean() >= 0.8]
    vote = lq.MajorityVote().fit(labels[["task", "worker", "label"]]).labels_
    alone = lq.BiLA().fit(labels, workers=workers)
    place, cells = pd.Series(np.arange(len(tasks)), index=tasks), []
    for n in SIZES:
        if n > 0.6 * len(truth):
            continue
        found = {}
        for seed, gold in draws_of(truth, n, draws if n else 1):
            rest = truth.drop(gold.index)

            def add(key, answers, probas=None, rest=rest, found=found):
                found.setdefault(key, []).append(error(answers, rest))
                if probas is not None:
                    found.setdefault(f"{key}_ece", []).append(ece(probas, rest))

            add("unsupervised", alone.labels_, alone.probas_)
            if n:
                for key, columns in features.items():
                    said = plain_stack(columns, place[gold.index].to_numpy(), gold)
                    add(key, pd.Series(said, index=tasks))
                if votes.shape[1]:
                    add("judge", best_judge(votes, vote, gold, seed))
                model = lq.BiLA().fit(labels, true_labels=gold, workers=workers)
                add("offline", model.labels_, model.probas_)
            if seed < LARGE_DRAWS or len(tasks) <= LARGE:
                final, probas, emitted, emitted_probas = online(labels, gold, workers, seed)
                add("online", final, probas)
                add("emitted", emitted, emitted_probas)
        cells.append(cell(name, n, found))
    return cells


def measure_crowd(name, draws, sizes=CROWD_SIZES):
    labels, truth, workers = load(name)
    alone = lq.BiLA().fit(labels, workers=workers)
    cells = []
    for n in sizes:
        found = {}
        for _, gold in draws_of(truth, n, draws if n else 1):
            rest = truth.drop(gold.index)
            model = lq.BiLA().fit(labels, true_labels=gold, workers=workers) if n else alone
            for key, used in (("unsupervised", alone), ("offline", model)):
                found.setdefault(key, []).append(error(used.labels_, rest))
                found.setdefault(f"{key}_ece", []).append(ece(used.probas_, rest))
                found.setdefault(f"{key}_noise_ece", []).append(noise(used.probas_, rest))
        cells.append(cell(name, n, found))
    return cells


def cell(name, n, found):
    means = {key: round(100 * float(np.mean(values)), 3) for key, values in found.items()}
    draws = {key: len(values) for key, values in found.items() if not key.endswith("_ece")}
    return {"set": name, "n": n, "draws": max(draws.values()), **means} | (
        {"online_draws": draws["online"]} if "online" in draws else {}
    )


# ── other constants ──────────────────────────────────────────────────────────────────────


@contextmanager
def constants(values):
    kept = {name: getattr(stacking, name) for name in values}
    for name, value in values.items():
        setattr(stacking, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(stacking, name, value)


def measure_variants(names, draws):
    """Mean offline error of each variant by family, and that of the one chosen on the others."""
    by_family = {}
    for variant, values in VARIANTS.items():
        with constants(values):
            for name in names:
                sizes = (20, 50) if name not in JURIES or len(load(name)[1]) > 90 else (20,)
                cells = measure_crowd(name, draws, sizes)
                errors = by_family.setdefault(variant, {}).setdefault(family(name), [])
                errors.append(float(np.mean([one["offline"] for one in cells])))
    means = {v: {f: float(np.mean(e)) for f, e in one.items()} for v, one in by_family.items()}
    left_out = {}
    for one in means["as committed"]:
        others = {v: np.mean([e for f, e in m.items() if f != one]) for v, m in means.items()}
        chosen = min(others, key=others.get)
        left_out[one] = {"chosen": chosen, "error": round(means[chosen][one], 3)}
    rounded = {v: {f: round(e, 3) for f, e in m.items()} for v, m in means.items()}
    return {"draws": draws, "errors": rounded, "left_out": left_out}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="one small set, two draws, no file")
    parser.add_argument("--report-only", action="store_true")
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--draws", type=int, default=20)
    chosen = parser.parse_args()
    file = RESULTS / "gold.json"
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"cells": []}
    if chosen.smoke:
        cells = [c for n in ("llmbar_adversarial_manual",) if load(n) for c in measure_jury(n, 2)]
        print(report({"cells": cells}))
        return
    if not chosen.report_only:
        names = [name for name in (*JURIES, *CROWDS) if load(name)]
        if chosen.variants:
            results["variants"] = measure_variants(names, min(chosen.draws, 5))
        else:
            results["cells"] = []
            for name in names:
                began = perf_counter()
                measure = measure_jury if name in JURIES else measure_crowd
                results["cells"] += measure(name, chosen.draws)
                print(f"{name}: {perf_counter() - began:.0f} s", flush=True)
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "gold.md").write_text(report(results), encoding="utf-8")
    print(report(results))


if __name__ == "__main__":
    main()
