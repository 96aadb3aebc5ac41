"""The demo's crowd of 26 workers: who they are, how they label, and what was found about them.

Labels are drawn from known confusion matrices, so that every estimate can be compared with what
is true of the worker. One careful worker turns into a random clicker half-way through, and two
copy from each other.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from io import StringIO
from math import isnan
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labelquorum.client import Client
from labelquorum.errors import LabelQuorumError
from labelquorum.evaluation.simulate.arrivals import Arrivals, trickle
from labelquorum.evaluation.simulate.crowds import draw_labels, draw_workers
from labelquorum.evaluation.simulate.oracle import Crowd, oracle
from labelquorum.evaluation.simulate.roles import with_ring, with_sleepers


class Kind(NamedTuple):
    """A kind of worker."""

    name: str
    n_workers: int
    habit: str  # what they say of each class in turn
    steadiness: float  # the share of labels given by habit; the others are guesses


CLASSES = ("cat", "dog", "fox", "owl")
CLASS_PRIOR = (0.4, 0.3, 0.2, 0.1)
SLEEPER, PAIR = "turns bad half-way", "copies from a friend"
KINDS = (
    Kind("careful", 6, "cat dog fox owl", 0.90),
    Kind("so-so", 4, "cat dog fox owl", 0.60),
    Kind("takes dogs for foxes", 3, "cat fox fox owl", 0.85),
    Kind("takes foxes for dogs", 2, "cat dog dog owl", 0.85),
    Kind("has never seen owls", 1, "cat dog fox fox", 0.85),
    Kind("clicks at random", 3, "cat dog fox owl", 0.00),
    Kind("always says cat", 3, "cat cat cat cat", 0.95),
    Kind("wrong on purpose", 1, "dog cat owl fox", 0.90),
    Kind(SLEEPER, 1, "cat dog fox owl", 0.90),
    Kind(PAIR, 2, "cat dog fox owl", 0.55),
)
NAMES = "ada ben cai dia eli fay gus hal ida jun kim lea max nia oto pia quy ros sam tia udo vic"
WORKERS = (*NAMES.split(), "wes", "xia", "yan", "zoe")
LABELS_PER_ITEM = 5
CONCENTRATION = 60.0  # how closely a worker's matrix keeps to that of the kind
PAIR_SKILL = 0.6  # how often what the two copied is right
DELAY_SECONDS = 1.0  # from the opening of a task to each of its labels, on average
TICK_SECONDS = 0.25
GOLD_EVERY = 20  # the truth of one task in 20 is sent
GOLD_SECONDS = 6.0
"""Delay of a truth after its task opens: the task is answered by then, so its error shows."""
SUMMARY_COLUMNS = 100


class Scene(NamedTuple):
    """A crowd, when its labels arrive, and who is who."""

    crowd: Crowd
    arrivals: Arrivals
    kinds: list[str]  # of each worker
    tasks: list[str]  # names of the items

    def of_kind(self, kind: str) -> list[str]:
        """The names of the workers of a kind."""
        return [WORKERS[k] for k, name in enumerate(self.kinds) if name == kind]


def simulate(n_items: int, rate: float, turn: float, seed: int = 0) -> Scene:
    """Draw a crowd of all kinds, in random order, whose labels trickle in.

    Parameters
    ----------
    n_items
        How many tasks it labels.
    rate
        Tasks opened per second.
    turn
        The share of the tasks after which the sleeper turns bad.
    """
    rng = np.random.default_rng(seed)
    kinds = [kind for kind in KINDS for _ in range(kind.n_workers)]
    kinds = [kinds[k] for k in rng.permutation(len(WORKERS))]
    names = [kind.name for kind in kinds]
    confusion = _matrices(kinds, rng)
    truth = rng.choice(len(CLASSES), size=n_items, p=CLASS_PRIOR)
    item = np.repeat(np.arange(n_items), LABELS_PER_ITEM)
    worker = draw_workers(rng, n_items, len(WORKERS), LABELS_PER_ITEM, 0.0).ravel()
    label = draw_labels(rng, confusion, worker, truth[item])
    crowd = Crowd(item, worker, label, truth, confusion, np.array(CLASS_PRIOR))
    crowd = with_sleepers(crowd, _places(names, SLEEPER), turn, seed=seed)
    crowd = with_ring(crowd, _places(names, PAIR), PAIR_SKILL, seed=seed)
    arrivals = trickle(crowd, rate, DELAY_SECONDS, seed=seed)
    width = len(str(n_items - 1))
    tasks = [f"photo-{number:0{width}d}" for number in range(n_items)]
    return Scene(crowd, arrivals, names, tasks)


def _matrices(kinds: Sequence[Kind], rng: np.random.Generator) -> np.ndarray:
    """The workers' matrices (K, C, C), each drawn near that of their kind."""
    n_classes = len(CLASSES)
    mean = np.full((len(kinds), n_classes, n_classes), 1 / n_classes)  # all guesses
    for k, kind in enumerate(kinds):
        mean[k] *= 1 - kind.steadiness
        for c, said in enumerate(kind.habit.split()):
            mean[k, c, CLASSES.index(said)] += kind.steadiness
    # A Dirichlet draw is a row of gamma draws, normalised.
    gamma = rng.standard_gamma(CONCENTRATION * mean)
    return np.asarray(gamma / gamma.sum(axis=2, keepdims=True))


def _places(kinds: Sequence[str], wanted: str) -> list[int]:
    return [k for k, kind in enumerate(kinds) if kind == wanted]


class Feeder:
    """Sends a crowd's labels in real time, from a thread."""

    def __init__(self, client: Client, stream: str, scene: Scene) -> None:
        self._client, self._stream, self._scene = client, stream, scene
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="labelquorum-demo", daemon=True)
        self._sent = 0
        self.error: Exception | None = None

    @property
    def sent(self) -> int:
        """How many labels the service has taken."""
        return self._sent

    @property
    def done(self) -> bool:
        """Whether all labels are sent, or no more can be sent."""
        return not self._thread.is_alive()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            for _ in self._ticks():
                pass
        except LabelQuorumError as error:
            if not self._stop.is_set():
                self.error = error

    def _ticks(self) -> Iterator[None]:
        crowd, arrivals = self._scene.crowd, self._scene.arrivals
        opened = np.full(crowd.truth.size, np.inf)
        np.minimum.at(opened, crowd.item[arrivals.row], arrivals.time)
        gold = np.arange(0, crowd.truth.size, GOLD_EVERY)
        gold = gold[np.argsort(opened[gold], kind="stable")]
        began, reported = time.monotonic(), 0
        while self._sent < len(arrivals.row) or reported < len(gold):
            if self._stop.wait(TICK_SECONDS):
                return
            now = time.monotonic() - began
            until = int(np.searchsorted(arrivals.time, now))
            if until > self._sent:
                self._send(self._sent, until)
                self._sent = until
            last = int(np.searchsorted(opened[gold], now - GOLD_SECONDS))
            if last > reported:
                self._send_gold(gold[reported:last].tolist())
                reported = last
            yield

    def _send(self, first: int, last: int) -> None:
        crowd, tasks = self._scene.crowd, self._scene.tasks
        rows = self._scene.arrivals.row[first:last].tolist()
        labels = [
            {
                "task": tasks[crowd.item[row]],
                "worker": WORKERS[crowd.worker[row]],
                "label": CLASSES[crowd.label[row]],
            }
            for row in rows
        ]
        self._client.send(self._stream, labels, key=f"{self._stream} {first}")

    def _send_gold(self, items: list[int]) -> None:
        truth, tasks = self._scene.crowd.truth, self._scene.tasks
        self._client.gold(self._stream, {tasks[i]: CLASSES[truth[i]] for i in items})


class Errors(NamedTuple):
    """How many decided tasks each method got wrong, without those whose truth was sent."""

    n_items: int
    wrong: dict[str, int]


def errors_of(scene: Scene, labels: Any, sent: int, seed: int = 0) -> Errors:
    """Hold what was decided against the truth, beside a vote and an oracle on the same labels.

    Parameters
    ----------
    labels
        What was decided, a Series by task.
    sent
        How many labels, in order of arrival, are known to all methods.
    """
    rows = scene.arrivals.row[:sent]
    full = scene.crowd
    crowd = full._replace(item=full.item[rows], worker=full.worker[rows], label=full.label[rows])
    place = {task: i for i, task in enumerate(scene.tasks)}
    items = np.array([place[task] for task in labels.index], np.intp)
    kept = items % GOLD_EVERY != 0
    items = items[kept]
    said = labels.map(CLASSES.index).to_numpy()[kept]
    votes = np.zeros((full.truth.size, len(CLASSES)))
    np.add.at(votes, (crowd.item, crowd.label), 1.0)
    votes += np.random.default_rng(seed).random(votes.shape) / 2  # ties are broken at random
    answers = {"BiLA": said, "majority vote": votes.argmax(axis=1)[items]}
    answers["oracle"] = oracle(crowd)[items]
    truth = full.truth[items]
    return Errors(len(items), {name: int((a != truth).sum()) for name, a in answers.items()})


def summary(client: Client, stream: str, scene: Scene, sent: int) -> str:
    """Write the summary of a demo, as it stands now."""
    decided = client.items(stream)["label"]
    if decided.empty:
        return "Nothing was decided: the demo was stopped before its first chunk.\n"
    found = errors_of(scene, decided, sent)
    counts = client.stream(stream)["counts"]
    lines = [
        f"{sent:,} labels of {len(WORKERS)} workers came in; {len(decided):,} tasks are decided, "
        f"{counts['waiting_items']:,} wait for more labels.",
        f"Of {found.n_items:,} decided tasks whose truth was not sent, BiLA got "
        f"{found.wrong['BiLA']:,} wrong, the majority vote {found.wrong['majority vote']:,}, and "
        f"an oracle that knows every worker's habits {found.wrong['oracle']:,}.",
        "",
    ]
    page = StringIO()
    console = Console(file=page, width=SUMMARY_COLUMNS, highlight=False)
    console.print("\n".join(lines), soft_wrap=True)
    console.print(_worker_table(client.workers(stream), scene))
    return page.getvalue()


def _worker_table(workers: Any, scene: Scene) -> Table:
    """Every worker as estimated, the worst first, beside what is true of them."""
    crowd = scene.crowd
    assert crowd.cast is not None
    right, later = (
        np.diagonal(matrices, axis1=1, axis2=2) @ crowd.class_prior
        for matrices in (crowd.confusion, crowd.cast.later)
    )
    table = Table(box=SIMPLE_HEAD, title="The workers, the worst first", title_justify="left")
    for name in ("worker", "behaviour", "true skill", "estimated skill", "labels", "flags"):
        is_number = name in ("true skill", "estimated skill", "labels")
        table.add_column(name, justify="right" if is_number else "left")
    for worker, row in workers.sort_values("skill", kind="stable").iterrows():
        k = WORKERS.index(str(worker))
        changed = abs(right[k] - later[k]) > 0.01
        skill = f"{right[k]:.0%}, then {later[k]:.0%}" if changed else f"{right[k]:.0%}"
        bounds = (
            ""
            if row["low"] is None or isnan(row["low"])
            else f" ({row['low']:.0%}–{row['high']:.0%})"
        )
        cells = (
            str(worker),
            scene.kinds[k],
            skill,
            f"{row['skill']:.0%}{bounds}",
            f"{row['labels']:,}",
            str(row["flags"]).replace("_", " "),
        )
        table.add_row(*map(Text, cells))
    return table
