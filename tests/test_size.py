"""How large the code may be: lines and modules per package, length of modules and functions.

The numbers are in `pyproject.toml`, `[tool.labelquorum.budget]` and `[tool.labelquorum.long]`. A
budget rises only in a commit whose body says what users get for it, and falls with the code.
"""

import ast
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "labelquorum"
SPACE = 100  # lines by which a budget may be above its package
MODULE_LINES, FUNCTION_LINES = 500, 60


def settings(name):
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["labelquorum"][name]


BUDGET, LONG = settings("budget"), settings("long")


def package_of(path):
    """The innermost package that has a budget; "root" for the modules beside the packages."""
    parts = path.relative_to(SOURCE).parts[:-1]
    known = ("/".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((one for one in known if one in BUDGET), "root")


def sizes():
    """The modules of each package, with their lines."""
    found = {name: {} for name in BUDGET}
    for path in sorted(SOURCE.rglob("*.py")):
        lines = path.read_text("utf-8").count("\n")
        found[package_of(path)][path.relative_to(SOURCE).as_posix()] = lines
    return found


def over_budget(found, budget):
    """One sentence per package that is larger than its budget, or much smaller."""
    for name, modules in found.items():
        lines, (most_lines, most_modules) = sum(modules.values()), budget[name]
        if lines > most_lines:
            largest = ", ".join(f"{one} {n}" for one, n in Counter(modules).most_common(5))
            yield f"{name}: {lines} lines, the budget is {most_lines}. The largest: {largest}."
        elif lines < most_lines - SPACE:
            yield f"{name}: {lines} lines. Lower its budget of {most_lines} in the same commit."
        if len(modules) > most_modules:
            yield f"{name}: {len(modules)} modules, the budget is {most_modules}."


def too_long():
    """The modules above 500 lines and the functions above 60."""
    for path in SOURCE.rglob("*.py"):
        name, text = path.relative_to(SOURCE).as_posix(), path.read_text("utf-8")
        if text.count("\n") > MODULE_LINES:
            yield name
        for node in ast.walk(ast.parse(text)):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and node.end_lineno - node.lineno >= FUNCTION_LINES:
                yield f"{name}:{node.name}"


def test_every_package_keeps_to_its_budget():
    assert list(over_budget(sizes(), BUDGET)) == []


def test_what_is_long_is_listed_with_a_reason_and_the_list_only_shrinks():
    assert sorted(set(too_long())) == sorted(LONG)
    assert all(LONG.values())


def test_a_package_above_its_budget_names_its_largest_modules():
    found = {"a": {"a/x.py": 90, "a/y.py": 20}, "b": {"b/z.py": 10}}
    assert list(over_budget(found, {"a": [100, 2], "b": [200, 0]})) == [
        "a: 110 lines, the budget is 100. The largest: a/x.py 90, a/y.py 20.",
        "b: 10 lines. Lower its budget of 200 in the same commit.",
        "b: 1 modules, the budget is 0.",
    ]
