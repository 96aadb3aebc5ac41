"""How the evidence that establishes the hierarchical worker model was chosen.

    python3 run.py python experiments/accuracy/selection.py

streams crowds drawn at random from many kinds, and the development sets, through both worker models
of `BiLA()` at once, and then asks of every threshold on the evidence gain which answers would have
been given. It writes `results/selection.md` and `results/selection.json`. The threshold is chosen
on the simulated crowds; the development sets only show what it does there.
"""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from cells import HERE, has_data, read_plan

from labelquorum.evaluation import (
    Crowd,
    class_conditional_crowd,
    label_table,
    one_coin_crowd,
    ordinal_crowd,
    read_dataset,
    with_drifters,
    with_judges,
)
from labelquorum.evaluation.simulate.crowds import draw_labels, draw_workers
from labelquorum.ingest.chunks import cut_chunks
from labelquorum.ingest.labels import LabelSpace, LabelTable
from labelquorum.ingest.vocabulary import Roster
from labelquorum.learn.bila import bila
from labelquorum.learn.bila.dependence import is_contradicted
from labelquorum.learn.bila.worker_models import (
    DROP,
    MIN_EVIDENCE_GAIN,
    NOISE,
    WORKER_MODELS,
    hierarchical_evidence_gain,
    log_skill,
)

N_CROWDS, N_ORDERS, CHUNK_ITEMS = 240, 2, 50
MOST_ITEMS = 8000  # of a development set: the choice is settled long before
GAINS = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.12, 0.16)
KINDS = ("one coin", "own matrices", "ordinal", "shared errors", "shared errors", "both")
DEPENDENCE = ("independent", "independent", "judges", "hard tasks")


class Chunk(NamedTuple):
    """One chunk of a stream: what decides between the models, and what each got wrong."""

    n_scored: int
    wrong: tuple[float, float, float]  # hierarchical, one-coin, majority vote
    skill_drop: float  # log J of the hierarchical model less that of the one-coin model
    allowed_drop: float
    gain: float  # nats per label
    contradicted: bool


def draw(number: int) -> tuple[str, Crowd]:
    """Draw a crowd: its kind by turns, its size, skills, classes and errors at random."""
    rng = np.random.default_rng(number)
    kind, dependence = KINDS[number % 6], DEPENDENCE[number // 6 % 4]
    n_classes = int(rng.choice([2, 2, 3, 4, 5, 8]))
    n_workers = int(rng.choice([6, 8, 12, 20, 40, 80]))
    n_items = int(rng.choice([400, 1000, 2000]))
    per_item = int(min(n_workers, rng.choice([3, 5, 8])))
    prior = rng.dirichlet(np.full(n_classes, rng.choice([0.5, 1, 3, 50]))) + 0.02
    prior /= prior.sum()
    lowest = rng.uniform(0.3, 0.7)
    skill = (lowest, rng.uniform(lowest, 0.97))
    sizes = n_items, n_workers, n_classes, per_item
    if kind == "one coin":
        crowd = one_coin_crowd(*sizes, skill, prior, seed=number)
    elif kind == "own matrices":
        spread = float(rng.choice([3, 10, 40]))
        crowd = class_conditional_crowd(*sizes, skill, prior, concentration=spread, seed=number)
    elif kind == "ordinal":
        crowd = ordinal_crowd(*sizes, (0.4, rng.uniform(0.6, 1.5)), prior, seed=number)
    else:
        # As in the paper: with probability r_k the label is drawn from a law all workers share.
        law = rng.dirichlet(np.full(n_classes, 0.7))
        noise = np.clip(rng.uniform(0.3, 0.8) + rng.uniform(-0.15, 0.15, n_workers), 0.02, 0.9)
        rate = noise[:, None, None]
        confusion = (1 - rate) * np.eye(n_classes) + rate * law
        if kind == "both":
            gamma = rng.standard_gamma(30 * confusion + 0.05)
            confusion = gamma / gamma.sum(axis=2, keepdims=True)
        truth = rng.choice(n_classes, n_items, p=prior)
        item = np.repeat(np.arange(n_items), per_item)
        worker = draw_workers(rng, n_items, n_workers, per_item, 0.0).ravel()
        label = draw_labels(rng, confusion, worker, truth[item])
        crowd = Crowd(item, worker, label, truth, confusion, prior)
    if dependence == "judges":
        crowd = with_judges(crowd, 1.0, correlation=float(rng.choice([0.1, 0.3])), seed=number)
    elif dependence == "hard tasks":
        crowd = with_drifters(crowd, 1.0, amount=0.8, seed=number)
    return f"{kind}, {dependence}", crowd


def stream(table: LabelTable, truth: dict[Any, Any], order: int) -> Iterator[Chunk]:
    """Stream a table in a random order of items through both models."""
    classes = sorted({*table.labels, *truth.values()}, key=str)
    place = dict(zip(dict.fromkeys(table.item_ids), range(len(table.item_ids)), strict=False))
    rank = np.random.default_rng(order).permutation(len(place))
    rows = sorted(range(len(table.item_ids)), key=lambda row: rank[place[table.item_ids[row]]])
    columns = ([column[row] for row in rows] for column in table[:3])
    roster, method, state = Roster(LabelSpace(tuple(classes))), bila(), None
    n_items, known = 0, {label: index for index, label in enumerate(classes)}
    for part in cut_chunks([LabelTable(*columns)], CHUNK_ITEMS):
        intake = roster.read(part)
        roster.admit(intake)
        chunk = intake.chunk
        state = method.init(chunk, 0) if state is None else state
        state, _ = method.update(state, chunk)
        n_items += chunk.n_items
        hits = [WORKER_MODELS[name].hits(state.pooled[name]) for name in ("rich", "plain")]
        skill = log_skill(np.array(hits), method.counts.recipe)
        votes = np.zeros((chunk.n_items, chunk.n_classes))
        np.add.at(votes, (chunk.item, chunk.label), chunk.weight)
        best = votes == votes.max(axis=1, keepdims=True)
        right = best / best.sum(axis=1, keepdims=True)  # ties are drawn
        answers = [
            method.aggregate(state._replace(speaks=position), chunk).aggregated
            for position in range(2)
        ]
        true = np.array([known[truth[i]] if i in truth else -1 for i in intake.item_ids])
        at = np.flatnonzero(true >= 0)
        sums = state.unexplained
        yield Chunk(
            n_scored=len(at),
            wrong=(
                *(float((answer[at] != true[at]).sum()) for answer in answers),
                float(len(at) - right[at, true[at]].sum()),
            ),
            skill_drop=float(skill[0] - skill[1]),
            allowed_drop=DROP + NOISE / n_items,
            gain=hierarchical_evidence_gain(state.pooled, sums, method.counts.recipe),
            contradicted=is_contradicted(sums["rich"]),
        )


def run(cell: tuple[str, Any, int]) -> tuple[str, str, list[Chunk]]:
    """One stream: its group, its name, and its chunks."""
    group, what, order = cell
    if group == "development":
        data = read_dataset(what)
        items = list(dict.fromkeys(data.table.item_ids))
        kept = set(np.random.default_rng(0).permutation(len(items))[:MOST_ITEMS].tolist())
        wanted = {i for place, i in enumerate(items) if place in kept or i in data.truth}
        rows = [row for row, i in enumerate(data.table.item_ids) if i in wanted]
        table = LabelTable(*([column[row] for row in rows] for column in data.table[:3]))
        return group, what, list(stream(table, dict(data.truth), order))
    name, crowd = draw(what)
    table = label_table(crowd, text_ids=False)
    return group, name, list(stream(table, dict(enumerate(crowd.truth.tolist())), order))


def error(chunks: list[Chunk], gain: float | None) -> float:
    """The emitted error in per cent with a threshold on the gain; None: by the skill alone."""
    wrong = 0.0
    for chunk in chunks:
        established = gain is not None and chunk.gain > gain and not chunk.contradicted
        wrong += chunk.wrong[0 if established or chunk.skill_drop > -chunk.allowed_drop else 1]
    return 100 * wrong / sum(chunk.n_scored for chunk in chunks)


def main() -> None:
    plan = read_plan("plan.toml")
    sets = [name for name in plan.names("development") if has_data(name)]
    cells: list[tuple[str, Any, int]] = [("simulated", n, n) for n in range(N_CROWDS)]
    cells += [("development", name, order) for name in sets for order in range(N_ORDERS)]
    results = []
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for done, result in enumerate(pool.map(run, cells), start=1):
            results.append(result)
            if done % 20 == 0 or done == len(cells):
                print(f"{done} of {len(cells)} streams", file=sys.stderr, flush=True)
    ten, rows = set(plan.names("ten")), []
    for gain in (None, *GAINS):
        by_name: dict[str, list[float]] = {}
        for group, name, chunks in results:
            by_name.setdefault(f"{group}/{name}", []).append(error(chunks, gain))
        means = {name: fmean(errors) for name, errors in by_name.items()}
        simulated = {n.partition("/")[2]: e for n, e in means.items() if n.startswith("sim")}
        real = {n.partition("/")[2]: e for n, e in means.items() if n.startswith("dev")}
        in_ten = [real[name] for name in real if name in ten]
        rows.append(
            {
                "gain": gain,
                "simulated": fmean(simulated.values()),
                "shared errors, independent": simulated["shared errors, independent"],
                "one coin, independent": simulated["one coin, independent"],
                "ten sets": fmean(in_ten) if in_ten else None,
                "all sets": fmean(real.values()) if real else None,
            }
        )
    reply = {"rows": rows, "shipped": MIN_EVIDENCE_GAIN}
    head = list(rows[0])
    lines = [f"| {' | '.join(head)} |", f"|{' ---: |' * len(head)}"]
    for row in rows:
        first = "skill alone" if row["gain"] is None else f"{row['gain']:.2f}"
        rest = ["–" if row[name] is None else f"{row[name]:.2f}" for name in head[1:]]
        lines.append(f"| {' | '.join([first, *rest])} |")
    folder = HERE / "results"
    (folder / "selection.json").write_text(json.dumps(reply, indent=2) + "\n", encoding="utf-8")
    (folder / "selection.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
