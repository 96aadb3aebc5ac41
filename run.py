#!/usr/bin/env python3
"""Set up this project's environment when it is needed, then run one of its commands.

Needs nothing but Python 3.11 or newer. `python3 run.py --help` lists the commands. To add one, add
a line to `COMMANDS`.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

# The syntax of this file is old enough for an older Python to come as far as this sentence.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"labelquorum needs Python 3.11 or newer. This is {sys.version.split()[0]}.")

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "installed-by-run"  # what was installed; written last, so half an install has none
PYPROJECT = ROOT / "pyproject.toml"
LOCK = ROOT / "requirements.lock"
LOCK_NODEPS = ROOT / "requirements-nodeps.lock"  # packages that are taken without what they ask for
LOCK_SPARK = ROOT / "requirements-spark.lock"  # half a gigabyte: installed where it is wanted
CI = "LABELQUORUM_CI"  # set where every test must run, those of Spark too


class Command(NamedTuple):
    """What a command is for, and the programs of `.venv/bin` it runs, one after the other."""

    purpose: str
    steps: list[list[str]]
    at_root: bool = True  # False: stay in the folder the user is in
    with_spark: bool = False  # install Spark first
    options: dict[str, list[str]] | None = None  # ours, and what the program is given for each


COMMANDS = {
    "demo": Command(
        "Watch a simulated crowd in your browser; Ctrl-C ends it [--headless --output DIR].",
        [["python", "-m", "labelquorum", "demo"]],
        at_root=False,
    ),
    "test": Command(
        "Run the quick tests, or every test [--all]. Arguments go to pytest: run.py test -k x",
        [["python", "-m", "pytest", "-n", "3", "--dist", "worksteal"]],
        options={"--all": ["-m", ""]},
    ),
    "coverage": Command(
        "Run the quick tests, then every test, and compare the lines of src they cover.",
        [["python", "tests/coverage_of_quick.py"]],
    ),
    "check": Command(
        "Check format, lint, types and imports. Changes no file.",
        [["ruff", "format", "--check"], ["ruff", "check"], ["mypy"], ["lint-imports", "--no-logo"]],
    ),
    "fix": Command(
        "Correct the format, and the lint that can be corrected by machine.",
        [["ruff", "check", "--fix"], ["ruff", "format"]],
    ),
    "reproduce": Command(
        "Measure the paper's tables and figures again [--smoke] [--seeds N] [--report-only].",
        [["python", "experiments/www2021/reproduce.py"]],
    ),
    "accuracy": Command(
        "Measure every target of accuracy [--smoke] [--only PART …] [--report-only] [--jobs N].",
        [["python", "experiments/accuracy/measure.py"]],
    ),
    "label-studio": Command(
        "Run the service with a real Label Studio, which is installed for it, end to end.",
        [["python", "experiments/label_studio/check.py"]],
    ),
    "faults": Command(
        "Provoke every fault a stream must survive [--long] [--report-only].",
        [["python", "experiments/faults/measure.py"]],
    ),
    "python": Command("Run the environment's Python.", [["python"]], at_root=False),
    "spark": Command(
        "Run the environment's Python, with Spark, which is installed for it. Needs Java 17.",
        [["python"]],
        at_root=False,
        with_spark=True,
    ),
}


def help_text() -> str:
    """List the commands."""
    purposes = {name: command.purpose for name, command in COMMANDS.items()}
    purposes["lock"] = "Pin the dependencies of pyproject.toml again [--upgrade]. Needs uv."
    lines = "\n".join(f"  {name:14}{purpose}" for name, purpose in purposes.items())
    return f"""usage: python3 run.py COMMAND [ARGUMENTS]

{lines}

The first command installs the pinned packages into .venv, with uv when it is on
PATH, else with pip. That takes a minute; later commands start at once. When the
pins or the Python change, .venv is made anew. To start over by hand, delete it.

New here? Try: python3 run.py demo"""


def say(text: str) -> None:
    """Tell the user what is going on. Standard output is left to the commands."""
    print(text, file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    """Say what went wrong and stop."""
    say(text)
    sys.exit(1)


def wanted_stamp(with_spark: bool = False) -> list[str]:
    """Describe the environment that is wanted: its packages, the project, and perhaps Spark."""
    packages = hashlib.sha256()
    for part in (sys.implementation.cache_tag, sysconfig.get_platform(), str(ROOT)):
        packages.update(part.encode() + b"\0")
    for file in (LOCK, LOCK_NODEPS):
        packages.update(file.read_bytes() + b"\0")
    wanted = [f"packages {packages.hexdigest()}", f"project {_digest(PYPROJECT)}"]
    return [*wanted, f"spark {_digest(LOCK_SPARK)}"] if with_spark else wanted


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def present_stamp() -> list[str]:
    """Read what was installed. Empty when nothing was, or when its Python has gone away."""
    if not os.access(VENV / "bin" / "python", os.X_OK):
        return []
    return STAMP.read_text().splitlines() if STAMP.exists() else []


def ensure_environment(with_spark: bool = False) -> None:
    """Make `.venv` hold what the lock files say. Return at once when it does.

    Spark that is there stays there, also for commands that do not ask for it.
    """
    if set(wanted_stamp(with_spark)) <= set(present_stamp()):
        return
    with only_one():
        wanted, present = wanted_stamp(with_spark), present_stamp()
        if set(wanted) <= set(present):  # another run.py made it while this one waited
            return
        uv = shutil.which("uv")
        packages, project, *spark = wanted
        if packages not in present:
            make_environment(uv)
            install_packages(uv)
            present = []
        if project not in present:
            install_project(uv)
        if not set(spark) <= set(present):
            install_spark(uv)
        kept = [line for line in present if line.startswith("spark ")]
        STAMP.write_text("\n".join([packages, project, *(spark or kept)]) + "\n")
        say("Ready.")


@contextmanager
def only_one() -> Iterator[None]:
    """Wait until no other run.py of this checkout is installing."""
    import fcntl

    with open(__file__) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another run.py that is installing…")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_environment(uv: str | None) -> None:
    """Make an empty `.venv`, in place of one that is old, foreign or half made."""
    say(f"Making .venv with Python {sys.version.split()[0]}…")
    missing = [name for name in ("venv", "ensurepip") if not importlib.util.find_spec(name)]
    if "venv" in missing or (missing and not uv):
        fail(
            f"This Python has no {missing[0]} module, so it cannot make an environment. Install it "
            "(on Debian and Ubuntu: apt install python3-venv), or install uv, and try again."
        )
    # The Python of an activated .venv is about to be deleted: use the one it was made from.
    python = getattr(sys, "_base_executable", sys.executable)
    options = ["--clear", "--without-pip"] if uv else ["--clear"]
    STAMP.unlink(missing_ok=True)
    install([python, "-m", "venv", *options, str(VENV)])


def install_packages(uv: str | None) -> None:
    """Install the pinned packages, each checked against its hash."""
    say(f"Installing the pinned packages with {'uv' if uv else 'pip'}…")
    # The lock files name every package, so nothing is left to resolve. Nothing is compiled either.
    options = ["--require-hashes", "--no-deps", "--only-binary=:all:"]
    install([*installer(uv), *options, "-r", str(LOCK), "-r", str(LOCK_NODEPS)])


def install_project(uv: str | None) -> None:
    """Install labelquorum itself, as a link to `src`, with the pinned build tool."""
    say("Installing labelquorum from src…")
    install([*installer(uv), "--quiet", "--no-deps", "--no-build-isolation", "-e", str(ROOT)])


def install_spark(uv: str | None) -> None:
    """Install Spark, which comes as source alone, with the pinned build tool."""
    say("Installing Spark, half a gigabyte…")
    options = ["--require-hashes", "--no-deps", "--no-build-isolation"]
    install([*installer(uv), *options, "-r", str(LOCK_SPARK)])


def installer(uv: str | None) -> list[str]:
    """Give the start of an install command for `.venv`."""
    python = str(VENV / "bin" / "python")
    if uv:
        return [uv, "pip", "install", "--python", python]
    if not (VENV / "bin" / "pip").exists():  # .venv was made by uv, which has gone away
        install([python, "-m", "ensurepip"])
    # Python compiles what it imports; compiling everything here would double the time.
    return [python, "-m", "pip", "install", "--no-compile", "--disable-pip-version-check"]


def install(arguments: list[str]) -> None:
    """Run one step of the installation. Its errors are shown; its talk only when it fails."""
    terminal = sys.stderr.isatty()
    talk = deque[str](maxlen=20)
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, encoding="utf-8", errors="replace"
    ) as process:
        for line in process.stdout or ():
            talk.append(line)
            if terminal and line.startswith(("Collecting ", "Processing ", "Installing ")):
                sys.stderr.write(f"\r\033[K  {' '.join(line.split()[:2])[:70]}\r")
    if terminal:
        sys.stderr.write("\033[K")
    if process.returncode:
        sys.stderr.writelines(talk)
        fail("The installation stopped. Once the cause above is gone, run the same command again.")


def run(command: Command, arguments: list[str]) -> int:
    """Run the steps of a command. A command of one step takes the place of this process."""
    if command.at_root:
        os.chdir(ROOT)
    os.environ["PATH"] = os.pathsep.join([str(VENV / "bin"), os.environ.get("PATH", os.defpath)])
    os.environ["VIRTUAL_ENV"] = str(VENV)
    # Without bytecode each process compiles its imports again: 9 seconds instead of 2 to import
    # everything. It is kept in .venv, so that a user who wants none in the checkout has none there.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(VENV / "bytecode"))
    options = command.options or {}
    arguments = [part for word in arguments for part in options.get(word, [word])]
    programs = [[str(VENV / "bin" / step[0]), *step[1:], *arguments] for step in command.steps]
    if len(programs) == 1:
        os.execv(programs[0][0], programs[0])
    failed = []
    for step, program in zip(command.steps, programs, strict=True):
        say(f"— {' '.join(step)}")
        if subprocess.run(program).returncode:
            failed.append(" ".join(step))
    say(f"Failed: {', '.join(failed)}." if failed else f"All {len(programs)} passed.")
    return 1 if failed else 0


def lock(arguments: list[str]) -> int:
    """Write the lock files from `pyproject.toml`, for all systems and Pythons, with no address."""
    import tomllib

    uv = shutil.which("uv")
    if not uv:
        fail("The pins are made by uv, which is not on PATH. Install it: pip install uv")
    os.chdir(ROOT)
    options = ["--universal", "--python-version=3.11", "--fork-strategy=fewest", "--quiet"]
    options += ["--generate-hashes", "--no-emit-index-url"]
    options += ["--custom-compile-command=python3 run.py lock", *arguments]
    wheels = "--only-binary=:all:"
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = [f"--extra={name}" for name in project["optional-dependencies"] if name != "spark"]
    everything = [wheels, "--group=dev", *extras, PYPROJECT.name, "-o", LOCK.name]
    without_dependencies = [wheels, "--group=no-deps", "--no-deps", "-o", LOCK_NODEPS.name]
    spark = ["--group=spark", "-o", LOCK_SPARK.name]
    for part in (everything, without_dependencies, spark):
        code = subprocess.run([uv, "pip", "compile", *options, *part], stdout=subprocess.DEVNULL)
        if code.returncode:
            return code.returncode
    return 0


def main(arguments: list[str]) -> int:
    """Run the command the user named."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0 if arguments else 2
    name, *rest = arguments
    if name == "lock":
        return lock(rest)
    if name not in COMMANDS:
        say(f"run.py has no command {name!r}. It has: {', '.join([*COMMANDS, 'lock'])}.")
        return 2
    if os.name != "posix":
        fail("run.py works on Linux and macOS. On Windows, use the Windows Subsystem for Linux.")
    command = COMMANDS[name]
    ensure_environment(command.with_spark or bool(os.environ.get(CI)))
    return run(command, rest)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        say("\nStopped.")
        sys.exit(130)
