"""The demo: a simulated crowd streams by, and BiLA finds out whom to trust.

Every figure is computed while you watch: labels are drawn from known confusion matrices, the
methods see them chunk by chunk, and a task counts as it was answered when its chunk came.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from labelquorum.ingest.chunks import cut_chunks
from labelquorum.learn.door import Estimator
from labelquorum.learn.estimator import BiLA, MajorityVote
from labelquorum.trial.crowds import Crowd, label_table, oracle
from labelquorum.trial.pictures import plot_confusion, plot_error_along_stream

__all__ = ["run_demo"]


class Kind(NamedTuple):
    """A kind of worker."""

    name: str
    n_workers: int
    habit: str  # what he says of each class in turn
    steadiness: float  # the share of labels he gives by habit; the others are guesses


CLASSES = ("cat", "dog", "fox", "owl")
CLASS_PRIOR = (0.4, 0.3, 0.2, 0.1)
KINDS = (
    Kind("careful", 5, "cat dog fox owl", 0.90),
    Kind("so-so", 6, "cat dog fox owl", 0.60),
    Kind("takes dogs for foxes", 3, "cat fox fox owl", 0.85),
    Kind("takes foxes for dogs", 2, "cat dog dog owl", 0.85),
    Kind("has never seen owls", 1, "cat dog fox fox", 0.85),
    Kind("clicks at random", 4, "cat dog fox owl", 0.00),
    Kind("always says cat", 4, "cat cat cat cat", 0.95),
    Kind("wrong on purpose", 1, "dog cat owl fox", 0.90),
)
NAMES = "ada ben cai dia eli fay gus hal ida jun kim lea max nia oto pia quy ros sam tia udo vic"
WORKERS = [*NAMES.split(), "wes", "xia", "yan", "zoe"]
N_ITEMS = 10_000
LABELS_PER_ITEM = 5
CHUNK_ITEMS = 50
CONCENTRATION = 60.0  # how closely a worker's matrix keeps to his kind's

STYLES = {"BiLA": "bold cyan", "majority vote": "red", "oracle": "dim"}
SHOWN_WORKERS = 5  # at either end of the table
REPORTS = 10  # lines of progress without a display
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 40
PANEL_WIDTH = 78


class Score(NamedTuple):
    """Where the stream stands."""

    n_items: int
    wrong: dict[str, int]  # method → how many of these it got wrong
    seconds: float  # BiLA took to learn from the last chunk and to answer it

    def error(self, method: str) -> float:
        """The error so far."""
        return self.wrong[method] / self.n_items


def run_demo(output: Path, *, headless: bool = False, seed: int = 0) -> None:
    """Stream a simulated crowd; show the errors as it goes, then the workers; save two pictures.

    Parameters
    ----------
    output
        Folder of the pictures; made if need be.
    headless
        Progress as plain lines instead of a live display.
    """
    console, progress = Console(highlight=False), Console(stderr=True, highlight=False)
    progress.print(
        f"{len(WORKERS)} simulated workers, {LABELS_PER_ITEM} labels on each of {N_ITEMS:,} tasks, "
        f"in chunks of {CHUNK_ITEMS} tasks. A moment, the first chunk is compiled…"
    )
    crowd, kinds = simulate_crowd(N_ITEMS, seed)
    model = BiLA(classes=CLASSES, seed=seed)
    stream = play(crowd, model, MajorityVote(classes=CLASSES, seed=seed))
    scores = report_plainly(stream, progress) if headless else show_live(stream, progress)

    wrong = scores[-1].wrong
    console.print(
        f"Of {N_ITEMS:,} tasks, BiLA got [bold]{wrong['BiLA']:,}[/] wrong, the majority vote "
        f"[bold]{wrong['majority vote']:,}[/], and an oracle that knows every worker's habits "
        f"{wrong['oracle']:,}.",
    )
    console.print(worker_table(model, crowd, kinds))
    output.mkdir(parents=True, exist_ok=True)
    for path in draw_pictures(output, scores, model, kinds):
        console.print(f"Saved {path}", soft_wrap=True)


def simulate_crowd(n_items: int, seed: int) -> tuple[Crowd, list[str]]:
    """Draw a crowd of all kinds, in random order; the kind of each worker comes with it."""
    rng = np.random.default_rng(seed)
    n_classes, n_workers = len(CLASSES), len(WORKERS)
    kinds = [kind for kind in KINDS for _ in range(kind.n_workers)]
    kinds = [kinds[k] for k in rng.permutation(n_workers)]
    mean = np.full((n_workers, n_classes, n_classes), 1 / n_classes)  # all guesses
    for k, kind in enumerate(kinds):
        mean[k] *= 1 - kind.steadiness
        for c, said in enumerate(kind.habit.split()):
            mean[k, c, CLASSES.index(said)] += kind.steadiness
    # A Dirichlet draw is a row of gamma draws, normalised.
    gamma = rng.standard_gamma(CONCENTRATION * mean)
    confusion = gamma / gamma.sum(axis=2, keepdims=True)  # (K, C, C)

    truth = rng.choice(n_classes, size=n_items, p=CLASS_PRIOR)
    item = np.repeat(np.arange(n_items), LABELS_PER_ITEM)
    worker = rng.random((n_items, n_workers)).argsort(axis=1)[:, :LABELS_PER_ITEM].ravel()
    levels = confusion[worker, truth[item]].cumsum(axis=1)[:, :-1]
    label = (rng.random((item.size, 1)) >= levels).sum(axis=1)
    crowd = Crowd(item, worker, label, truth, confusion, np.array(CLASS_PRIOR))
    return crowd, [kind.name for kind in kinds]


def play(crowd: Crowd, model: BiLA, vote: Estimator) -> Iterator[Score]:
    """Stream the crowd through both methods, and score them after every chunk."""
    table = label_table(crowd, text_ids=False)
    table = table._replace(
        worker_ids=[WORKERS[k] for k in crowd.worker], labels=[CLASSES[z] for z in crowd.label]
    )
    truth, best = (np.array(CLASSES)[index] for index in (crowd.truth, oracle(crowd)))
    wrong = dict.fromkeys(STYLES, 0)
    seen = 0
    for chunk in cut_chunks([table], CHUNK_ITEMS):
        began = perf_counter()
        answers = {"BiLA": model.partial_fit(chunk).labels_}
        seconds = perf_counter() - began
        answers["majority vote"] = vote.partial_fit(chunk).labels_
        items = slice(seen, seen + len(answers["BiLA"]))
        for name, said in (*answers.items(), ("oracle", best[items])):
            wrong[name] += int((said != truth[items]).sum())
        seen = items.stop
        yield Score(seen, dict(wrong), seconds)


def report_plainly(stream: Iterator[Score], progress: Console) -> list[Score]:
    """Print a line now and then."""
    scores: list[Score] = []
    for score in stream:
        scores.append(score)
        if score.n_items * REPORTS % N_ITEMS < CHUNK_ITEMS * REPORTS:
            errors = ", ".join(f"{name} {score.error(name):.1%}" for name in STYLES)
            progress.print(f"{score.n_items:6,} tasks, error so far: {errors}")
    progress.print(_speed(scores))
    return scores


def show_live(stream: Iterator[Score], progress: Console) -> list[Score]:
    """Redraw a panel as the stream goes by."""
    scores: list[Score] = []
    with Live(console=progress, refresh_per_second=15) as live:
        for score in stream:
            scores.append(score)
            live.update(_panel(scores))
    return scores


def worker_table(model: BiLA, crowd: Crowd, kinds: Sequence[str]) -> Table:
    """The worst and the best workers, as estimated, beside what is true of them."""
    right = np.diagonal(crowd.confusion, axis1=1, axis2=2) @ crowd.class_prior  # (K,)
    skills = model.skills_.sort_values()
    workers = skills.index.tolist()
    table = Table(box=SIMPLE_HEAD, title="The worst and the best workers", title_justify="left")
    table.add_column("worker")
    table.add_column("what he does")
    table.add_column("estimated skill", justify="right", style=STYLES["BiLA"])
    table.add_column("true skill", justify="right")
    for worker in workers[:SHOWN_WORKERS] + workers[-SHOWN_WORKERS:]:
        if worker == workers[-SHOWN_WORKERS]:
            table.add_row(f"… {len(workers) - 2 * SHOWN_WORKERS} more", style="dim")
        k = WORKERS.index(worker)
        table.add_row(worker, kinds[k], f"{skills[worker]:.0%}", f"{right[k]:.0%}")
    return table


def draw_pictures(
    output: Path, scores: Sequence[Score], model: BiLA, kinds: Sequence[str]
) -> list[Path]:
    """Draw the error along the stream, and what was learned about one worker of each kind."""
    curves = {name: [score.error(name) for score in scores] for name in STYLES}
    error = plot_error_along_stream(
        output / "error.png", curves, [score.n_items for score in scores]
    )
    examples = [WORKERS[kinds.index(kind.name)] for kind in KINDS]
    position = {worker: k for k, worker in enumerate(model.workers_)}
    confusion = plot_confusion(
        output / "confusion.png",
        model.confusion_[[position[worker] for worker in examples]],
        [kind.name for kind in KINDS],
        CLASSES,
        title="What BiLA learned about one worker of each kind",
    )
    return [error, confusion]


def _panel(scores: Sequence[Score]) -> Panel:
    now = scores[-1]
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("error so far", justify="right")
    table.add_column("along the stream", min_width=SPARK_WIDTH)
    # One scale for all, so that heights can be compared.
    top = max(score.error(name) for score in scores for name in STYLES)
    for name, style in STYLES.items():
        errors = [score.error(name) for score in scores]
        row = (name, f"{now.error(name):.1%}", _spark(errors, now.n_items / N_ITEMS, top))
        table.add_row(*row, style=style)
    bar = Padding(ProgressBar(N_ITEMS, now.n_items), 0)
    return Panel(Group(bar, _speed(scores), "", table), title="labelquorum", width=PANEL_WIDTH)


def _speed(scores: Sequence[Score]) -> str:
    done = f"{scores[-1].n_items:,} of {N_ITEMS:,} tasks · first chunk {scores[0].seconds:.1f} s"
    later = sum(score.seconds for score in scores[1:])
    n_later = scores[-1].n_items - scores[0].n_items
    return f"{done} · since then {n_later / later:,.0f} tasks/s" if n_later else done


def _spark(errors: Sequence[float], share_done: float, top: float) -> str:
    width = max(1, round(SPARK_WIDTH * share_done))
    picks = np.linspace(0, len(errors) - 1, width).round().astype(int)
    heights = np.array(errors)[picks] / (top or 1)
    return "".join(SPARKS[level] for level in (heights * (len(SPARKS) - 1)).round().astype(int))
