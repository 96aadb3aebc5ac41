"""Measure whether flags are right, and whether stopping keeps its promise, on simulated crowds.

    python3 run.py python experiments/crowd/measure.py

The truth is used for scoring only. `docs/crowd.md` shows what `results/measured.json` says. The
thresholds in `learn/` were chosen with `--tuning`, which has other crowds and other seeds.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

import labelquorum as lq
from labelquorum.evaluation import (
    chunks,
    class_conditional_crowd,
    one_coin_crowd,
    ordinal_crowd,
    with_adversaries,
    with_bots,
    with_judges,
    with_ring,
    with_sleepers,
    with_spammers,
)
from labelquorum.ingest.labels import LabelTable

COMMAND = "python3 run.py python experiments/crowd/measure.py"
RESULTS = Path(__file__).parent / "results"
KINDS = {
    "class-conditional": class_conditional_crowd,
    "one-coin": one_coin_crowd,
    "ordinal": ordinal_crowd,
}
CHUNK_ITEMS, BEFORE, AFTER = 50, 50, 10
"""Items of a chunk, and the chunks before the sleeper turns and after, when flags are looked at."""

LOOK_EVERY = 5

OWN_FLAG = {
    "spammer": "spammer",
    "sleeper": "drifting",
    "ring": "colluding",
    "bot": "one_answer",
    "adversary": "reversed",
}
"""The flag each role should get."""

ALSO_RIGHT = {
    "spammer": ("spammer", "ring", "sleeper"),  # a ring that clicks at random, a sleeper by now
    "one_answer": ("bot",),
    "reversed": ("adversary",),
    "drifting": ("sleeper",),
    "colluding": ("ring",),
}
"""The roles of which each flag is true."""


class Scene(NamedTuple):
    """A crowd, and who in it does not play by the rules."""

    kind: str
    n_classes: int
    labels: int  # an item
    workers: int = 40
    participation: float = 0.0
    correlation: float = 0.0  # of the errors of all who are honest
    others: bool = False  # bots and adversaries in place of spammers

    @property
    def name(self) -> str:
        """What a table calls it."""
        more = f", errors correlated by {self.correlation:g}" if self.correlation else ""
        more += ", unequal shares" if self.participation else ""
        more += ", bots and liars" if self.others else ""
        return f"{self.kind}, {self.n_classes} classes{more}"


REPORTED = [
    Scene("class-conditional", 3, 8),
    Scene("class-conditional", 4, 6),
    Scene("one-coin", 4, 6),
    Scene("one-coin", 2, 8),
    Scene("ordinal", 5, 8),
    Scene("class-conditional", 3, 8, participation=0.5),
    Scene("class-conditional", 3, 8, correlation=0.1),
    Scene("class-conditional", 3, 8, others=True),
    Scene("class-conditional", 3, 3),
    Scene("class-conditional", 3, 5, workers=100),
]
TUNING = [
    Scene("class-conditional", 2, 7, 30),
    Scene("class-conditional", 5, 7, 50),
    Scene("one-coin", 3, 5, 30),
    Scene("ordinal", 4, 7, 30, participation=0.3),
    Scene("one-coin", 3, 7, 30, correlation=0.15),
    Scene("class-conditional", 4, 7, 50, others=True),
]
TUNING_SEED = 1000

CONFIDENCES = (0.8, 0.9, 0.95)
STOPPED = [
    Scene("class-conditional", 3, 10),
    Scene("one-coin", 4, 10),
    Scene("one-coin", 2, 12),
    Scene("ordinal", 5, 12),
    Scene("class-conditional", 3, 5),
]
TUNING_STOPPED = [Scene("class-conditional", 4, 9, 30), Scene("one-coin", 3, 9, 30)]


def simulate(scene, n_items, seed):
    """The crowd before anybody misbehaves; with two classes no honest worker is a coin."""
    skill = {"skill": (0.6, 0.95)} if scene.n_classes == 2 else {}
    return KINDS[scene.kind](
        n_items,
        scene.workers,
        scene.n_classes,
        scene.labels,
        participation=scene.participation,
        seed=seed,
        **skill,
    )


def with_roles(scene, crowd, seed):
    """20 % spammers, a sleeper and a ring of 5 %; or bots and liars, a tenth each."""
    if scene.others:
        return with_adversaries(with_bots(crowd, 0.1, seed=seed), 0.1, seed=seed)
    crowd = with_spammers(crowd, 0.2, seed=seed)
    crowd = with_sleepers(crowd, 1 / scene.workers, at=BEFORE / (BEFORE + AFTER), seed=seed)
    crowd = with_ring(crowd, 0.05, seed=seed)
    if scene.correlation:
        honest = np.flatnonzero(crowd.role == "honest")
        crowd = with_judges(crowd, honest, correlation=scene.correlation, seed=seed)
    return crowd


# ── are flags right? ─────────────────────────────────────────────────────────────────────


def flagged(scene, seed, level=0.95):
    """Roles by worker, and the flags there are ten chunks after the sleeper turned."""
    n_items = (BEFORE + AFTER) * CHUNK_ITEMS
    crowd = with_roles(scene, simulate(scene, n_items, seed), seed)
    model = lq.BiLA(classes=list(range(scene.n_classes)), seed=seed)
    for part in chunks(crowd, CHUNK_ITEMS):
        model.partial_fit(LabelTable(*(column.tolist() for column in part)))
    return crowd.role, model.flags(level)


def judge(role, flags):
    """Count flags, right flags, workers who should have one, and those who have it, by flag."""
    counted = {flag: np.zeros(4, int) for flag in ALSO_RIGHT}
    for row in flags.itertuples():
        right = role[row.worker] in ALSO_RIGHT[row.flag]
        if row.flag == "colluding":  # with everybody who is named
            right = right and all(role[other] == "ring" for other in row.partners)
        counted[row.flag] += (1, right, 0, 0)
    have = set(zip(flags["worker"], flags["flag"], strict=True))
    for worker, name in enumerate(role):
        if name in OWN_FLAG:
            own = OWN_FLAG[name]
            counted[own] += (0, 0, 1, (worker, own) in have)
    return counted


def flags_of(scene, seeds):
    total = {flag: np.zeros(4, int) for flag in ALSO_RIGHT}
    honest = 0
    for seed in seeds:
        role, flags = flagged(scene, seed)
        honest += int(np.isin(role, list(OWN_FLAG), invert=True).sum())
        for flag, counted in judge(role, flags).items():
            total[flag] += counted
    names = ("flags", "right", "wanted", "found")
    by_flag = {
        flag: dict(zip(names, map(int, counted), strict=True)) for flag, counted in total.items()
    }
    whole = sum(total.values())
    return {
        "crowd": scene.name,
        "workers": scene.workers,
        "labels_per_item": scene.labels,
        "seeds": len(seeds),
        "honest": honest,
        "precision": _share(whole[1], whole[0]),
        "recall": _share(whole[3], whole[2]),
        "by_flag": by_flag,
    }


def calm_of(scene, n_chunks, seeds):
    """Crowds in which everybody is honest: who is ever flagged, looking at every fifth chunk."""
    ever, workers = dict.fromkeys(ALSO_RIGHT, 0), 0
    for seed in seeds:
        crowd = simulate(scene, n_chunks * CHUNK_ITEMS, seed)
        model = lq.BiLA(classes=list(range(scene.n_classes)), seed=seed)
        seen = set()
        for number, part in enumerate(chunks(crowd, CHUNK_ITEMS), 1):
            model.partial_fit(LabelTable(*(column.tolist() for column in part)))
            if number % LOOK_EVERY == 0:
                flags = model.flags()
                seen.update(zip(flags["worker"], flags["flag"], strict=True))
        workers += scene.workers
        for _, flag in seen:
            ever[flag] += 1
    sizes = {"workers": workers, "labels_per_item": scene.labels, "chunks": n_chunks}
    return {"crowd": scene.name, **sizes, "ever": ever}


def _share(part, whole):
    return round(int(part) / int(whole), 4) if whole else None


# ── does stopping keep its promise? ──────────────────────────────────────────────────────


def stopped(scene, confidence, n_chunks, seed):
    """Ask for one label after the other, and close each item as soon as it is sure enough.

    The model sees the labels that were asked for and no others. The first chunk, of which it knows
    nothing, is asked for in full.
    """
    crowd = simulate(scene, n_chunks * CHUNK_ITEMS, seed)
    rng = np.random.default_rng([seed, 7])
    model = lq.BiLA(classes=list(range(scene.n_classes)), seed=seed)
    used, wrong, closed, closed_wrong, promised = 0, 0, 0, 0, 0.0
    for number, (item, worker, label) in enumerate(chunks(crowd, CHUNK_ITEMS)):
        shuffled = rng.permutation(len(item))
        shuffled = shuffled[np.argsort(item[shuffled], kind="stable")]
        item, worker, label = item[shuffled], worker[shuffled], label[shuffled]
        place = np.arange(len(item)) - np.searchsorted(item, item)  # 0, 1, … within each item
        asked = np.ones(len(item), bool)
        sure = {}
        for n in range(1, scene.labels) if number else ():
            now = asked & (place < n) & ~np.isin(item, list(sure))
            table = LabelTable(*(column[now].tolist() for column in (item, worker, label)))
            best = model.predict_proba(table).max(axis=1)
            sure |= best[best >= confidence].to_dict()
            asked &= (place < n) | ~np.isin(item, list(sure))
        table = LabelTable(*(column[asked].tolist() for column in (item, worker, label)))
        answer = model.partial_fit(table).labels_
        missed = answer.to_numpy() != crowd.truth[answer.index]
        by_rule = np.isin(answer.index, list(sure))
        used, wrong = used + int(asked.sum()), wrong + int(missed.sum())
        closed, closed_wrong = closed + len(sure), closed_wrong + int(missed[by_rule].sum())
        promised += sum(1 - one for one in sure.values())
    return np.array([used, wrong, closed, closed_wrong, promised])


def fixed(scene, n_chunks, seed):
    """All labels of each item: how many, how many answers are wrong, and what the curve says."""
    crowd = simulate(scene, n_chunks * CHUNK_ITEMS, seed)
    model = lq.BiLA(classes=list(range(scene.n_classes)), seed=seed)
    wrong = 0
    for part in chunks(crowd, CHUNK_ITEMS):
        answer = model.partial_fit(LabelTable(*(column.tolist() for column in part))).labels_
        wrong += int((answer.to_numpy() != crowd.truth[answer.index]).sum())
    return len(crowd.item), wrong, model.stopping(CONFIDENCES)


def stopping_of(scene, n_chunks, seeds):
    items = n_chunks * CHUNK_ITEMS * len(seeds)
    whole = [fixed(scene, n_chunks, seed) for seed in seeds]
    labels = sum(one[0] for one in whole)
    rows = []
    for place, confidence in enumerate(CONFIDENCES):
        total = sum(stopped(scene, confidence, n_chunks, seed) for seed in seeds)
        used, wrong, closed, closed_wrong, promised = total.tolist()
        said = [one[2].iloc[place] for one in whole]
        rows.append(
            {
                "crowd": scene.name,
                "labels_per_item": scene.labels,
                "items": items,
                "confidence": confidence,
                "saved": _share(labels - used, labels),
                "error": _share(wrong, items),
                "closed": _share(closed, items),
                "closed_error": _share(closed_wrong, closed),
                "closed_promised": round(promised / max(closed, 1), 4),
                "fixed_error": _share(sum(one[1] for one in whole), items),
                "said_saved": round(float(np.mean([one["labels_saved"] for one in said])), 4),
                "said_error": round(float(np.mean([one["expected_error"] for one in said])), 4),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="a size that measures nothing")
    parser.add_argument("--tuning", action="store_true", help="the crowds thresholds came from")
    parser.add_argument("--output", type=Path, default=RESULTS, help="a folder")
    options = parser.parse_args()
    scenes, stops = (TUNING, TUNING_STOPPED) if options.tuning else (REPORTED, STOPPED)
    start = TUNING_SEED if options.tuning else 0
    n_seeds, n_stops, n_chunks = (1, 1, 2) if options.smoke else (20, 5, 60)
    cells = slice(1) if options.smoke else slice(None)
    made = f"{COMMAND} --tuning" if options.tuning else COMMAND
    measured = {"made": {"command": made}, "flags": [], "calm": [], "stopping": []}
    for scene in scenes[cells]:
        measured["flags"].append(flags_of(scene, range(start, start + n_seeds)))
        print(measured["flags"][-1], flush=True)
    for scene in [scene for scene in scenes[cells] if not (scene.correlation or scene.others)]:
        measured["calm"].append(calm_of(scene, n_chunks, range(start, start + n_stops)))
        print(measured["calm"][-1], flush=True)
    for scene in stops[cells]:
        for row in stopping_of(scene, n_chunks, range(start, start + n_stops)):
            measured["stopping"].append(row)
            print(row, flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    name = "tuning.json" if options.tuning else "measured.json"
    lines = json.dumps(measured, indent=1)
    (options.output / name).write_text(f"{lines}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
