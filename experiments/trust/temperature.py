"""How the temperature without gold carries to families of data sets it was not chosen on.

    LABELQUORUM_DATA=… python3 run.py python experiments/trust/temperature.py

streams the development sets, and simulated crowds of seeds that `measure.py` does not use, once,
and asks at each chunk for the probabilities under every setting of `GRID`. The setting with the
least ECE on the other families answers for each family left out. It writes
`results/trust_temperature.md`; `docs/doubt.md` shows it.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from statistics import fmean
from typing import Any

import numpy as np
from crowds import KINDS
from measure import BIG_ITEMS, HERE, N_ORDERS, folder_of, parts
from measure_report import BINS, CHUNK_ITEMS, PLAN, table

import labelquorum.learn.bila.dependence as dependence
from labelquorum.evaluation import calibration_error, dataset_info, label_table, read_dataset
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.vocabulary import Roster
from labelquorum.learn.bila import bila

SHIPPED = dependence.PER_CLASS, dependence.SHIFT, dependence.PER_SHIFT
NONE = 0.0, 0.09, 0.0
GRID = (
    *itertools.product((0.0, 0.5, 1.0), NONE[1:2], NONE[2:]),
    *itertools.product((0.0, 0.5, 1.0), (0.06, 0.09, 0.12), (5.0, 10.0, 15.0)),
)
"""How far many classes count, the shift that is allowed, and what is beyond it counts."""

COMMAND = "python3 run.py python experiments/trust/temperature.py"
SEEDS = range(500, 510)
MAX_RISE = 0.48, 0.77
"""How far the mean ECE of the simulated kinds may rise, and that of the worst, which is how far
they were below their targets without both."""

Setting = tuple[float, float, float]


def calibration(labels: LabelTable, truth: Mapping[Any, Any], order: int | None) -> list[float]:
    """The ECE of a stream in per cent, by setting."""
    roster, method, state = Roster(LabelSpace()), bila(), None
    emitted: list[list[Any]] = [[] for _ in GRID]
    right = []
    for part in parts(labels, order, CHUNK_ITEMS):
        intake = roster.read(part)
        roster.admit(intake)
        state = method.init(intake.chunk, 0) if state is None else state
        state, _ = method.update(state, intake.chunk)
        known = {label: index for index, label in enumerate(roster.classes)}
        at = np.flatnonzero([item in truth for item in intake.item_ids])
        true = [known.get(truth[intake.item_ids[i]], -1) for i in at]
        right.append(method.aggregate(state, intake.chunk).aggregated[at] == true)
        for setting, confidence in zip(GRID, emitted, strict=True):
            dependence.PER_CLASS, dependence.SHIFT, dependence.PER_SHIFT = setting
            confidence.append(method.aggregate(state, intake.chunk).probs[at].max(axis=1))
        dependence.PER_CLASS, dependence.SHIFT, dependence.PER_SHIFT = SHIPPED
    wrong = np.where(np.concatenate(right), 0, 1)
    # Two columns are enough for the highest probability: right is class 0.
    two = (np.stack([sure, np.zeros_like(sure)], axis=1) for sure in map(np.concatenate, emitted))
    return [100 * calibration_error(probs, wrong, bins=BINS) for probs in two]


def means(streams: Iterator[list[float]]) -> dict[Setting, float]:
    """The mean over streams, by setting."""
    return dict(zip(GRID, np.mean(list(streams), axis=0).tolist(), strict=True))


def of_set(name: str) -> Iterator[list[float]]:
    data = read_dataset(name, folder_of(name))
    big = len(set(data.table.item_ids)) > BIG_ITEMS
    for order in range(1 if big else N_ORDERS):
        yield calibration(data.table, dict(data.truth), order)


def of_kind(draw: Callable[[int], Any]) -> Iterator[list[float]]:
    for seed in SEEDS:
        crowd = draw(seed)
        truth = dict(enumerate(crowd.truth.tolist()))
        yield calibration(label_table(crowd, text_ids=False), truth, None)


def left_out(sets: Mapping[str, Mapping[Setting, float]], fit: list[Setting]) -> dict[str, float]:
    """Each set's ECE by the setting that is best on the families of the others."""
    family = {name: dataset_info(name).family for name in sets}
    found = {}
    for one in sorted(set(family.values())):
        others = [by_setting for name, by_setting in sets.items() if family[name] != one]
        chosen = min(fit, key=lambda s: fmean(by_setting[s] for by_setting in others))
        found |= {name: by[chosen] for name, by in sets.items() if family[name] == one}
    return found


def page(sets: Mapping[str, Any], kinds: Mapping[str, Any]) -> str:
    """The table of what each part of the temperature is worth, and how it carries."""
    simulated = {s: [by[s] for by in kinds.values()] for s in GRID}
    limits = [f(simulated[NONE]) + rise for f, rise in zip((fmean, max), MAX_RISE, strict=True)]
    fit = [
        s for s, kind in simulated.items() if fmean(kind) <= limits[0] and max(kind) <= limits[1]
    ]
    best = min(fit, key=lambda s: fmean(by[s] for by in sets.values()))
    rows = [
        ("without both", NONE),
        ("with the classes alone", (SHIPPED[0], *NONE[1:])),
        ("with the shift alone", (0.0, *SHIPPED[1:])),
        ("with both", SHIPPED),
        ("the best of the grid on the development sets", best),
    ]
    lines = [["temperature", "development sets", "simulated kinds", "worst kind"]]
    for title, setting in rows:
        kind = simulated[setting]
        figures = fmean(by[setting] for by in sets.values()), fmean(kind), max(kind)
        lines.append([title, *(f"{value:.2f}" for value in figures)])
    carried = fmean(left_out(sets, fit).values())
    lines.append(["chosen on the other families", f"{carried:.2f}", "", ""])
    return (
        table(lines)
        + f"\nECE in %, {N_ORDERS} orders, one of the largest set; {len(SEEDS)} simulated crowds a "
        f"kind, of seeds {SEEDS[0]} to {SEEDS[-1]}. In {len(fit)} of {len(GRID)} settings the "
        f"simulated kinds rise by at most {MAX_RISE[0]} and the worst by at most {MAX_RISE[1]}.\n"
        f"\nMade by `{COMMAND}`.\n"
    )


def main() -> None:
    """Stream everything, and write the table."""
    sets = {name: means(of_set(name)) for name in PLAN["development"]}
    kinds = {name: means(of_kind(draw)) for name, draw in KINDS.items()}
    figures = {
        group: {name: [round(by[setting], 3) for setting in GRID] for name, by in found.items()}
        for group, found in (("sets", sets), ("kinds", kinds))
    }
    kept = {"grid": GRID, **figures, "command": COMMAND}
    text = json.dumps(kept, indent=1) + "\n"
    (HERE / "results" / "temperature.json").write_text(text, encoding="utf-8")
    (HERE / "results" / "trust_temperature.md").write_text(page(sets, kinds), encoding="utf-8")


if __name__ == "__main__":
    main()
