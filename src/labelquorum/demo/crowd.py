"""The demo's crowd: twenty-six people with names, habits and, in three cases, something to hide.

Labels are drawn from known confusion matrices, so everything that is told about the workers can
be held against what is true of them. One of the careful ones turns into a random clicker half-way
through, and two copy from each other.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from labelquorum.evaluation.simulate.arrivals import Arrivals, trickle
from labelquorum.evaluation.simulate.crowds import Crowd, draw_labels, draw_workers
from labelquorum.evaluation.simulate.roles import with_ring, with_sleepers

__all__ = ["CLASSES", "KINDS", "LABELS_PER_ITEM", "WORKERS", "Kind", "Scene", "simulate"]


class Kind(NamedTuple):
    """A kind of worker."""

    name: str
    n_workers: int
    habit: str  # what he says of each class in turn
    steadiness: float  # the share of labels he gives by habit; the others are guesses


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
CONCENTRATION = 60.0  # how closely a worker's matrix keeps to his kind's
PAIR_SKILL = 0.6  # how often what the two copied is right
DELAY_SECONDS = 1.0  # from the opening of a task to each of its labels, on average


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
        Tasks that are opened a second.
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
    """The workers' matrices (K, C, C), each drawn near what his kind does."""
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
