"""run.py in a small checkout of its own, where a stand-in for uv only notes what it was asked."""

import ast
import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
RUN = "requirements.lock"
DEV = ["requirements-dev.lock", "requirements-nodeps.lock"]
SPARK = "requirements-spark.lock"
KERNEL = "src/labelquorum/learn/bila/_kernel.c"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

UV = """#!/bin/sh
echo "$*" >> "{folder}/asked"
if [ -e "{folder}/slow" ]; then sleep 20; fi
broken=$(cat "{folder}/broken" 2>/dev/null || echo nothing)
case "$*" in *"$broken"*) echo "no such package" >&2; echo "in this index"; exit 9;; esac
"""


class Checkout:
    """A folder with run.py, made-up pins and the stand-in for uv."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.venv = folder / ".venv"
        self.stamp = self.venv / "installed-by-run"
        shutil.copy(ROOT / "run.py", folder)
        (folder / KERNEL).parent.mkdir(parents=True)
        for name in [RUN, *DEV, SPARK, "pyproject.toml", KERNEL]:
            (folder / name).write_text("one==1\n")
        uv = folder / "bin" / "uv"
        uv.parent.mkdir()
        uv.write_text(UV.format(folder=folder))
        uv.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{uv.parent}:/usr/bin:/bin"}
        self.environment.pop("LABELQUORUM_CI", None)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(self.folder / "run.py"), *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def asked(self) -> list[str]:
        """Give what uv was asked since the last look."""
        file = self.folder / "asked"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    def module(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location("run", self.folder / "run.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture
def installed(checkout: Checkout) -> Checkout:
    code, _, err = checkout.run("python", "-c", "")
    assert code == 0, err
    checkout.asked()
    (checkout.venv / "old").touch()  # gone once .venv is made again
    return checkout


def test_first_run_installs_the_pins_and_the_project(checkout: Checkout) -> None:
    code, out, err = checkout.run("python", "-c", "import sys; print(sys.prefix)")
    assert (code, out) == (0, f"{checkout.venv}\n")
    run, project, dev = checkout.asked()
    assert "--require-hashes" in run and "--require-hashes" in dev
    assert run.endswith(f"-r {checkout.folder / RUN}")
    assert all(f"-r {checkout.folder / name}" in dev for name in DEV)
    assert "--no-build-isolation" in project
    assert project.endswith(f"-e {checkout.folder}")
    assert "1 packages, a download of about 102 MB" in err
    assert "2 packages, a download of about 328 MB" in err


def test_demo_installs_no_package_of_the_developers(checkout: Checkout) -> None:
    checkout.run("demo")  # whose own program is missing here
    run, project = checkout.asked()
    assert run.endswith(f"-r {checkout.folder / RUN}")
    assert project.endswith(f"-e {checkout.folder}")
    (checkout.venv / "old").touch()
    assert checkout.run("python", "-c", "")[0] == 0
    (dev,) = checkout.asked()
    assert all(f"-r {checkout.folder / name}" in dev for name in DEV)
    assert (checkout.venv / "old").exists()
    checkout.run("demo")
    assert checkout.asked() == []


def test_failed_addition_leaves_the_demo_usable_and_is_never_taken_for_whole(
    checkout: Checkout,
) -> None:
    (checkout.folder / "broken").write_text("dev.lock")
    assert checkout.run("python", "-c", "print('not reached')")[:2] == (1, "")
    assert len(checkout.asked()) == 3
    (checkout.venv / "half").touch()
    checkout.run("demo")
    assert checkout.asked() == []  # and what was half installed does no harm

    (checkout.folder / "broken").unlink()
    assert checkout.run("python", "-c", "")[0] == 0
    assert len(checkout.asked()) == 3
    assert not (checkout.venv / "half").exists()


def test_second_run_installs_nothing(installed: Checkout) -> None:
    code, out, err = installed.run("python", "-c", "print('hello')")
    assert (code, out, err) == (0, "hello\n", "")
    assert installed.asked() == []


def test_exit_code_passes_through(installed: Checkout) -> None:
    assert installed.run("python", "-c", "raise SystemExit(7)")[0] == 7


def test_arguments_pass_through(installed: Checkout) -> None:
    script = "import sys; print(sys.argv[1:])"
    assert installed.run("python", "-c", script, "--help", "a b")[1] == "['--help', 'a b']\n"


def test_bytecode_is_kept_in_the_environment_and_not_in_the_checkout(installed: Checkout) -> None:
    installed.environment.pop("PYTHONPYCACHEPREFIX", None)
    installed.environment["PYTHONDONTWRITEBYTECODE"] = "1"
    script = "import sys; print(sys.dont_write_bytecode, sys.pycache_prefix)"
    assert installed.run("python", "-c", script)[1] == f"False {installed.venv / 'bytecode'}\n"


def test_failed_install_leaves_no_stamp_and_the_next_run_repairs_it(installed: Checkout) -> None:
    (installed.folder / RUN).write_text("two==2\n")
    (installed.folder / "broken").write_text(RUN)
    code, out, err = installed.run("python", "-c", "print('not reached')")
    assert (code, out) == (1, "")
    assert "no such package" in err
    assert "in this index" in err
    assert "Traceback" not in err
    assert not installed.stamp.exists()

    (installed.folder / "broken").unlink()
    (installed.venv / "half").touch()
    assert installed.run("python", "-c", "")[0] == 0
    assert installed.stamp.exists()
    assert not (installed.venv / "half").exists()


@pytest.mark.parametrize("name", [RUN, *DEV])
def test_new_pins_make_a_new_environment(installed: Checkout, name: str) -> None:
    (installed.folder / name).write_text("two\n")
    assert installed.run("python", "-c", "")[0] == 0
    assert len(installed.asked()) == 3
    assert not (installed.venv / "old").exists()


@pytest.mark.parametrize("name", ["pyproject.toml", KERNEL])
def test_a_changed_project_is_installed_again_alone(installed: Checkout, name: str) -> None:
    (installed.folder / name).write_text("two\n")
    assert installed.run("python", "-c", "")[0] == 0
    (asked,) = installed.asked()
    assert asked.endswith(f"-e {installed.folder}")
    assert (installed.venv / "old").exists()


def test_spark_is_installed_where_it_is_asked_for_and_stays(installed: Checkout) -> None:
    assert installed.run("spark", "-c", "")[0] == 0
    (asked,) = installed.asked()
    assert asked.endswith(f"-r {installed.folder / SPARK}")
    assert "--require-hashes" in asked
    (installed.folder / "pyproject.toml").write_text("two\n")
    assert installed.run("python", "-c", "")[0] == 0
    assert len(installed.asked()) == 1  # the project
    assert installed.run("spark", "-c", "")[0] == 0
    assert installed.asked() == []
    (installed.folder / SPARK).write_text("two\n")
    assert installed.run("spark", "-c", "")[0] == 0
    assert len(installed.asked()) == 1


def test_spark_is_installed_in_ci_for_every_command(checkout: Checkout) -> None:
    checkout.environment["LABELQUORUM_CI"] = "1"
    assert checkout.run("python", "-c", "")[0] == 0
    assert [f"-r {checkout.folder / SPARK}" in line for line in checkout.asked()] == [
        *(False, False, False, True)
    ]


def test_broken_interpreter_is_replaced(installed: Checkout) -> None:
    python = installed.venv / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert installed.run("python", "-c", "")[0] == 0
    assert not (installed.venv / "old").exists()


def test_another_python_or_folder_wants_another_environment(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = checkout.module()
    packages, project = run.wanted_stamp([]).values()
    for target, name, value in [
        (sys.implementation, "cache_tag", "cpython-399"),
        (run, "ROOT", Path("/elsewhere")),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            changed = list(run.wanted_stamp([]).values())
        assert changed[0] != packages
        assert changed[1] == project


def test_missing_venv_package_gives_one_helpful_sentence(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = checkout.module()
    monkeypatch.setattr(run.shutil, "which", lambda name: None)
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: name != "ensurepip" or None)
    with pytest.raises(SystemExit) as stop:
        run.ensure_environment([])
    assert stop.value.code == 1
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert "no ensurepip module" in sentence
    assert "python3-venv" in sentence
    assert not checkout.venv.exists()


@pytest.mark.slow
def test_ctrl_c_while_installing_is_clean(checkout: Checkout) -> None:
    (checkout.folder / "slow").touch()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background
    process = checkout.start("python", "-c", "print('not reached')")  # may have it switched off
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 120  # a busy machine makes an environment slowly
    while not (checkout.folder / "asked").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 130
    assert err.endswith("Stopped.\n")
    assert "Traceback" not in out + err
    assert not checkout.stamp.exists()


def test_every_step_runs_with_the_arguments_and_the_failed_one_is_named(
    installed: Checkout, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = installed.module()
    for name in ("PATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # run() changes them: put them back
    monkeypatch.chdir(installed.folder)
    bad, good = ["python", "-c", "raise SystemExit(3)"], ["python", "-c", "print('good ran')"]
    assert run.run(run.Command("", [bad, good]), []) == 1
    out, err = capfd.readouterr()
    assert out == "good ran\n"
    assert err.endswith("Failed: python -c raise SystemExit(3).\n")
    assert run.run(run.Command("", [good, good]), []) == 0
    shown = ["python", "-c", "import sys; print(sys.argv[1:])"]
    command = run.Command("", [shown, shown], options=run.COMMANDS["test"].options)
    assert run.run(command, ["--all", "-k", "stream"]) == 0
    assert capfd.readouterr()[0].splitlines()[-1] == "['-m', '', '-k', 'stream']"


def test_help_lists_every_command_and_a_wrong_one_is_refused(checkout: Checkout) -> None:
    code, out, _ = checkout.run("--help")
    assert code == 0
    for name in [*checkout.module().COMMANDS, "lock"]:
        assert re.search(rf"^  {name} +[A-Z]", out, re.MULTILINE), name
    code, out, err = checkout.run("tset")
    assert (code, out) == (2, "")
    assert "'tset'" in err
    assert not checkout.venv.exists()


def test_every_script_a_command_runs_is_there(checkout: Checkout) -> None:
    steps = [step for command in checkout.module().COMMANDS.values() for step in command.steps]
    scripts = [word for step in steps for word in step if word.endswith(".py")]
    assert scripts
    assert all((ROOT / script).is_file() for script in scripts)


def test_old_python_is_told_so_in_one_sentence() -> None:
    source = (ROOT / "run.py").read_text()
    ast.parse(source, feature_version=(3, 7))  # an old Python reads the whole file first
    pretend = "import sys; sys.version_info = (3, 9); exec(sys.argv[1])"
    old = subprocess.run([sys.executable, "-c", pretend, source], capture_output=True, text=True)
    assert old.returncode == 1
    assert re.fullmatch(r"labelquorum needs Python 3\.11 or newer\. This is .+\.\n", old.stderr)


def read_lock(name: str) -> dict[str, str]:
    """Read a lock file as versions by package. Every line must be a pin, a hash or a comment."""
    versions = {}
    text = re.sub(r"^\s*#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE)
    for entry in text.replace("\\\n", "").splitlines():
        pin = re.fullmatch(
            r"([\w.-]+)==(\S+)( ; [^#]+?)?((?: +--hash=sha256:[0-9a-f]{64})+)", entry
        )
        assert pin, f"{name}: not a pin with hashes: {entry[:80]}"
        versions[canonicalize_name(pin[1])] = pin[2]
    return versions


@pytest.mark.parametrize("name", [RUN, *DEV, SPARK])
def test_lock_holds_hashed_pins_and_no_address(name: str) -> None:
    assert read_lock(name)
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert str(ROOT) not in text


def test_locks_satisfy_pyproject_and_stay_light() -> None:
    project, groups = PYPROJECT["project"], PYPROJECT["dependency-groups"]
    extras = project["optional-dependencies"]
    serve = [*project["dependencies"], *extras["serve"], *extras["store"], *extras["client"]]
    run = [*serve, *extras["browser"], *groups["editable"], *PYPROJECT["build-system"]["requires"]]
    used = [extras[name] for name in ("crowdkit", "excel", "jax", "parquet", "plots")]
    developing = [*groups["dev"], *(name for names in used for name in names)]
    known = {"browser", "client", "serve", "spark", "store"}
    assert set(extras) == known | {"crowdkit", "excel", "jax", "parquet", "plots"}
    assert set(groups["spark"]) <= set(extras["spark"])
    pins = {name: read_lock(name) for name in [RUN, *DEV, SPARK]}
    for name, requirements in [
        (RUN, run),
        (DEV[0], developing),
        (DEV[1], groups["no-deps"]),
        (SPARK, groups["spark"]),
    ]:
        for requirement in map(Requirement, requirements):
            if requirement.name == PYPROJECT["project"]["name"]:
                continue
            version = pins[name].get(canonicalize_name(requirement.name), "0")
            assert requirement.specifier.contains(version), (
                f"{name}: {requirement}. Run run.py lock."
            )
    names = [package for versions in pins.values() for package in versions]
    assert len(names) == len(set(names))  # an unfinished install of one touches no other
    assert not {"torch", "transformers"} & set(names)
    assert not {"mypy", "polars", "pyarrow", "pytest", "scikit-learn"} & set(pins[RUN])


def test_installed_version_is_the_one_in_pyproject() -> None:
    assert importlib.metadata.version("labelquorum") == PYPROJECT["project"]["version"]
