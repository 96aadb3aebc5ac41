"""The demo at small size: honest figures, two pictures, nothing on the wrong stream."""

import io
import re
import sys

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from labelquorum.learn.estimator import BiLA, MajorityVote
from labelquorum.serve import demo
from labelquorum.serve.cli import app
from labelquorum.trial.crowds import oracle_error

N_ITEMS = 1_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "N_ITEMS", N_ITEMS)


@pytest.fixture(scope="module")
def scores() -> list[demo.Score]:
    crowd, _ = demo.simulate_crowd(N_ITEMS, seed=0)
    return list(demo.play(crowd, BiLA(classes=demo.CLASSES), MajorityVote(classes=demo.CLASSES)))


def test_crowd_holds_every_kind_of_worker_with_the_habits_of_his_kind():
    crowd, kinds = demo.simulate_crowd(N_ITEMS, seed=1)
    assert len(kinds) == len(set(demo.WORKERS)) == len(crowd.confusion)
    for kind in demo.KINDS:
        assert kinds.count(kind.name) == kind.n_workers
    favourite = crowd.confusion[kinds.index("wrong on purpose")].argmax(axis=1)
    assert [demo.CLASSES[z] for z in favourite] == ["dog", "cat", "owl", "fox"]
    assert np.all(np.bincount(crowd.item) == demo.LABELS_PER_ITEM)
    assert len(set(zip(crowd.item, crowd.worker, strict=True))) == crowd.item.size


def test_errors_are_those_of_the_methods_themselves(scores):
    crowd, _ = demo.simulate_crowd(N_ITEMS, seed=0)
    last = scores[-1]
    assert last.n_items == N_ITEMS
    assert last.error("oracle") == oracle_error(crowd)
    # Recounted by hand, all at once: the vote has no memory, so chunks do not matter.
    votes = np.zeros((N_ITEMS, len(demo.CLASSES)))
    np.add.at(votes, (crowd.item, crowd.label), 1)
    sure = np.sort(votes, axis=1)[:, -1] > np.sort(votes, axis=1)[:, -2]
    wrong = votes.argmax(axis=1) != crowd.truth
    assert wrong[sure].sum() <= last.wrong["majority vote"] <= wrong[sure].sum() + (~sure).sum()


def test_bila_errs_clearly_less_than_the_vote(scores):
    assert scores[-1].error("BiLA") < 0.7 * scores[-1].error("majority vote")
    assert scores[-1].error("oracle") < scores[-1].error("BiLA")


def test_headless_demo_prints_lines_and_saves_two_pictures(tmp_path):
    said = CliRunner().invoke(app, ["demo", "--headless", "--output", str(tmp_path / "new")])
    assert said.exit_code == 0, said.output
    pictures = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert pictures == ["confusion.png", "error.png"]
    for name in pictures:
        assert f"Saved {tmp_path / 'new' / name}" in said.stdout
    assert said.stderr.count("error so far: BiLA") == demo.REPORTS
    crowd, kinds = demo.simulate_crowd(N_ITEMS, seed=0)
    k = kinds.index("wrong on purpose")
    skill = np.diagonal(crowd.confusion[k]) @ crowd.class_prior
    row = rf"{demo.WORKERS[k]} +wrong on purpose +\d+% +{skill:.0%}"
    assert re.search(row, said.stdout), said.stdout
    assert "\x1b" not in said.output


def test_live_display_shows_every_method_and_stays_one_size(scores):
    console = Console(width=100, force_terminal=True, record=True, file=io.StringIO())
    demo.show_live(iter(scores), console)
    panels = [demo._panel(scores[:n]) for n in (1, 7, len(scores))]
    heights = {len(console.render_lines(panel)) for panel in panels}
    assert len(heights) == 1
    text = console.export_text()
    for method in demo.STYLES:
        assert f"{method} " in text and f"{scores[-1].error(method):.1%}" in text
    assert f"{N_ITEMS:,} of {N_ITEMS:,} tasks" in text


def test_figures_are_told_even_if_no_picture_can_be_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "N_ITEMS", 200)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = CliRunner().invoke(app, ["demo", "--headless", "--output", str(tmp_path)])
    assert said.exit_code == 1
    assert said.stdout.startswith("Of 200 tasks, BiLA got ")
    assert said.stderr.splitlines()[-1].endswith("pip install 'labelquorum[plots]'")
