"""What `plot` and `report` draw: a stream of a store, or a model's file.

Both give a model, whose workers can be drawn. Only a stream keeps all its answers, and when each
was given; of a model's file, those of tasks that are still open are known.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from labelquorum.errors import LabelError, StateError
from labelquorum.evaluation.metrics import by_confidence
from labelquorum.evaluation.plots import plot_calibration, plot_confusion, plot_skills, plot_stream

if TYPE_CHECKING:
    from labelquorum.learn.estimator import Estimator
    from labelquorum.store.stats import ChunkSeries
    from labelquorum.store.stream import Stream

__all__ = ["Answer", "Gallery", "opened"]


class Answer(NamedTuple):
    """What was answered to a task, without having been told its truth."""

    task: Hashable
    label: Hashable
    confidence: float


@dataclass(frozen=True)
class Gallery:
    """A model, and the stream it comes from where it is kept in a store."""

    name: str
    model: "Estimator"
    stream: "Stream | None" = None

    @cached_property
    def course(self) -> "ChunkSeries":
        """How the stream went."""
        from labelquorum.store.stats import chunk_series

        if self.stream is None:
            raise StateError(
                f"{self.name}: a model's file does not tell when tasks were answered. Name a "
                "stream, and its store with --store."
            )
        return chunk_series(self.stream)

    def answers(self) -> Iterator[Answer]:
        """Answers to tasks whose truth was not told: of a file, those of open tasks."""
        if self.stream is None:
            table = self.model.report().items
            wanted = (table["consensus_label"], table["consensus_quality_score"])
            for task, label, sure in zip(table.index, *wanted, strict=True):
                yield Answer(task, label, float(sure))
            return
        from labelquorum.store.export import exported
        from labelquorum.store.stats import truths

        reported = {one.item_id for one in truths(self.stream)}
        with exported(self.stream, "answers", probabilities=False) as found:
            for row in found.rows:
                if row["task"] not in reported:
                    yield Answer(row["task"], row["label"], row["confidence"])

    def busiest_ends(self, limit: int) -> list[Hashable]:
        """So many workers, half from either end of the skills; who gave one label is no news."""
        skills = self.model.skills_.sort_values(kind="stable")
        workers = skills.index.tolist()
        if len(workers) <= limit:
            return workers
        worst = (limit + 1) // 2
        return workers[:worst] + workers[len(workers) - (limit - worst) :]

    # ── pictures ─────────────────────────────────────────────────────────────────────────

    def draw_stream(self, path: Path, title: str | None = None) -> Path:
        """Draw tasks decided, confidence and classes along time."""
        found = self.course
        return plot_stream(
            path,
            found.at,
            found.items,
            found.confidence,
            found.classes,
            histogram=found.histogram,
            title=title or f"How {self.name} went",
        )

    def draw_workers(
        self, path: Path, workers: Sequence[Hashable], title: str | None = None
    ) -> Path:
        """Draw how often these workers are right, with bounds where the method tells them."""
        table = self._workers(workers)
        flags = self.flags(workers)
        low, high = self._bounds(workers)
        return plot_skills(
            path,
            workers,
            table["annotator_quality"].to_numpy(),
            low,
            high,
            label_counts=table["num_examples_labeled"].tolist(),
            flags=[", ".join(flags.get(worker, ())) for worker in workers],
            title=title or self._of_workers("How often each worker is right", workers),
        )

    def draw_confusion(
        self, path: Path, workers: Sequence[Hashable], title: str | None = None
    ) -> Path:
        """Draw what these workers say, given the truth."""
        table = self._workers(workers)
        place = {worker: k for k, worker in enumerate(self.model.workers_.tolist())}
        return plot_confusion(
            path,
            self.model.confusion_[[place[worker] for worker in workers]],
            workers,
            self.model.classes_.tolist(),
            label_counts=table["num_examples_labeled"].tolist(),
            skills=table["annotator_quality"].to_numpy(),
            title=title or self._of_workers("What each worker says, given the truth", workers),
        )

    def draw_calibration(self, path: Path, truth: dict[str, str], title: str | None = None) -> Path:
        """Draw how often answers of each confidence are right, by truths as text."""
        sure, right = [], []
        for task, label, confidence in self.answers():
            if (known := truth.get(str(task))) is not None:
                sure.append(confidence)
                right.append(known == str(label))
        if not sure:
            raise LabelError(
                f"{self.name}: the truth is known of none of its tasks. Check that tasks have the "
                "same ids in both."
            )
        counts = by_confidence(np.array(sure), np.array(right))
        return plot_calibration(path, counts, title or f"Is {self.name} right when it is sure?")

    def flags(self, workers: Sequence[Hashable]) -> dict[Hashable, list[str]]:
        """What is odd about workers: the names of the flags of each who has any."""
        table = self.model.flags(workers=workers)
        found: dict[Hashable, list[str]] = {}
        for worker, flag in zip(table["worker"], table["flag"], strict=True):
            found.setdefault(worker, []).append(str(flag).replace("_", " "))
        return found

    def _bounds(self, workers: Sequence[Hashable]) -> tuple[Any, Any]:
        try:
            table = self.model.skill_intervals(workers=workers)
        except StateError:  # a method that has none, or too many classes
            return None, None
        return table["low"].to_numpy(), table["high"].to_numpy()

    def _workers(self, workers: Sequence[Hashable]) -> Any:
        table = self.model.report().workers
        for worker in workers:
            if worker not in table.index:
                raise LabelError(f"{self.name}: worker {worker!r} is not known. Check the id.")
        return table.loc[list(workers)]

    def _of_workers(self, title: str, shown: Sequence[Hashable]) -> str:
        more = len(self.model.workers_) - len(shown)
        return f"{title} ({len(shown)} of {len(self.model.workers_):,})" if more else title


@contextmanager
def opened(source: str, store: str | None) -> Iterator[Gallery]:
    """Open a stream of a store to look at it, or load a model's file."""
    if store is None:
        from labelquorum.learn.estimators import load

        model = load(source)
        if not len(model.workers_):
            raise StateError(f"{source}: the model has learned nothing yet. Give it labels first.")
        yield Gallery(Path(source).name, model)
        return
    from labelquorum.store.store import Store

    with Store.look(store) as looked:
        stream = looked.stream(source)
        if not stream.count()["answered_items"]:
            raise StateError(
                f"Stream {source!r} has decided nothing yet, so there is nothing to draw. Send "
                "labels first."
            )
        yield Gallery(source, stream.estimator(), stream)
