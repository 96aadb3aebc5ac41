"""The cheap part of `goldens.py --check`, and the comparison itself."""

import golden_parts
import goldens
import pytest

CHEAP = [part for part in goldens.PARTS if part not in ("postgresql", "models")]


def different(checked):
    return [line for lines in checked.values() for line in lines]


@pytest.mark.parametrize("part", CHEAP)
def test_the_code_does_what_was_recorded(part):
    goldens.read()  # says what to do where nothing was recorded
    assert different(goldens.check(part, goldens.PARTS[part]())) == []


def test_models_are_saved_as_recorded():
    goldens.read()
    cheap = [name for name in golden_parts.METHODS if name not in golden_parts.COMPILED]
    assert different(goldens.check("models", golden_parts.models(cheap), only=cheap)) == []


def test_without_a_record_the_error_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(goldens, "FILE", tmp_path / "goldens.json")
    with pytest.raises(FileNotFoundError, match=r"goldens\.json is missing.*goldens\.py --write"):
        goldens.read()


@pytest.mark.parametrize(
    ("now", "strict", "elsewhere"),
    [
        ({"sha256": "a", "text": ["t1,0.25"], "n": 1, "x": 0.5}, 0, 0),
        ({"sha256": "b", "text": ["t1,0.250001"], "n": 1, "x": 0.5000001}, 3, 0),
        ({"sha256": "a", "text": ["t1,0.26"], "n": 2, "x": 0.51}, 3, 3),
        ({"sha256": "a", "text": ["t2,0.25"], "n": 1, "x": None}, 2, 2),
        ({"sha256": "a", "text": ["t1,0.25", ""], "n": 1}, 2, 2),
        ({"sha256": "a", "text": ["t1,0.25"], "n": 1, "x": 0.5, "y": 1}, 1, 1),
    ],
)
def test_floats_may_differ_in_their_last_digits_on_another_machine(now, strict, elsewhere):
    before = {"sha256": "a", "text": ["t1,0.25"], "n": 1, "x": 0.5}
    assert len(list(goldens.differences(before, now, True, ""))) == strict
    assert len(list(goldens.differences(before, now, False, ""))) == elsewhere
