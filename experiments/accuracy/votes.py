"""What `repeats=` does to judges that vote several times on a task: error and calibration.

    python3 run.py python experiments/accuracy/votes.py

simulates five judges that give three votes each on a thousand tasks of three classes, five times.
Judges are independent of one another. A judge has an opinion of a task, right with 52 to 72 %, and
a share of their votes repeats it; the others are drawn again. It writes `results/votes.md`, which
`docs/howto.md` shows.
"""

from pathlib import Path

import numpy as np
import pandas as pd

import labelquorum as lq
from labelquorum.evaluation import calibration_error

N_ITEMS, N_JUDGES, N_VOTES, N_CLASSES, SEEDS = 1000, 5, 3, 3, range(5)
OPINIONS = {"independent": 0.0, "60 % repeat the judge's opinion": 0.6, "90 %": 0.9}


def judged(repeating: float, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Votes as a table, and the truth of each task."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(N_CLASSES, size=(N_ITEMS, 1, 1))
    skill = rng.uniform(0.52, 0.72, size=(1, N_JUDGES, 1))

    def draw(n_votes: int) -> np.ndarray:
        shape = (N_ITEMS, N_JUDGES, n_votes)
        wrong = (truth + rng.integers(1, N_CLASSES, size=shape)) % N_CLASSES
        return np.where(rng.random(shape) < skill, truth, wrong)

    opinion, other = draw(1), draw(N_VOTES)
    label = np.where(rng.random(other.shape) < repeating, opinion, other)
    task, worker, _ = np.indices(label.shape)
    columns = {"task": task.ravel(), "worker": worker.ravel(), "label": label.ravel()}
    return pd.DataFrame(columns), truth.ravel()


def ways(votes: pd.DataFrame) -> dict[str, tuple[lq.BiLA, pd.DataFrame]]:
    """What can be done with votes: a model, and the table it takes."""
    last = votes.drop_duplicates(["task", "worker"], keep="last")
    return {
        '`"last"`, the default': (lq.BiLA(), last),
        '`"all"`, each with weight 1/3': (lq.BiLA(repeats="all"), votes.assign(weight=1 / N_VOTES)),
        '`"majority"`': (lq.BiLA(repeats="majority"), votes),
        '`"all"`': (lq.BiLA(repeats="all"), votes),
    }


def measured(repeating: float) -> dict[str, np.ndarray]:
    """Error, mean confidence and ECE of each way, the mean over seeds."""
    found: dict[str, list[list[float]]] = {}
    for seed in SEEDS:
        votes, truth = judged(repeating, seed)
        for name, (model, table) in ways(votes).items():
            probs = model.fit(table).probas_.to_numpy()
            error = float((model.labels_.to_numpy() != truth).mean())
            figures = [error, float(probs.max(axis=1).mean()), calibration_error(probs, truth)]
            found.setdefault(name, []).append(figures)
    return {name: np.mean(figures, axis=0) for name, figures in found.items()}


def main() -> None:
    """Measure, and write the table."""
    lines = ["| votes | `repeats=` | error | confidence | right | ECE |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    for votes, repeating in OPINIONS.items():
        for name, (error, confidence, ece) in measured(repeating).items():
            cells = f"{error:.1%} | {confidence:.1%} | {1 - error:.1%} | {ece:.3f}"
            lines.append(f"| {votes} | {name} | {cells} |")
    file = Path(__file__).parent / "results" / "votes.md"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
