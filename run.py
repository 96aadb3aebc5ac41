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
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

# An older Python must parse this file to reach this sentence: no newer syntax anywhere in it.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"labelquorum needs Python 3.11 or newer. This is {sys.version.split()[0]}.")

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "installed-by-run"  # what is installed; a part is recorded after its last package
PYPROJECT = ROOT / "pyproject.toml"
C_FILES = sorted(ROOT.glob("src/labelquorum/**/*.[ch]"))  # compiled where there is a compiler
CI = "LABELQUORUM_CI"  # set where every test must run, those of Spark too


class Packages(NamedTuple):
    """Pinned packages. None is in two lock files, so a failed install leaves the others whole."""

    name: str
    purpose: str
    download_mb: int  # by pip, on Linux x86-64; measured when the pins change
    locks: list[Path]  # every package by version and hashes; no URL


LOCK = ROOT / "requirements.lock"
LOCK_DEV = ROOT / "requirements-dev.lock"
LOCK_NODEPS = ROOT / "requirements-nodeps.lock"  # installed without their dependencies
LOCK_SPARK = ROOT / "requirements-spark.lock"
RUN = Packages("run", "labelquorum, its service and the demo", 102, [LOCK])
DEV = Packages("dev", "the tests and checks", 328, [LOCK_DEV, LOCK_NODEPS])
SPARK = Packages("spark", "Spark", 456, [LOCK_SPARK])
PROJECT = "project"


class Command(NamedTuple):
    """What a command is for, and the programs of `.venv/bin` it runs, one after the other."""

    purpose: str
    steps: list[list[str]]
    at_root: bool = True  # False: stay in the folder the user is in
    extra: tuple[Packages, ...] = (DEV,)  # what it needs besides RUN
    options: dict[str, list[str]] | None = None  # ours, and what the program is given for each


COMMANDS = {
    "demo": Command(
        "Watch a simulated crowd in your browser; Ctrl-C ends it [--headless --output DIR].",
        [["python", "-m", "labelquorum", "demo"]],
        at_root=False,
        extra=(),
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
        "Check format, lint, types, imports and sizes. Changes no file.",
        [
            ["ruff", "format", "--check"],
            ["ruff", "check"],
            ["mypy"],
            ["lint-imports", "--no-logo"],
            ["pytest", "-q", "tests/test_size.py"],
        ],
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
        "Measure every accuracy target [--smoke] [--only PART …] [--report-only] [--jobs N].",
        [["python", "experiments/accuracy/measure.py"]],
    ),
    "label-studio": Command(
        "Run the service with a real Label Studio, which is installed for it, end to end.",
        [["python", "experiments/label_studio/check.py"]],
    ),
    "faults": Command(
        "Provoke every fault a stream must survive [--long] [--against REVISION].",
        [["python", "experiments/faults/measure.py"]],
    ),
    "python": Command("Run the environment's Python.", [["python"]], at_root=False),
    "spark": Command(
        "Run the environment's Python, with Spark. Needs Java 17.",
        [["python"]],
        at_root=False,
        extra=(DEV, SPARK),
    ),
}


def help_text() -> str:
    """List the commands."""
    purposes = {name: command.purpose for name, command in COMMANDS.items()}
    purposes["lock"] = "Pin the dependencies of pyproject.toml again [--upgrade]. Needs uv."
    lines = "\n".join(f"  {name:14}{purpose}" for name, purpose in purposes.items())
    run, dev, spark = (f"{part.download_mb} MB" for part in (RUN, DEV, SPARK))
    return f"""usage: python3 run.py COMMAND [ARGUMENTS]

{lines}

A command first downloads the pinned packages it needs into .venv, with uv when it
is on PATH, else with pip: {run} for the demo, {dev} more for the other
commands, {spark} more for Spark. Later commands start at once. When the pins or
the Python change, .venv is made again. To start over by hand, delete it.

New here? Try: python3 run.py demo"""


def say(text: str) -> None:
    """Report progress on standard error. Standard output is left to the commands."""
    print(text, file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    """Say what went wrong and stop."""
    say(text)
    sys.exit(1)


def wanted_stamp(extra: Sequence[Packages]) -> dict[str, str]:
    """Describe the wanted environment: a digest per part, in the order of installation."""
    place = [sys.implementation.cache_tag, sysconfig.get_platform(), str(ROOT)]
    return {
        RUN.name: _digest(RUN.locks, *place),
        PROJECT: _digest([PYPROJECT, *C_FILES]),
        **{part.name: _digest(part.locks) for part in extra},
    }


def _digest(files: Sequence[Path], *words: str) -> str:
    digest = hashlib.sha256()
    for part in (*(word.encode() for word in words), *(file.read_bytes() for file in files)):
        digest.update(part + b"\0")
    return digest.hexdigest()


def present_stamp() -> dict[str, str]:
    """Read what is installed. Empty when nothing is, or when its Python has gone away."""
    if not os.access(VENV / "bin" / "python", os.X_OK) or not STAMP.exists():
        return {}
    lines = STAMP.read_text().splitlines()
    return {name: digest for name, _, digest in (line.partition(" ") for line in lines)}


def write_stamp(present: dict[str, str]) -> None:
    """Record what is installed."""
    STAMP.write_text("".join(f"{name} {digest}\n" for name, digest in present.items()))


def is_stale(wanted: dict[str, str], present: dict[str, str]) -> bool:
    """Whether `.venv` must be made again: other pins, or an install that was not finished.

    Installing on top would leave packages that the lock files no longer name. Spark's two are
    replaced in place.
    """
    other = [name for name in wanted if present.get(name, wanted[name]) != wanted[name]]
    return RUN.name not in present or RUN.name in other or DEV.name in other


def ensure_environment(extra: Sequence[Packages] = ()) -> None:
    """Make `.venv` hold RUN, the project and `extra`. Return at once when it does.

    What is missing is added. What is there stays, also for commands that do not need it.
    """
    wanted = wanted_stamp(extra)
    if wanted.items() <= present_stamp().items():
        return
    with only_one():
        present = present_stamp()
        if wanted.items() <= present.items():  # another run.py made it while this one waited
            return
        began = time.monotonic()
        uv = shutil.which("uv")
        if is_stale(wanted, present):
            make_environment(uv)
            present = {}
        parts = {part.name: part for part in (RUN, *extra)}
        for name, digest in wanted.items():
            if present.get(name) == digest:
                continue
            if PROJECT in present:  # RUN can be used while, and even if, this part fails
                write_stamp({**present, name: "unfinished"})
            if name == PROJECT:
                install_project(uv)
            else:
                install_packages(uv, parts[name])
            present[name] = digest
        write_stamp(present)
        say(f"Ready after {time.monotonic() - began:.0f} seconds.")


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
    # The Python of an activated .venv is about to be deleted: use the one it was created with.
    python = getattr(sys, "_base_executable", sys.executable)
    options = ["--clear", "--without-pip"] if uv else ["--clear"]
    STAMP.unlink(missing_ok=True)
    install([python, "-m", "venv", *options, str(VENV)])


def install_packages(uv: str | None, part: Packages) -> None:
    """Install pinned packages, each checked against its hash."""
    say(
        f"Installing {part.purpose} with {'uv' if uv else 'pip'}: {count_pins(part)} packages, "
        f"a download of about {part.download_mb} MB…"
    )
    # The lock files name every package, so nothing is left to resolve. Spark comes as source
    # alone, and is built with the pinned tools; nothing else is built.
    build = "--no-build-isolation" if part is SPARK else "--only-binary=:all:"
    locks = [word for lock in part.locks for word in ("-r", str(lock))]
    install([*installer(uv), "--require-hashes", "--no-deps", build, *locks])


def count_pins(part: Packages) -> int:
    """Count the packages of its lock files."""
    return sum("==" in line for lock in part.locks for line in lock.read_text().splitlines())


def install_project(uv: str | None) -> None:
    """Install labelquorum itself, as a link to `src`, with the pinned build tool."""
    say("Installing labelquorum from src…")
    install([*installer(uv), "--quiet", "--no-deps", "--no-build-isolation", "-e", str(ROOT)])


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
    """Run one step of the installation. Its output is shown only when it fails."""
    terminal = sys.stderr.isatty()
    last_lines = deque[str](maxlen=20)
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, encoding="utf-8", errors="replace"
    ) as process:
        for line in process.stdout or ():
            last_lines.append(line)
            if terminal and line.startswith(("Collecting ", "Processing ", "Installing ")):
                sys.stderr.write(f"\r\033[K  {' '.join(line.split()[:2])[:70]}\r")
    if terminal:
        sys.stderr.write("\033[K")
    if process.returncode:
        sys.stderr.writelines(last_lines)
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
    """Write the lock files from `pyproject.toml`, for all systems and Pythons, without URLs."""
    import tomllib

    uv = shutil.which("uv")
    if not uv:
        fail("The pins are made by uv, which is not on PATH. Install it: pip install uv")
    os.chdir(ROOT)
    options = ["--universal", "--python-version=3.11", "--fork-strategy=fewest", "--quiet"]
    options += ["--generate-hashes", "--no-emit-index-url"]
    options += ["--custom-compile-command=python3 run.py lock"]
    wheels = "--only-binary=:all:"
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = [f"--extra={name}" for name in project["optional-dependencies"] if name != "spark"]
    run = [wheels, "--group=editable", "--extra=browser", "--extra=serve", PYPROJECT.name]
    everything = [wheels, "--group=editable", "--group=dev", *extras, PYPROJECT.name]

    def pin(output: Path, *what: str) -> None:
        code = subprocess.run(
            [uv, "pip", "compile", *options, *what, "-o", output.name], stdout=subprocess.DEVNULL
        ).returncode
        if code:
            sys.exit(code)

    # uv keeps the versions it finds in its output file, where it can. All packages are resolved
    # together; then RUN's are written to one file and the others to the second.
    LOCK_DEV.write_text(LOCK.read_text() + LOCK_DEV.read_text())
    pin(LOCK_DEV, *everything, *arguments)
    LOCK.write_text(LOCK_DEV.read_text())
    pin(LOCK, *run)
    names = [line.split("==")[0] for line in LOCK.read_text().splitlines() if "==" in line]
    pin(LOCK_DEV, *everything, *(f"--no-emit-package={name}" for name in names))
    pin(LOCK_NODEPS, wheels, "--group=no-deps", "--no-deps", *arguments)
    pin(LOCK_SPARK, "--group=spark", *arguments)
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
    ensure_environment((DEV, SPARK) if os.environ.get(CI) else command.extra)
    return run(command, rest)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        say("\nStopped.")
        sys.exit(130)
