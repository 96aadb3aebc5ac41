"""Pictures: they are written, they hold what they were given, and they disturb nobody."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from labelquorum.errors import LabelQuorumError, StateError
from labelquorum.evaluation.plots import (
    plot_calibration,
    plot_confusion,
    plot_error_along_stream,
    plot_skills,
    plot_stream,
)
from labelquorum.evaluation.plots.streams import moved_apart
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd

ITEMS = [50, 100, 150]
CURVES = {
    "BiLA": [0.3, 0.2, 0.125],
    "majority vote": [float("nan"), 0.26, 0.25],
    "oracle": [0.1, 0.09, 0.088],
}
MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}

every_kind = pytest.mark.parametrize("suffix", MAGIC)


def draw_confusion(path: Path, n_workers: int = 5, n_classes: int = 3, **options: object) -> Path:
    confusion = class_conditional_crowd(1, n_workers, n_classes, 1, seed=1).confusion
    names = [f"worker {k}" for k in range(n_workers)]
    classes = [f"class {c}" for c in range(n_classes)]
    return plot_confusion(path, confusion, names, classes, **options)


def comments(path: Path) -> list[str]:
    """What is written in an SVG: matplotlib notes each text in a comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip()[5:-4] for line in lines if line.strip().startswith("<!-- ")]


@every_kind
def test_both_pictures_are_written_in_the_kind_the_suffix_names(tmp_path, suffix):
    error = plot_error_along_stream(tmp_path / f"error{suffix}", CURVES, ITEMS)
    confusion = draw_confusion(tmp_path / f"confusion{suffix}")
    for path in (error, confusion):
        assert path.read_bytes().startswith(MAGIC[suffix])


def draw_stream(path: Path, n_chunks: int = 3, n_classes: int = 2, **options: object) -> Path:
    at = 1.7e9 + 60.0 * np.arange(n_chunks)
    items = np.full((n_chunks, n_classes), 10.0)
    classes = [f"class {c}" for c in range(n_classes)]
    return plot_stream(path, at, items, np.full(n_chunks, 0.9), classes, **options)


@every_kind
def test_new_pictures_are_written_in_the_kind_the_suffix_names(tmp_path, suffix):
    counts = [[0, 0, 0], [4, 3, 2]]
    for path in (
        draw_stream(tmp_path / f"stream{suffix}", histogram=[0, 60]),
        plot_skills(tmp_path / f"skills{suffix}", ["ann", "bob"], [0.9, 0.4]),
        plot_calibration(tmp_path / f"sure{suffix}", counts),
    ):
        assert path.read_bytes().startswith(MAGIC[suffix])


def test_a_stream_of_more_chunks_than_there_is_room_for_loses_no_task(tmp_path):
    path = draw_stream(tmp_path / "long.svg", n_chunks=1003, n_classes=11)
    written = comments(path)
    assert f"{1003 * 110:,}" in written  # tasks decided in the end
    assert "3 others  27 %" in written
    assert sum(text.endswith("  9 %") for text in written) == 8


def test_a_stream_of_one_chunk_can_be_drawn(tmp_path):
    assert "20" in comments(draw_stream(tmp_path / "one.svg", n_chunks=1))


def test_the_share_of_a_class_is_that_of_all_tasks_not_of_the_mean_chunk(tmp_path):
    items = [[90, 0], [0, 10]]
    path = plot_stream(tmp_path / "shares.svg", [1.7e9, 1.7e9 + 60], items, [0.9, 0.9], "ab")
    assert {"a  90 %", "b  10 %"} <= {*comments(path)}


@pytest.mark.parametrize("seconds", [1, 200, 9_000, 2e5, 4e5, 7e6, 1e8])
def test_time_is_written_for_any_span_without_a_warning(tmp_path, seconds):
    at = 1.7e9 + seconds * np.array([0, 0.5, 1])
    plot_stream(tmp_path / "span.svg", at, np.full((3, 1), 10.0), np.full(3, 0.9), ["a"])


def test_workers_stand_from_the_worst_to_the_best_with_what_is_odd(tmp_path):
    path = plot_skills(
        tmp_path / "skills.svg",
        ["good", "bad$"],
        [0.9, 0.2],
        [0.8, 0.1],
        [0.95, 0.3],
        label_counts=[1, 2000],
        flags=["", "spammer"],
    )
    written = comments(path)
    assert written.index("bad$") < written.index("good")
    assert "20 % · 2,000 labels · spammer" in written
    assert "90 % · 1 label" in written


def test_calibration_tells_its_error_beside_the_number_of_tasks(tmp_path):
    path = plot_calibration(tmp_path / "sure.svg", [[10, 4.0, 5], [10, 9.0, 9]])
    assert "20 tasks · calibration error 5.0 points" in comments(path)


@every_kind
def test_the_same_picture_gives_the_same_bytes(tmp_path, suffix):
    first = plot_error_along_stream(tmp_path / f"first{suffix}", CURVES, ITEMS)
    again = plot_error_along_stream(tmp_path / f"again{suffix}", CURVES, ITEMS)
    assert first.read_bytes() == again.read_bytes()


def test_every_line_carries_its_name_and_last_error(tmp_path):
    path = plot_error_along_stream(tmp_path / "error.svg", CURVES, ITEMS, title="So it went")
    written = comments(path)
    assert {"So it went", "BiLA  12.5 %", "majority vote  25.0 %", "oracle  8.8 %"} <= {*written}


def test_a_method_without_a_single_error_is_left_unnamed(tmp_path):
    curves = {"BiLA": [0.1], "late": [float("nan")]}
    written = comments(plot_error_along_stream(tmp_path / "error.svg", curves, [50]))
    assert not [text for text in written if text.startswith("late")]


def test_workers_stand_from_worst_to_best_with_their_counts(tmp_path):
    good, bad = np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([[0.5, 0.5], [0.6, 0.4]])
    path = plot_confusion(
        tmp_path / "two.svg", [good, bad], ["ann", "bob"], ["no", "yes"], label_counts=[1200, 1]
    )
    written = comments(path)
    assert written.index("bob") < written.index("ann")
    assert {"85 % diagonal · 1,200 labels", "45 % diagonal · 1 label"} <= {*written}
    assert {"90", "10", "20", "80", "50", "60", "40"} <= {*written}


def test_matrices_carry_the_skills_they_are_given(tmp_path):
    maps = np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.6, 0.4]]])
    path = plot_confusion(tmp_path / "two.svg", maps, ["ann", "bob"], "ab", skills=[0.31, 0.62])
    written = comments(path)
    assert written.index("ann") < written.index("bob")
    assert {"31 % right", "62 % right"} <= {*written}


def test_names_are_the_user_s_own_dollar_signs_included(tmp_path):
    names = ["$0-$9", "$\\frac$"]
    path = plot_confusion(tmp_path / "prices.svg", np.ones((1, 2, 2)) / 2, ["a$b$"], names)
    assert {"$0-$9", "a$b$"} <= {*comments(path)}
    curves = {"pay$1$": [0.1]}
    written = comments(plot_error_along_stream(tmp_path / "error.svg", curves, [50]))
    assert "pay$1$  10.0 %" in written


def test_many_classes_get_a_colour_scale_instead_of_numbers(tmp_path):
    few = comments(draw_confusion(tmp_path / "few.svg", n_classes=6))
    many = comments(draw_confusion(tmp_path / "many.svg", n_classes=7))
    assert "100 %" in many and "100 %" not in few
    assert [text for text in few if text.isdigit()]
    assert not [text for text in many if text.isdigit()]


def test_crowded_names_move_apart_about_their_middle_and_others_stay():
    moved = moved_apart([0.1, 0.5, 0.51, 0.9], 0.06)
    assert moved == pytest.approx([0.1, 0.475, 0.535, 0.9])
    assert np.all(np.diff(moved_apart([0.2, 0.2, 0.2, 0.24, 0.3], 0.06)) > 0.0599)


def test_drawing_leaves_the_program_s_own_figures_alone(tmp_path):
    code = (
        "import sys; from labelquorum.evaluation.plots import plot_error_along_stream as draw; "
        "assert 'matplotlib' not in sys.modules; "
        f"draw({str(tmp_path / 'error.png')!r}, {{'BiLA': [0.1, 0.2]}}, [1, 2]); "
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_without_matplotlib_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(LabelQuorumError, match=r"pip install 'labelquorum\[plots\]'"):
        plot_error_along_stream(tmp_path / "error.png", CURVES, ITEMS)


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (lambda path: plot_error_along_stream(path, {}, ITEMS), "`curves` .* one or more"),
        (lambda path: plot_error_along_stream(path, CURVES, [1]), "as many errors"),
        (lambda path: plot_error_along_stream(path, {"a": []}, []), "at least one"),
        (
            lambda path: plot_error_along_stream(path, CURVES, ITEMS, emphasis="EM"),
            "`emphasis` .* Got 'EM'",
        ),
        (
            lambda path: plot_error_along_stream(path.with_suffix(".gif"), CURVES, ITEMS),
            "must end in .png, .svg, .pdf",
        ),
        (lambda path: plot_confusion(path, np.eye(2), ["a"], [0, 1]), "Got \\(2, 2\\)"),
        (lambda path: plot_stream(path, [], np.zeros((0, 2)), [], "ab"), "and hold something"),
        (lambda path: plot_stream(path, [0.0], [[1]], [0.9], "ab"), "Got \\(1, 1\\) for 1"),
        (lambda path: plot_skills(path, [], []), "there must be one"),
        (lambda path: plot_skills(path, ["a"], [0.5], flags=[]), "`flags` .* Got 0 for 1"),
        (lambda path: plot_calibration(path, np.zeros((3, 3))), "count some task"),
        (lambda path: draw_confusion(path, label_counts=[1]), "`label_counts` .* Got 1"),
        (lambda path: draw_confusion(path, skills=[0.5]), "`skills` .* Got the shape \\(1,\\)"),
        (lambda path: draw_confusion(path, columns=0), "`columns` .* ≥ 1. Got 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_sentence(tmp_path, draw, sentence):
    with pytest.raises(StateError, match=sentence):
        draw(tmp_path / "picture.png")
