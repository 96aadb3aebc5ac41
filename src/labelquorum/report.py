"""What `plot` and `report` draw: a stream of a store or a model file, and a page about a stream.

Both give a model, whose workers can be drawn. Only a stream keeps all its answers with their times;
of a model file, only the answers of open tasks are known.

The page is one HTML file with its pictures inside, which loads nothing else. Every user-supplied
name goes through `html.escape`. Its Content-Security-Policy allows its own style, by hash, and
inlined pictures; a browser refuses anything else.
"""

import base64
import tempfile
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from labelquorum import __version__
from labelquorum.errors import LabelError, StateError
from labelquorum.evaluation.metrics import by_confidence
from labelquorum.evaluation.plots import plot_calibration, plot_confusion, plot_skills, plot_stream
from labelquorum.learn.analysis.intervals import wilson
from labelquorum.store.stats import truths

if TYPE_CHECKING:
    from labelquorum.learn.estimator import Estimator
    from labelquorum.store.stats import ChunkSeries
    from labelquorum.store.stream import Stream


WORKERS, MATRICES, LEAST_SURE, CHUNKS = 30, 8, 20, 10

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; }
h1 { font-size: 1.6rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
.quiet { color: #6b6b6b; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 1rem; }
dt { color: #6b6b6b; font-size: .85rem; }
dd { margin: 0; font-size: 1.4rem; font-variant-numeric: tabular-nums; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
caption { text-align: left; padding: .3rem 0; color: #6b6b6b; }
.scroll { overflow-x: auto; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid #e3e3e3; }
.name { overflow-wrap: anywhere; min-width: 6rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #17191c; }
  .quiet, dt, caption { color: #a0a4ab; }
  th, td { border-color: #33373d; }
}
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


class Answer(NamedTuple):
    """What was answered to a task whose truth was not known."""

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
        """Answers to tasks whose truth was not sent; of a model file, those of open tasks."""
        if self.stream is None:
            table = self.model.report().items
            wanted = (table["consensus_label"], table["consensus_quality_score"])
            for task, label, sure in zip(table.index, *wanted, strict=True):
                yield Answer(task, label, float(sure))
            return
        from labelquorum.store.export import exported

        reported = {one.item_id for one in truths(self.stream)}
        with exported(self.stream, "answers", probabilities=False) as found:
            for row in found.rows:
                if row["task"] not in reported:
                    yield Answer(row["task"], row["label"], row["confidence"])

    def busiest_ends(self, limit: int) -> list[Hashable]:
        """At most `limit` workers, half from either end of the skills."""
        skills = self.model.skills_.sort_values(kind="stable")
        workers = skills.index.tolist()
        if len(workers) <= limit:
            return workers
        worst = (limit + 1) // 2
        return workers[:worst] + workers[len(workers) - (limit - worst) :]

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


def report_page(gallery: Gallery, now: datetime | None = None) -> str:
    """Write the page of a stream or a model.

    Parameters
    ----------
    gallery
        The stream or the model; see `opened`.
    now
        When it is written; shown at its foot.
    """
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    with tempfile.TemporaryDirectory(prefix="labelquorum-") as folder:
        parts = [f"<h1>{escape(gallery.name)}</h1>"]
        about = _of_a_model if gallery.stream is None else _of_a_stream
        parts += about(gallery, Path(folder))
    reported = f"Written {moment:%Y-%m-%d %H:%M} UTC by labelquorum {__version__}."
    parts.append(f'<p class="quiet">{escape(reported)}</p>')
    style = base64.b64encode(sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{style}'; img-src data:; base-uri 'none'"
    return PAGE.format(
        policy=policy, title=escape(gallery.name), style=STYLE, body="\n".join(parts)
    )


def _of_a_stream(gallery: Gallery, folder: Path) -> list[str]:
    return [
        f'<p class="quiet">{escape(_opening(gallery))}</p>',
        _figures(gallery),
        "<h2>Along time</h2>",
        _picture(
            gallery.draw_stream(folder / "stream.svg", "Decided, how sure, what"),
            "Tasks decided, mean confidence and shares of the classes along time.",
        ),
        "<h2>Classes</h2>",
        _classes(gallery),
        "<h2>Workers</h2>",
        _workers(gallery, folder),
        "<h2>Tasks that are least sure</h2>",
        _least_sure(gallery),
        "<h2>The last chunks</h2>",
        _chunks(gallery),
    ]


def _of_a_model(gallery: Gallery, folder: Path) -> list[str]:
    """What a model's file tells: its workers, and its open tasks."""
    model, items = gallery.model, gallery.model.report().items
    shares = items["consensus_label"].value_counts(normalize=True)
    rows = [[name, f"{share:.1%}"] for name, share in model.priors_.items()]
    unsure = model.pending(1.0).head(LEAST_SURE)
    tasks = zip(unsure.index, unsure["confidence"], unsure["labels"], unsure["label"], strict=True)
    opening = (
        f"A model of {len(model.workers_):,} workers and {len(model.classes_):,} classes. "
        f"{len(items):,} tasks are open; of others it keeps no answers."
    )
    for row in rows:
        row.append(f"{shares.get(row[0], 0):.1%}")
    return [
        f'<p class="quiet">{escape(opening)}</p>',
        "<h2>Classes</h2>",
        _table("How frequent classes are.", ["class", "expected", "of open tasks"], rows, 2),
        "<h2>Workers</h2>",
        _workers(gallery, folder),
        "<h2>Open tasks that are least sure</h2>",
        _table(
            "Another label would help most here.",
            ["task", "confidence", "labels", "answer"],
            [[task, f"{sure:.1%}", f"{n:,}", label] for task, sure, n, label in tasks],
            2,
        ),
    ]


def _opening(gallery: Gallery) -> str:
    found = gallery.course
    first, last = (datetime.fromtimestamp(found.at[k], UTC) for k in (0, -1))
    return (
        f"{found.items.sum():,.0f} tasks decided in {len(found.chunk):,} chunks, from "
        f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC."
    )


def _figures(gallery: Gallery) -> str:
    """The numbers one asks for first."""
    assert gallery.stream is not None
    found, counts = gallery.course, gallery.stream.count()
    n_items = found.items.sum()
    sure = float((found.confidence * found.items.sum(axis=1)).sum() / max(n_items, 1))
    pairs = [
        ("tasks decided", f"{n_items:,.0f}"),
        ("tasks waiting", f"{counts['waiting_items']:,}"),
        ("labels per task", f"{found.labels.sum() / max(n_items, 1):.1f}"),
        ("workers", f"{len(gallery.model.workers_):,}"),
        ("mean confidence", f"{sure:.1%}"),
        ("labels that came too late", f"{counts['late_labels']:,}"),
    ]
    reported = [one for one in truths(gallery.stream) if one.answered is not None]
    if reported:
        wrong = sum(one.answered != one.label for one in reported)
        low, high = wilson(wrong / len(reported), len(reported))
        pairs.append(
            (
                f"wrong on {len(reported):,} tasks whose truth was sent later",
                f"{wrong / len(reported):.1%} ({low:.1%}–{high:.1%})",
            )
        )
    cells = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in pairs)
    return f"<dl>{cells}</dl>"


def _classes(gallery: Gallery) -> str:
    found = gallery.course
    items, total = found.items.sum(axis=0), max(found.items.sum(), 1)
    priors = dict(zip(gallery.model.classes_.tolist(), gallery.model.priors_.tolist(), strict=True))
    rows = [
        [
            found.classes[c],
            f"{items[c]:,.0f}",
            f"{items[c] / total:.1%}",
            f"{priors[found.classes[c]]:.1%}" if found.classes[c] in priors else "–",
        ]
        for c in np.argsort(-items, kind="stable")
    ]
    return _table(
        "What tasks were decided to be.", ["class", "tasks", "share", "expected"], rows, 3
    )


def _workers(gallery: Gallery, folder: Path) -> str:
    shown = gallery.busiest_ends(WORKERS)
    maps = gallery.busiest_ends(MATRICES)
    parts = [
        _picture(
            gallery.draw_workers(folder / "workers.svg", shown),
            "How often workers are right, with 95 % bounds; the numbers are in the table below.",
        ),
        _picture(
            gallery.draw_confusion(folder / "confusion.svg", maps),
            "Confusion matrices of the worst and the best workers.",
        ),
    ]
    table, flags = gallery.model.report().workers.loc[list(shown)], gallery.flags(shown)
    rows = [
        [
            worker,
            f"{row['annotator_quality']:.1%}",
            f"{row['num_examples_labeled']:,.0f}",
            f"{row['agreement_with_consensus']:.1%}",
            row["worst_class"],
            ", ".join(flags.get(worker, ())),
        ]
        for worker, row in zip(shown, table.to_dict("records"), strict=True)
    ]
    names = ["worker", "skill", "labels", "agreement", "worst class", "flags"]
    more = len(gallery.model.workers_) - len(shown)
    caption = "The worst first." + (f" {more:,} in the middle are left out." if more else "")
    return "\n".join([*parts, _table(caption, names, rows, 3)])


def _least_sure(gallery: Gallery) -> str:
    assert gallery.stream is not None
    rows = [
        [
            one.item_id,
            f"{one.confidence:.1%}",
            f"{one.n_labels:,}",
            one.label,
            "open" if is_open else "closed",
        ]
        for one, is_open in gallery.stream.pending(1.0, LEAST_SURE)
    ]
    names = ["task", "confidence", "labels", "answer", "more labels"]
    return _table("Another label would help most where a task is still open.", names, rows, 2)


def _chunks(gallery: Gallery) -> str:
    found = gallery.course
    rows = [
        [
            f"{found.chunk[s]:,}",
            f"{datetime.fromtimestamp(found.at[s], UTC):%Y-%m-%d %H:%M:%S}",
            f"{found.items[s].sum():,.0f}",
            f"{found.labels[s]:,.0f}",
            f"{found.confidence[s]:.1%}",
        ]
        for s in range(len(found.chunk) - 1, max(-1, len(found.chunk) - 1 - CHUNKS), -1)
    ]
    names = ["chunk", "cut, UTC", "tasks", "labels", "mean confidence"]
    return _table("The newest first, with the answers that hold today.", names, rows, 4)


def _picture(path: Path, says: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{escape(says)}" src="data:image/svg+xml;base64,{data}"></p>'


def _table(
    caption: str, names: Sequence[str], rows: Iterable[Sequence[Any]], numbers: int | None = None
) -> str:
    """A table; the next `numbers` columns after the first hold numbers, aligned right."""
    first, last = (1, numbers) if numbers else (0, -1)
    kinds = ["number" if first <= c <= last else "name" for c in range(len(names))]
    head = "".join(
        f'<th scope="col"{" class=number" if kind == "number" else ""}>{escape(name)}</th>'
        for name, kind in zip(names, kinds, strict=True)
    )
    lines = [
        "".join(
            f'<td class="{kind}">{escape(str(cell))}</td>'
            for cell, kind in zip(row, kinds, strict=True)
        )
        for row in rows
    ]
    if not lines:
        return '<p class="quiet">There are none.</p>'
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )
