"""Code and prose say what a maintainer would search for."""

import pytest
from words import find


def test_no_page_or_module_uses_a_banned_word():
    assert [str(hit) for hit in find()] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("each worker and his label", ["his"]),
        ("# told once\n", ["told"]),
        ("# at most so\n    # many rows", ["so many"]),
        ('"they are let "\n    "go of"', ["let go"]),
        ("one row a worker, five labels a task", ["a row a worker", "a row a worker"]),
        ("the theory of their history", []),
    ],
)
def test_a_banned_word_is_found_wherever_it_stands(tmp_path, text, found):
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    assert [hit.rule for hit in find(tmp_path)] == found
