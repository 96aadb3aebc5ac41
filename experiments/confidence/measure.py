"""Measure whether intervals cover, and whether expected gains come true, on simulated crowds.

    python3 run.py python experiments/confidence/measure.py

The truth is used for scoring only. `docs/confidence.md` shows what `results/measured.json` says.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import labelquorum as lq
from labelquorum.evaluation import (
    chunks,
    class_conditional_crowd,
    one_coin_crowd,
    ordinal_crowd,
    with_judges,
)
from labelquorum.evaluation.simulate.crowds import draw_labels, generator
from labelquorum.ingest.chunks import make_chunk
from labelquorum.ingest.labels import LabelTable
from labelquorum.learn.analysis.posterior import fisher_rows
from labelquorum.learn.bila import PRESETS, bila
from labelquorum.learn.bila.hierarchical import Recipe, crowd_matrix, matrices

RESULTS = Path(__file__).parent / "results"
COMMAND = "python3 run.py python experiments/confidence/measure.py"
KINDS = {
    "one-coin": one_coin_crowd,
    "class-conditional": class_conditional_crowd,
    "ordinal": ordinal_crowd,
}
LEVELS = (0.8, 0.95)
SKEWED = {2: (0.75, 0.25), 3: (0.6, 0.3, 0.1)}

# kind, classes, labels per item, labels per worker, unequal classes, correlation of errors
COVERAGE = [
    ("one-coin", 2, 3, 60, False, 0.0),
    ("one-coin", 2, 5, 60, False, 0.0),
    ("one-coin", 2, 10, 60, False, 0.0),
    ("one-coin", 4, 5, 20, False, 0.0),
    ("one-coin", 4, 5, 60, False, 0.0),
    ("one-coin", 4, 5, 300, False, 0.0),
    ("class-conditional", 2, 3, 60, False, 0.0),
    ("class-conditional", 2, 3, 300, False, 0.0),
    ("class-conditional", 2, 5, 60, False, 0.0),
    ("class-conditional", 3, 5, 20, False, 0.0),
    ("class-conditional", 3, 5, 60, False, 0.0),
    ("class-conditional", 3, 5, 300, False, 0.0),
    ("class-conditional", 3, 10, 60, False, 0.0),
    ("class-conditional", 3, 10, 300, False, 0.0),
    ("class-conditional", 6, 5, 120, False, 0.0),
    ("class-conditional", 3, 3, 300, False, 0.0),
    ("class-conditional", 2, 5, 60, True, 0.0),
    ("class-conditional", 3, 10, 60, True, 0.0),
    ("class-conditional", 3, 5, 60, True, 0.0),
    ("class-conditional", 3, 3, 300, True, 0.0),
    ("ordinal", 5, 10, 60, False, 0.0),
    ("ordinal", 5, 3, 300, False, 0.0),
    ("class-conditional", 3, 5, 60, False, 0.1),
    ("class-conditional", 3, 5, 60, False, 0.3),
]

# kind, classes, labels per item, `dependence`
GAIN = [
    (kind, n_classes, labels, dependence)
    for dependence in (None, 0.2)
    for kind in ("one-coin", "class-conditional")
    for n_classes in (2, 4)
    for labels in (2, 4)
]

ASKING = [("one-coin", 2), ("class-conditional", 4)]


def simulate(kind, n_items, n_workers, n_classes, labels, skewed, correlation, seed):
    prior = SKEWED[n_classes] if skewed else None
    crowd = KINDS[kind](n_items, n_workers, n_classes, labels, class_prior=prior, seed=seed)
    return with_judges(crowd, correlation=correlation, seed=seed) if correlation else crowd


# ── do intervals cover? ──────────────────────────────────────────────────────────────────


def coverage(cell, seeds, n_workers):
    kind, n_classes, labels, per_worker, skewed, correlation = cell
    inside = {}
    for seed in range(seeds):
        n_items = n_workers * per_worker // labels
        crowd = simulate(kind, n_items, n_workers, n_classes, labels, skewed, correlation, seed)
        model = lq.BiLA(classes=list(range(n_classes)), seed=seed)
        for part in chunks(crowd, 50):
            model.partial_fit(LabelTable(*(column.tolist() for column in part)))
        truth = crowd.confusion[model.workers_]
        skill = np.diagonal(truth, axis1=1, axis2=2) @ crowd.class_prior
        for level in LEVELS:
            skills, entries = model.skill_intervals(level), model.confusion_intervals(level)
            for name, table, true in (
                ("skill", skills, skill),
                ("entry", entries, truth.ravel()),
            ):
                covered = (table["low"] <= true) & (true <= table["high"])
                inside.setdefault(f"{name}_{level}", []).append(covered)
                if level == LEVELS[-1]:
                    width = table["high"] - table["low"]
                    inside.setdefault(f"{name}_width", []).append(width)
        for name, covered in plain_coverage(crowd, seed).items():
            inside.setdefault(name, []).append(covered)
    shares = {name: round(float(np.mean(np.concatenate(each))), 4) for name, each in inside.items()}
    names = ("kind", "n_classes", "labels_per_item", "labels_per_worker", "skewed", "correlation")
    return dict(zip(names, cell, strict=True)) | {"workers": seeds * n_workers} | shares


def plain_coverage(crowd, seed, draws=400):
    """What Laplace's approximation alone would cover at 95 %: θ is normal, the counts known."""
    method, n_classes = bila(**PRESETS["recipe"]), len(crowd.class_prior)
    state = None
    for item, worker, label in chunks(crowd, 50):
        shape = {"n_workers": len(crowd.confusion), "n_classes": n_classes}
        keys = np.unique(item)
        chunk = make_chunk(np.searchsorted(keys, item), worker, label, item_keys=keys, **shape)
        state = method.init(chunk, seed) if state is None else state
        state, _ = method.update(state, chunk)
    rows, recipe = state.rows.to_arrays(), Recipe()
    centre, theta = crowd_matrix(state.pooled["rich"], recipe), rows["rich_theta"]
    spread = np.array([recipe.tilt_scale] + [recipe.bias_scale] * n_classes)
    matrix, totals = matrices(centre, theta), rows["rich_counts"].sum(axis=2)
    hessian = np.einsum("kc,kcde->kde", totals, fisher_rows(matrix, len(spread)))
    root = np.linalg.cholesky(np.linalg.inv(hessian + np.diag(spread**-2.0)))
    normal = generator(seed, "plain").standard_normal((draws, *theta.shape))
    drawn = matrices(centre, theta + np.einsum("kde,ske->skd", root, normal))
    right = np.einsum("skcc,c->sk", drawn, method.class_prior(state))
    skill = np.diagonal(crowd.confusion, axis1=1, axis2=2) @ crowd.class_prior
    covered = {}
    for name, values, true in (
        ("plain_skill_0.95", right, skill),
        ("plain_entry_0.95", drawn, crowd.confusion),
    ):
        low, high = np.quantile(values, [0.025, 0.975], axis=0)
        covered[name] = ((low <= true) & (true <= high)).ravel()
    return covered


# ── do expected gains come true? ─────────────────────────────────────────────────────────


def gain(cell, n_items, seed=0):
    kind, n_classes, labels, dependence = cell
    crowd = simulate(kind, n_items, 30, n_classes, labels, False, 0.0, seed)
    settings = {} if dependence is None else {"dependence": dependence}
    model = lq.BiLA(**settings)
    table = LabelTable(*(c.tolist() for c in (crowd.item, crowd.worker, crowd.label)))
    before = model.partial_fit(table).labels_.loc[range(n_items)] == crowd.truth
    expected = model.expected_gain()
    rng = generator(seed, "gain")
    worker = np.array([rng.choice(list(set(range(30)) - had)) for had in _workers_of(crowd)])
    label = draw_labels(rng, crowd.confusion, worker, crowd.truth)
    more = LabelTable(list(range(n_items)), worker.tolist(), label.tolist())
    after = model.partial_fit(more).labels_.loc[range(n_items)] == crowd.truth
    rise = after.astype(float) - before
    return {
        "kind": kind,
        "n_classes": n_classes,
        "labels_per_item": labels,
        "dependence": dependence,
        "items": n_items,
        "accuracy": round(float(before.mean()), 4),
        "confidence": round(float(expected["confidence"].mean()), 4),
        "expected": round(float(expected["gain"].mean()), 4),
        "rise": round(float(rise.mean()), 4),
        "error": round(float(rise.std() / np.sqrt(n_items)), 4),
    }


def _workers_of(crowd):
    had = [set() for _ in crowd.truth]
    for item, worker in zip(crowd.item.tolist(), crowd.worker.tolist(), strict=True):
        had[item].add(worker)
    return had


# ── does asking by gain help? ────────────────────────────────────────────────────────────


def asking(cell, how, n_items, seed, rounds=10):
    """Error after half a label an item more: which tasks are asked about, and whom."""
    kind, n_classes = cell
    crowd = simulate(kind, n_items, 30, n_classes, 2, False, 0.0, seed)
    model, rng = lq.BiLA(), generator(seed, "asking")
    table = LabelTable(*(c.tolist() for c in (crowd.item, crowd.worker, crowd.label)))
    model.partial_fit(table)
    had, budget = _workers_of(crowd), n_items // 2 // rounds
    for _ in range(0 if how == "not at all" else rounds):
        expected = model.expected_gain()
        if how == "at random":
            expected = expected.iloc[rng.permutation(n_items)]
        tasks = expected.index[:budget].tolist()
        if how == "by gain, whoever is best":
            worker = expected["best_worker"].iloc[:budget].tolist()
        else:
            worker = [int(rng.choice(list(set(range(30)) - had[task]))) for task in tasks]
        label = draw_labels(rng, crowd.confusion, np.array(worker), crowd.truth[tasks])
        for task, k in zip(tasks, worker, strict=True):
            had[task].add(k)
        model.partial_fit(LabelTable(tasks, worker, label.tolist()))
    return float(
        (model.report().items["consensus_label"].loc[range(n_items)] != crowd.truth).mean()
    )


HOW = ("not at all", "at random", "by gain", "by gain, whoever is best")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="a size that measures nothing")
    parser.add_argument("--output", type=Path, default=RESULTS, help="a folder")
    options = parser.parse_args()
    seeds, n_workers, n_items = (1, 20, 60) if options.smoke else (5, 100, 4000)
    cells = slice(1) if options.smoke else slice(None)
    asked = 60 if options.smoke else 1000
    measured = {"made": {"command": COMMAND}, "coverage": [], "gain": [], "asking": []}
    for cell in COVERAGE[cells]:
        measured["coverage"].append(coverage(cell, seeds, n_workers))
        print(measured["coverage"][-1], flush=True)
    for cell in GAIN[cells]:
        measured["gain"].append(gain(cell, n_items))
        print(measured["gain"][-1], flush=True)
    for cell in ASKING[cells]:
        errors = {how: [asking(cell, how, asked, seed) for seed in range(seeds)] for how in HOW}
        means = {how: round(float(np.mean(each)), 4) for how, each in errors.items()}
        row = {"kind": cell[0], "n_classes": cell[1], "seeds": seeds, "items": asked}
        measured["asking"].append(row | {"errors": means})
        print(measured["asking"][-1], flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    lines = json.dumps(measured, indent=1)
    (options.output / "measured.json").write_text(f"{lines}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
