"""The pages say what is so: code is run, names are looked up, recipes are followed."""

import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from code import InteractiveConsole
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from groups import slow_but

import labelquorum
from labelquorum import BiLA, MajorityVote
from labelquorum.ingest.labels import COLUMN_ALIASES, COMMON_NAMES
from labelquorum.ingest.readers import FORMATS
from labelquorum.ingest.vocabulary import Tally
from labelquorum.learn.aggregator import Aggregator
from labelquorum.learn.bila import PRESETS
from labelquorum.learn.bila.encoder import ENCODERS
from labelquorum.learn.bila.generative import GENERATIVE_MODELS, Newcomers
from labelquorum.learn.bila.minibatch import Batch
from labelquorum.learn.bila.optimizer import OPTIMIZERS
from labelquorum.learn.bila.settings import COUNTED, SETTINGS
from labelquorum.learn.estimators import ESTIMATORS
from labelquorum.learn.registry import AGGREGATORS
from labelquorum.learn.reports import Explanation

ROOT = Path(__file__).parent.parent
REFRESH = "Run python3 run.py python docs/generate.py, and read what it changed."


def load_script(path):
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_script(ROOT / "docs" / "generate.py")
ALL_PAGES = [*generate.PAGES, "CHANGELOG.md"]


@cache
def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def words_in_code(name):
    """Every word that stands in a code span or table of commands of a page."""
    spans = re.findall(r"`([^`\n]+)`", page(name))
    return {word for span in spans for word in re.findall(r"--?[\w-]+|[.\w]+", span)}


def section(name, heading):
    """The text below a heading, up to the next of the same rank."""
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", page(name), re.DOTALL | re.M)[1]


def rows(text):
    """The cells of every table row below its header, without the code marks."""
    lines = re.findall(r"^\|(?!.*\|\n\| ?-)(?! ?-)(.*)\|$", text, re.M)
    return [[cell.strip().strip("`") for cell in line.split("|")] for line in lines]


# ── code and tables ──────────────────────────────────────────────────────────────────────────


def differences(made, shown):
    """Lines that differ by more than one unit in the last place of a decimal number."""

    def differ(one, other):
        number = r"\d+\.\d+"
        if re.split(number, one) != re.split(number, other):
            return True
        pairs = zip(re.findall(number, one), re.findall(number, other), strict=True)
        return any(abs(float(a) - float(b)) > 1.01 * 10 ** -len(a.split(".")[1]) for a, b in pairs)

    made, shown = made.splitlines(), shown.splitlines()
    made += [""] * (len(shown) - len(made))
    shown += [""] * (len(made) - len(shown))
    return [pair for pair in zip(made, shown, strict=True) if differ(*pair)]


# The code of these takes seconds: servers are started, or models fitted to larger crowds.
SLOW_PAGES = {"store", "tutorial-service", "tutorial", "howto", "worker-models", "hierarchical"}
QUICK_PAGES = [name for name in generate.PAGES if Path(name).stem not in SLOW_PAGES]


@pytest.mark.parametrize("name", slow_but(QUICK_PAGES, generate.PAGES))
def test_a_page_shows_what_its_code_prints_and_its_commands_write(name):
    if name in generate.NEED_DATA and not os.environ.get("LABELQUORUM_DATA"):
        pytest.skip("its code reads a data set, and LABELQUORUM_DATA names no folder of them")
    assert not differences(generate.render(name), page(name)), REFRESH


@pytest.mark.parametrize("name", generate.PAGES)
def test_a_table_between_marks_is_what_its_command_writes_to_the_letter(name):
    assert generate.fill_tables(page(name)) == page(name), REFRESH


def test_every_table_a_command_writes_stands_on_a_page():
    for table in generate.TABLES:
        assert any(f"<!-- {table} -->" in page(name) for name in generate.PAGES)


def test_a_page_whose_code_prints_something_else_is_noticed(tmp_path):
    text = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    assert differences(generate.run_code(text, tmp_path), text) == [("2", "3")]


def test_output_that_a_page_does_not_show_is_noticed(tmp_path):
    text = "```python\nprint('hello')\n```\n"
    assert differences(generate.run_code(text, tmp_path), text)


def test_a_page_whose_code_fails_is_noticed(tmp_path):
    with pytest.raises(ZeroDivisionError):
        generate.run_code("```python\n1 / 0\n```\n", tmp_path)
    with pytest.raises(RuntimeError, match="ended with 3"):
        generate.run_code("```console\n$ (exit 3)\n```\n", tmp_path)


def test_numbers_may_differ_in_their_last_digit_and_no_more():
    assert not differences("error 8.2%", "error 8.3%")
    assert differences("error 8.2%", "error 8.4%")
    assert differences("12 tasks", "13 tasks")


def test_a_page_whose_code_fails_leaves_nothing_running(tmp_path):
    code = (
        "import os, pathlib, subprocess\n"
        "os.mkfifo('pipe')\n"
        "waits = subprocess.Popen(['cat', 'pipe'])\n"
        "_ = pathlib.Path('pid').write_text(str(waits.pid))\n"
        "1 / 0\n"
    )
    with pytest.raises(ZeroDivisionError):
        generate.run_code(f"```python\n{code}```\n", tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_blocks_of_a_page_share_their_names_and_their_folder(tmp_path):
    text = (
        "```python\nimport os\nos.mkdir('a')\n```\n\n```python\nassert os.listdir() == ['a']\n```\n"
    )
    generate.run_code(text + "```console\n$ test -d a\n```\n", tmp_path)


class Typed(InteractiveConsole):
    """Python's prompt, which runs nothing and keeps what it could not read."""

    def __init__(self):
        super().__init__()
        self.faults = []

    def runcode(self, code):
        pass

    def showsyntaxerror(self, *_, **__):
        self.faults.append(str(sys.exception()))


@pytest.mark.parametrize("name", generate.PAGES)
def test_code_of_a_page_can_be_pasted_at_the_prompt(name):
    for code in re.findall(r"^```python\n(.*?)^```", page(name), re.DOTALL | re.MULTILINE):
        prompt = Typed()
        for line in [*code.splitlines(), ""]:
            prompt.push(line)
        assert prompt.faults == [], code


def test_every_page_with_code_is_run():
    with_code = {
        str(path.relative_to(ROOT))
        for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
        if generate.FENCE.search(path.read_text(encoding="utf-8"))
    }
    assert with_code <= set(generate.PAGES)


def test_the_result_table_is_made_of_the_measured_and_the_printed_figures(tmp_path, monkeypatch):
    def row(chunk, error, **fields):
        methods = ("mv", "www2021", "authors")
        others = [{"method": method, "printed": 7.75} for method in methods]
        ours = {"method": "default", "printed": 7.75, "mean": error}
        row = {"data": "rte", "title": "RTE", "variant": "", "oracle": None, "available": True}
        return {**row, "chunk": chunk, "cells": [*others, ours], **fields}

    online = [
        row(25, 5.678, oracle={"mean": 1.234}),
        row(25, 9.999, variant="initial set streamed again"),
        row(50, 8.888),
        row(25, 7.777, available=False),
    ]
    (tmp_path / "results").mkdir()
    for name, rows in (("table2", online), ("table3", [])):
        given = {"made": {"command": "measure it"}, "rows": rows}
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps(given))
    monkeypatch.setattr(generate, "RESULTS", tmp_path)
    given = generate.results()
    assert "| RTE, chunks of 25 | 7.75 | – | – | – | 5.68 | 1.23 |" in given
    assert "`measure it`" in given
    assert not any(left_out in given for left_out in ("10.00", "8.89", "7.78"))


# ── links and pictures ───────────────────────────────────────────────────────────────────────


def anchors(path):
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower()).replace(" ", "-")
        for heading in headings
    }


@pytest.mark.parametrize("name", ALL_PAGES)
def test_every_link_leads_somewhere(name):
    text = re.sub(r"^```.*?^```", "", page(name), flags=re.DOTALL | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / name).parent / file if file else ROOT / name
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def test_every_page_can_be_reached_from_the_readme():
    seen, queue = set(), [ROOT / "README.md"]
    while queue:
        path = queue.pop().resolve()
        if path not in seen and path.suffix == ".md":
            seen.add(path)
            links = re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8"))
            queue += [path.parent / link for link in links if not link.startswith("http")]
    missing = {path for path in ROOT.glob("docs/*.md") if path.resolve() not in seen}
    assert not missing


def test_the_pictures_are_those_a_script_makes_and_all_are_shown():
    images = ROOT / "docs" / "images"
    pictures = load_script(ROOT / "docs" / "pictures.py")
    made = {f"{name}.png" for name in pictures.PICTURES}
    made |= {f"dashboard-{name}.png" for name in pictures.SHOWN}
    assert {path.name for path in images.glob("*.png")} == made
    for name in made:
        assert (images / name).stat().st_size <= pictures.MOST_BYTES
        assert any(f"images/{name})" in page(one) for one in generate.PAGES), name


def test_the_script_takes_pages_that_the_demo_takes():
    from labelquorum.demo.browser import shots_of

    pictures = load_script(ROOT / "docs" / "pictures.py")
    assert set(pictures.SHOWN) <= {shot.name for shot in shots_of("s", "t", "w")}


def test_a_drawing_is_shown_named_and_readable_by_day_and_by_night():
    drawings = [path for path in (ROOT / "docs" / "images").iterdir() if path.suffix != ".png"]
    assert {path.name for path in drawings} == {"stream.svg", "bila.svg"}
    for path in drawings:
        source = path.read_text(encoding="utf-8")
        assert f"](images/{path.name})" in page("docs/model.md")
        assert all(f"<{tag} id=" in source for tag in ("title", "desc"))
        assert "prefers-color-scheme: dark" in source


# ── the reference ────────────────────────────────────────────────────────────────────────────

REGISTRIES = {
    "AGGREGATORS": AGGREGATORS,
    "ESTIMATORS": ESTIMATORS,
    "PRESETS": PRESETS,
    "COUNTED": COUNTED,
    "GENERATIVE_MODELS": GENERATIVE_MODELS,
    "ENCODERS": ENCODERS,
    "OPTIMIZERS": OPTIMIZERS,
    "FORMATS": FORMATS,
}


def test_the_reference_names_every_public_name():
    assert set(labelquorum.__all__) <= words_in_code("docs/reference.md")
    assert set(importlib.import_module("labelquorum.evaluation").__all__) <= set(
        words_in_code("docs/reference.md")
    )


@pytest.mark.parametrize("registry", REGISTRIES)
def test_the_reference_names_every_entry_of_a_registry(registry):
    [row] = (row for row in rows(page("docs/reference.md")) if f".{registry}" in f"{row[0]},")
    assert set(REGISTRIES[registry]) <= set(re.findall(r"`?(\.?[\w.]+)`?", row[1]))


def test_the_reference_gives_every_setting_of_bila_its_default():
    given = {row[0]: row[1] for row in rows(section("docs/reference.md", "Settings"))}
    settings = inspect.signature(BiLA).parameters
    assert given == {name: repr(setting.default) for name, setting in settings.items()}


def test_majority_vote_takes_the_settings_from_seed_on():
    settings = list(inspect.signature(BiLA).parameters)
    assert list(inspect.signature(MajorityVote).parameters) == settings[settings.index("seed") :]


def test_the_reference_names_every_method_and_attribute():
    model = BiLA().fit({"q": {"a": 0, "b": 1}})
    public = {name for name in dir(model) if not name.startswith("_")}
    methods = rows(section("docs/reference.md", "Methods"))
    given = {name for row in methods for name in re.findall(r"(\w+)\(", row[0])}
    attributes = rows(section("docs/reference.md", "Attributes"))
    given |= {name for row in attributes for name in re.findall(r"\w+", row[0])}
    assert public - set(model.get_params()) == given


def test_the_reference_names_every_method_of_the_client_with_its_parameters():
    text = section("docs/reference.md", "The client")
    for name, method in inspect.getmembers(labelquorum.Client, inspect.isfunction):
        if name.startswith("_"):
            continue
        given = re.search(rf"`{name}\((.*?)\)`", text)
        assert given, name
        if "…" not in given[1]:
            names = list(inspect.signature(method).parameters)[1:]
            assert re.findall(r"(?:^|, |\*\*)(\w+)", given[1].replace("*, ", "")) == names


def test_the_reference_names_every_choice_of_a_setting():
    text = section("docs/reference.md", "Settings")
    for setting in SETTINGS.values():
        for choice in setting.choices:
            assert f'"{choice}"' in text


def test_the_reference_names_every_column_of_the_report():
    import pandas as pd

    table = pd.DataFrame({"task": [1, 1], "worker": ["a", "b"], "label": [0, 1]})
    attributes = {"worker_kind": "llm", "model": "m", "prompt": "p", "order": "AB"}
    report = BiLA().fit(table.assign(group="g", timestamp=[1, 2], **attributes)).report()
    given = {row[1] for row in rows(section("docs/reference.md", "The report"))} - {""}
    frames = (report.items, report.workers, report.class_agreement)
    assert given == {column for frame in frames for column in frame.columns}
    assert set(report._fields) <= words_in_code("docs/reference.md")


def test_the_reference_tells_every_field_of_an_explanation():
    cells = [row[0] for row in rows(section("docs/reference.md", "The explanation"))]
    assert re.findall(r"\w+", " ".join(cells)) == list(Explanation._fields)


def test_the_reference_tells_every_field_of_the_tally():
    given = [row[0] for row in rows(section("docs/reference.md", "The tally"))]
    assert given == list(Tally._fields)


def test_the_reference_tells_every_name_a_column_may_have():
    given = {
        row[0]: tuple(re.findall(r"\w+", row[1]))
        for row in rows(section("docs/reference.md", "Columns"))
    }
    assert given == {role: aliases[1:] for role, aliases in COLUMN_ALIASES.items()}
    common = {name for names in COMMON_NAMES.values() for name in names}
    assert common <= words_in_code("docs/reference.md")


def test_the_reference_names_every_reader():
    formats = importlib.import_module("labelquorum.ingest.readers")
    readers = {
        name
        for name, value in vars(formats).items()
        if name.startswith(("read_", "iter_")) and value.__module__ == formats.__name__
    }
    assert readers <= words_in_code("docs/reference.md")
    assert set(FORMATS) <= words_in_code("docs/reference.md")


@pytest.mark.parametrize("kind", [Newcomers, Batch, Aggregator, labelquorum.Encoder])
def test_the_reference_names_every_field_of_the_parts_one_can_write(kind):
    assert set(kind._fields) <= words_in_code("docs/reference.md")


def test_the_reference_names_every_command_and_option():
    from typer.main import get_command

    from labelquorum.cli import app

    options = {
        row[0]: row[2].replace("`", "").split()
        for row in rows(section("docs/reference.md", "Commands"))
    }
    for name, command in get_command(app).commands.items():
        for inner, part in getattr(command, "commands", {"": command}).items():
            usage = f"{name} {inner}".strip()
            [shown] = (o for row, o in options.items() if f"{row} ".startswith(f"{usage} "))
            wanted = [p for p in part.params if p.param_type_name == "option"]
            assert shown == [opt for p in wanted for opt in p.opts if "--help" not in p.opts], name


def test_the_reference_names_every_variable_of_the_environment():
    sources = [*(ROOT / "src").rglob("*.py")]
    used = {
        name
        for path in sources
        for name in re.findall(r"\"(LABELQUORUM_\w+)\"", path.read_text(encoding="utf-8"))
    }
    assert used <= words_in_code("docs/reference.md")


def test_the_reference_tells_what_a_saved_file_holds(tmp_path):
    import safetensors

    model = BiLA(warmup_items=1).partial_fit({"q": {"a": 0, "b": 1}})
    model.save(tmp_path / "model.lq")
    with safetensors.safe_open(tmp_path / "model.lq", framework="numpy") as file:
        metadata, names = file.metadata(), set(file.keys())
    text = section("docs/reference.md", "The file")
    _, _, header = metadata["labelquorum"].partition(" ")
    assert all(f"`{key}`" in text for key in (*metadata, *json.loads(header)))
    for name in names:
        prefix = re.match(r"ids\.|\w+/", name)[0]
        assert f"`{prefix}…`" in text
        assert prefix != "ids." or f"`{name.removeprefix(prefix)}`" in text


# ── the paper ────────────────────────────────────────────────────────────────────────────────


def resolve(dotted):
    """Find what a name such as `learn.bila.counts.update` stands for; inner functions by source."""
    parts = dotted.split(".")
    for depth in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(["labelquorum", *parts[:depth]]))
        except ModuleNotFoundError:
            continue
        for part in parts[depth:]:
            if hasattr(found, part):
                found = getattr(found, part)
            else:
                assert f"def {part}(" in inspect.getsource(found), dotted
        return
    pytest.fail(f"{dotted} is nowhere in labelquorum.")


def test_every_function_named_in_the_paper_page_exists():
    names = set(re.findall(r"`((?:ingest|learn|evaluation)\.[\w.]+)`", page("docs/paper.md")))
    assert len(names) > 25
    for name in names:
        resolve(name)


@pytest.mark.parametrize("name", ["docs/worker-models.md", "docs/hierarchical.md"])
def test_every_function_named_in_a_derivation_exists(name):
    names = set(re.findall(r"`(learn\.[\w.]+)`", page(name)))
    assert len(names) > 5
    for name in names:
        resolve(name)


def test_the_recipe_page_names_every_constant():
    from labelquorum.learn.bila.hierarchical import Recipe

    assert set(Recipe._fields) <= words_in_code("docs/hierarchical.md")


def test_every_function_named_in_the_confidence_page_exists():
    names = set(re.findall(r"`(learn\.[\w.]+)`", page("docs/confidence.md")))
    assert len(names) > 8
    for name in names:
        resolve(name)


def test_a_function_that_does_not_exist_is_noticed():
    with pytest.raises(AssertionError):
        resolve("learn.bila.bila.no_such_function")


def test_every_equation_of_the_paper_has_a_row():
    found = set()
    for cell, *_ in rows(section("docs/paper.md", "Equations")):
        first, last = (
            (re.findall(r"\d+", cell) * 2)[:2] if "–" not in cell else re.findall(r"\d+", cell)
        )
        found.update(range(int(first), int(last) + 1))
    assert found == set(range(1, 19))


def test_every_line_of_algorithm_1_has_a_row():
    lines = [row[0] for row in rows(section("docs/paper.md", "Algorithm 1"))]
    assert lines == [str(line) for line in range(1, 31)]


def test_a_line_of_algorithm_1_named_in_the_code_is_where_the_page_says():
    given = {row[0]: row[2] for row in rows(section("docs/paper.md", "Algorithm 1"))}
    for path in (ROOT / "src" / "labelquorum" / "learn").rglob("*.py"):
        for line in re.findall(r"# Alg\. 1 line (\d+):", path.read_text(encoding="utf-8")):
            assert f".{path.stem}." in given[line] or "same function" in given[line], (path, line)


def test_notes_are_numbered_and_name_settings_that_exist():
    notes = rows(section("docs/paper.md", "Notes"))
    assert [note[0] for note in notes] == [str(n + 1) for n in range(len(notes))]
    settings = set(inspect.signature(BiLA).parameters)
    for note in notes:
        assert set(re.findall(r"`(\w+)=", f"`{note[-1]}")) <= settings


def test_the_preset_www2021_selects_the_papers_way_in_every_note_that_departs():
    www2021 = {**PRESETS["www2021"]}
    for note in rows(section("docs/paper.md", "Notes")):
        ours = note[-1].split(";")[0]
        for name, value in re.findall(r"(\w+)=([^`]+)", ours):
            if "*Departs*" in note[4] and name in www2021:
                assert www2021[name] == eval(value)


# ── the recipes of CONTRIBUTING.md ───────────────────────────────────────────────────────────


def test_every_command_of_run_py_is_told():
    run = load_script(ROOT / "run.py")
    for name in (*run.COMMANDS, "lock"):
        assert f"python3 run.py {name}" in page("CONTRIBUTING.md")


def test_every_file_that_contributing_names_is_there():
    for path in re.findall(r"`((?:src|tests)/[\w/.]+)`", page("CONTRIBUTING.md")):
        assert (ROOT / path).exists(), path


GENERATIVE = '''
def one_skill(init_strength: float = 1.0) -> GenerativeModel:
    """Each worker has one skill; mistakes are spread as the crowd spreads them."""

    def init(newcomers: Newcomers) -> Params:
        shared = {"popularity": jnp.zeros(newcomers.n_classes)}
        return Params(shared, {"skill": jnp.full(len(newcomers.keys), 1.5)})

    def log_confusion(params: Params) -> jax.Array:
        popularity, skill = params.shared["popularity"], params.per_worker["skill"]
        return jax.nn.log_softmax(popularity + skill[:, None, None] * jnp.eye(len(popularity)))

    def log_likelihood(params: Params, batch: Batch) -> jax.Array:
        return sum_by_item(log_confusion(params)[batch.worker, :, batch.label], batch)

    def confusion(params: Params) -> jax.Array:
        return jnp.exp(log_confusion(params))

    return GenerativeModel("one_skill", init, log_likelihood, confusion)


'''

FORMAT = '''
def read_pipes(
    source: TextSource, space: LabelSpace = ANY_LABEL, columns: Columns = None
) -> LabelTable:
    """Read lines such as task|worker|label."""
    [table] = iter_pipes(source, space, _ALL_ROWS)
    return table


def iter_pipes(
    source: TextSource, space: LabelSpace = ANY_LABEL, rows: int = _ROWS, columns: Columns = None
) -> Iterator[LabelTable]:
    """Read such lines lazily; they have no header that `columns` could name."""
    with open(source) as file:
        lines = enumerate(file, 1)
        while batch := list(islice(lines, rows)):
            cells = [[cell.strip() for cell in line.split("|")] for _, line in batch]
            columns = (list(column) for column in zip(*cells, strict=True))
            places = [place for place, _ in batch]
            yield checked(LabelTable(*columns, source=str(source), lines=places), space)


'''

FOLLOWED = """
import numpy as np
import labelquorum as lq
from labelquorum.ingest.readers import iter_labels, read_labels
from labelquorum.learn.registry import AGGREGATORS
from labelquorum.evaluation.checks import CHECKS, check_aggregator

assert lq.__file__.startswith(COPY), lq.__file__

# a generative model: by name, on more than two classes
answers = {t: {w: t % 3 for w in range(4)} for t in range(12)}
model = lq.BiLA("network", generative="one_skill")
assert model.fit_predict(answers).to_dict() == {t: t % 3 for t in range(12)}
assert model.confusion_.shape == (4, 3, 3)
np.testing.assert_allclose(model.confusion_.sum(axis=2), 1, rtol=1e-5)

# a method: every law holds
assert check_aggregator(AGGREGATORS["plurality"]()) == [(name, "held") for name in CHECKS]

# a format: a good file and a bad one
assert read_labels("good.pipes").labels == ["cat", "dog"]
assert [len(table.labels) for table in iter_labels("good.pipes", rows=1)] == [1, 1]
try:
    read_labels("bad.pipes")
except lq.LabelError as error:
    assert str(error).startswith("bad.pipes line 2: the label is missing"), error
else:
    raise AssertionError("bad.pipes was read")
"""


def insert(path, before, new):
    """Put text before the one place where `before` stands."""
    source = path.read_text(encoding="utf-8")
    assert source.count(before) == 1, (path, before)
    path.write_text(source.replace(before, new + before), encoding="utf-8")


@pytest.mark.slow
def test_the_three_recipes_work_when_followed_to_the_letter(tmp_path):
    package = tmp_path / "labelquorum"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "labelquorum", package, ignore=ignored)

    # To add a generative model p: a function, and a line in the registry.
    generative = package / "learn" / "bila" / "generative.py"
    insert(generative, "GENERATIVE_MODELS: dict", GENERATIVE)
    insert(generative, '    "worker_ability": worker_ability,\n', '    "one_skill": one_skill,\n')

    # To add a method: copy majority_vote.py, and a line in the registry.
    methods = package / "learn" / "methods"
    source = (methods / "majority_vote.py").read_text(encoding="utf-8")
    renamed = source.replace("majority_vote", "plurality")
    (methods / "plurality.py").write_text(renamed, encoding="utf-8")
    registry = package / "learn" / "registry.py"
    insert(registry, '    "majority_vote": majority_vote,\n', '    "plurality": plurality,\n')
    importing = "from labelquorum.learn.methods.plurality import plurality\n"
    insert(registry, "from labelquorum.learn.bila import bila as build_bila\n", importing)

    # To add an input format: two readers, a line in the registry, a good and a bad file.
    formats = package / "ingest" / "readers.py"
    insert(formats, "class Format(NamedTuple):", FORMAT)
    line = '    ".pipes": Format(read_pipes, iter_pipes),\n'
    insert(formats, '    ".parquet": Format(read_parquet, iter_parquet),\n', line)
    (tmp_path / "good.pipes").write_text("q1 | ann | cat\nq1 | bob | dog\n")
    (tmp_path / "bad.pipes").write_text("q1 | ann | cat\nq1 | bob | \n")

    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run(*arguments):
        program = [sys.executable, "-W", "error", *arguments]
        return subprocess.run(
            program, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    followed = run("-c", f"COPY = {str(tmp_path)!r}\n{FOLLOWED}")
    assert followed.returncode == 0, followed.stderr
    asked = run("-m", "labelquorum", "aggregate", "good.pipes", "--method", "plurality")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.splitlines()[1].startswith("q1,")
