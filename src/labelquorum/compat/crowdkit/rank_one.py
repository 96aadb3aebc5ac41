"""KOS and M-MSR: the workers' reliabilities as a matrix of rank one.

D. R. Karger, S. Oh and D. Shah, Budget-optimal task allocation for reliable crowdsourcing systems,
Operations Research 62, 2014. Q. Ma and A. Olshevsky, Adversarial crowdsourcing through robust
rank-one matrix completion, NeurIPS 2020.
"""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labelquorum._types import Floats
from labelquorum.compat.crowdkit.tables import Aggregator, read_table, require_scipy
from labelquorum.compat.crowdkit.votes import VoteBySkill
from labelquorum.errors import LabelError
from labelquorum.learn.methods._batch import Incidence


@dataclass(eq=False)
class KOS(Aggregator):
    """Messages between tasks and workers, for two classes; it has no probabilities."""

    n_iter: int = 100
    random_state: int | None = 0

    def fit(self, data: pd.DataFrame) -> Self:
        """Pass messages `n_iter` times; the first are drawn from N(1, 1)."""
        table = read_table(data, sort_tasks=True, sort_classes=False)
        labels = table.labels
        if not len(labels.item):
            self.labels_ = pd.Series([], dtype="O", name="agg_label")
            return self
        if labels.n_classes != 2:
            raise LabelError(
                f"KOS tells two classes apart. Got {labels.n_classes}: use DawidSkene instead."
            )
        sign = 1.0 - 2.0 * labels.label  # of the class that came first, and of the other
        y = _generator(self.random_state).normal(1, 1, len(sign))
        for _ in range(self.n_iter):
            # x[i → j] = Σ A[i, j'] y[j' → i] over the other workers j' of task i
            x = _others(sign * y, labels.item, labels.n_items)
            # y[j → i] = Σ A[i', j] x[i' → j] over the other tasks i' of worker j
            y = _others(sign * x, labels.worker, labels.n_workers)
            exponent = np.frexp(np.abs(y).max())[1]
            y = np.ldexp(y, -exponent)  # exact, and no message overflows
        score = np.bincount(labels.item, sign * y, labels.n_items)
        best = table.classes.take((score < 0).astype(int))
        self.labels_ = pd.Series(best, index=table.tasks, name="agg_label")
        return self

    def fit_predict_proba(self, data: pd.DataFrame, *more: Any, **named: Any) -> pd.DataFrame:
        """KOS has none."""
        raise AttributeError("KOS has no probabilities. Use fit_predict, or another class.")


@dataclass(eq=False)
class MMSR(VoteBySkill):
    """A vote by skills from the robust rank-one completion of how often two workers agree."""

    n_iter: int = 10_000
    tol: float = 1e-10
    random_state: int | None = 0
    skills_: pd.Series = field(init=False, repr=False)
    """The weight of each worker's vote, log((C − 1) p / (1 − p)) where p is how often they are
    right."""
    loss_history_: list[float] = field(init=False, repr=False)
    """By how much the completed matrix changed in each round."""

    @property
    def scores_(self) -> pd.DataFrame:
        """The share of each class of the weights behind a task's labels."""
        return self.probas_

    def fit(self, data: pd.DataFrame) -> Self:
        """Complete the matrix from the columns task, worker, label."""
        table = read_table(data, sort_classes=False)
        labels, n_classes = table.labels, len(table.classes)
        self.loss_history_ = []
        if not len(labels.item):
            self.skills_ = pd.Series(dtype=float, name="skill")
            return self
        if n_classes < 2:
            raise LabelError("MMSR needs labels of at least two classes. Got one.")
        agreement, shared = _pairs(labels)
        observed = shared > 0
        # E[(C agreement − 1) / (C − 1)] = s sᵀ
        skill_products = (n_classes * agreement - 1) / (n_classes - 1)
        size = self._complete(np.abs(skill_products), observed, labels.n_items)
        margin = 1 / np.sqrt(labels.n_items)
        s = np.clip(_signs(skill_products) * size, margin - 1 / (n_classes - 1), 1 - margin)
        p = (s * (n_classes - 1) + 1) / n_classes
        weight = np.log(p * (n_classes - 1) / (1 - p))
        self.skills_ = pd.Series(weight, index=table.workers, name="skill")
        return self

    def predict_score(self, data: pd.DataFrame) -> pd.DataFrame:
        """Give each class its share of the weights behind a task's labels."""
        return self.predict_proba(data)

    def fit_predict_score(self, data: pd.DataFrame) -> pd.DataFrame:
        """Learn as `fit` does, and give the scores of the same tasks."""
        return self.fit_predict_proba(data)

    def _complete(self, products: Floats, observed: NDArray[np.bool_], n_items: int) -> Floats:
        """The absolute skills: |products| ≈ u vᵀ where observed, without the F outermost values."""
        trim = int(observed.sum(axis=0).min()) // 2 - 1
        u = _generator(self.random_state).uniform(size=len(products))
        v = u.copy()
        before = np.outer(u, v)
        for _ in range(self.n_iter):
            v = _trimmed_means(products / u[:, None], observed, v, trim, n_items)
            u = _trimmed_means((products / v[None, :]).T, observed.T, u, trim, n_items)
            now = np.outer(u, v)
            self.loss_history_.append(float(np.linalg.norm(now - before)))
            if self.loss_history_[-1] < self.tol:
                break
            before = now
        return np.asarray(u / np.sqrt(np.linalg.norm(u) / np.linalg.norm(v)))


def _generator(random_state: int | None) -> Any:
    """The generator of a seed, or NumPy's global one, which np.random.seed sets."""
    return np.random if random_state is None else np.random.RandomState(random_state)


def _others(values: Floats, index: NDArray[np.intp], length: int) -> Floats:
    """For each row the sum of the other rows with the same index."""
    return np.asarray(np.bincount(index, values, length)[index] - values)


def _pairs(labels: Incidence) -> tuple[Floats, Floats]:
    """How often two workers agree on the tasks both labelled, and the number of those, (K, K)."""
    csr_array = require_scipy("scipy.sparse").csr_array
    place = labels.worker * labels.n_items + labels.item
    last = ~pd.Series(place).duplicated(keep="last").to_numpy()
    worker, item, label = labels.worker[last], labels.item[last], labels.label[last]
    shape = (labels.n_workers, labels.n_items)
    gave = csr_array((np.ones(len(item)), (worker, item)), shape)
    shared = (gave @ gave.T).toarray()
    np.fill_diagonal(shared, 0)
    shape = (labels.n_workers, labels.n_items * labels.n_classes)
    said = csr_array((np.ones(len(item)), (worker, item * labels.n_classes + label)), shape)
    same = (said @ said.T).toarray()
    return np.divide(same, shared, out=np.zeros_like(same), where=shared > 0), shared


def _trimmed_means(
    ratios: Floats, observed: NDArray[np.bool_], current: Floats, trim: int, n_items: int
) -> Floats:
    """The mean of each column of the observed ratios, without those far from the current value.

    Of the values below the current one the `trim` smallest are left out, or all if they are fewer;
    so are those above. Where nothing is left, the current value stays.
    """
    ordered = np.sort(np.where(observed, ratios, np.inf), axis=0)
    count = observed.sum(axis=0)
    below = (observed & (ratios < current)).sum(axis=0)
    above = (observed & (ratios > current)).sum(axis=0)
    if trim < 0:  # a worker with one partner: Crowd-Kit then takes the largest ratio
        first, end = count - 1, count
    else:
        first, end = np.minimum(below, trim), count - np.minimum(above, trim)
    place = np.arange(len(ordered))[:, None]
    kept = (place >= first) & (place < end)
    left = np.maximum(end - first, 1)
    mean = np.where(kept, ordered, 0).sum(axis=0) / left
    mean = np.where((end - first == 1) & (mean == 0), 1 / np.sqrt(n_items), mean)
    return np.where(end > first, mean, current)


def _signs(products: Floats) -> Floats:
    """The side of each worker, 1 or −1; 0 where nothing tells.

    Two workers with a negative product are joined by an edge, two with a positive one by a path of
    two edges. The sides are the signs of the eigenvector of the random walk on that graph with the
    smallest eigenvalue λ. Eliminating the nodes in the middle of the paths leaves, with the degrees
    D, the edges N and the paths P, of which each worker begins p:

        λ² D x = λ N x + ½ (diag(p) + P) x
    """
    known = np.flatnonzero(products.sum(axis=1) != 0)
    sign = np.sign(products[np.ix_(known, known)])
    edges, paths = (sign < 0).astype(float), (sign > 0).astype(float)
    begun = paths.sum(axis=1)
    degree = (edges.sum(axis=1) + begun)[:, None]
    size = len(known)
    walk = np.zeros((2 * size, 2 * size))
    walk[:size, size:] = np.eye(size)
    walk[size:, :size] = (np.diag(begun) + paths) / (2 * degree)
    walk[size:, size:] = edges / degree
    values, vectors = np.linalg.eig(walk)
    vector = np.sign(vectors[:size, np.argmin(values.real)].real)
    sides = np.zeros(len(products))
    sides[known] = vector * np.sign(vector.sum())
    return sides
