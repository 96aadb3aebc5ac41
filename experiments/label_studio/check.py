"""The service and a real Label Studio, end to end: annotators label, and the consensus comes out.

    python3 run.py label-studio

installs Label Studio into an environment of its own (`.label-studio`, a gigabyte), starts it and
`labelquorum serve` on this machine with nothing in either, connects them by a webhook, and has four
people annotate by Label Studio's API. Some correct themselves, delete or skip. Their mistakes are
such that the consensus is right only if every correction and deletion was honoured. Then the hook
is switched off for a while, and an export is sent after it. What was seen is written to
`results/measured.json`, which docs/label-studio.md shows.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
from studio import Person, Studio, choice, say

import labelquorum as lq

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COMMAND = "python3 run.py label-studio"
RESULT = HERE / "results" / "measured.json"
BIRDS = ("owl", "wren")
CONFIG = """<View><Text name="text" value="$text"/>
<Choices name="bird" toName="text" choice="single"><Choice value="owl"/><Choice value="wren"/>
</Choices></View>"""
N_TASKS, N_MISSED = 24, 2
CORRECTED, DELETED, SKIPPED = (0, 1, 2), 3, 4  # tasks
RULES = {"labels_per_item": 3, "max_wait": None, "chunk_items": 8, "max_chunk_wait": 0.2}
SECONDS = 60


class Run:
    """What was done so far, and what of it was seen."""

    def __init__(self, client: lq.Client, owner: Person, tasks: list[int]) -> None:
        self.client, self.owner, self.tasks = client, owner, tasks
        self.done: Counter[str] = Counter()
        self.seen: dict[str, bool] = {}

    def truth(self, number: int) -> str:
        return BIRDS[number % 2]

    def label(self, who: Person, number: int, right: bool = True) -> int:
        """Have a person label a task; give the annotation's number."""
        self.done["created"] += 1
        return who.annotate(self.tasks[number], choice(BIRDS[(number + (not right)) % 2]))

    def check(self, what: str, holds: bool) -> None:
        self.seen[what] = holds
        say(f"{'held  ' if holds else 'FAILED'}  {what}")

    def answers(self) -> dict[int, str]:
        return dict(self.client.items("birds")["label"])

    def is_right(self, numbers: range) -> bool:
        """Tell whether these tasks have the right answer, each of three labels."""
        found = self.client.items("birds")
        return all(
            self.tasks[n] in found.index
            and found.loc[self.tasks[n], "label"] == self.truth(n)
            and found.loc[self.tasks[n], "labels"] == 3
            for n in numbers
        )


def annotate(run: Run, ann: Person, bob: Person, cleo: Person, dan: Person) -> None:
    """Four people label, and change their minds, until every task has three labels."""
    of_ann = [run.label(ann, n, right=n != DELETED) for n in range(N_TASKS)]
    of_bob = [run.label(bob, n, right=n not in CORRECTED) for n in range(N_TASKS)]
    run.check("no task with two labels is answered", not run.answers())
    for n in CORRECTED:
        bob.correct(of_bob[n], choice(run.truth(n)))
        run.done["updated"] += 1
    ann.delete(of_ann[DELETED])
    run.done["deleted"] += 1
    cleo.annotate(run.tasks[SKIPPED], [], was_cancelled=True)
    run.done["skipped"] += 1
    for n in range(N_TASKS):
        if n != SKIPPED:
            run.label(cleo, n, right=n not in (*CORRECTED, DELETED))
    waiting = run.client.items("birds", undecided=True)
    missing = {run.tasks[DELETED], run.tasks[SKIPPED]}
    until(lambda: len(run.answers()) == N_TASKS - 2)
    waiting = run.client.items("birds", undecided=True)
    run.check("a deleted and a skipped annotation count for nothing", set(waiting.index) == missing)
    for n in (DELETED, SKIPPED):
        run.label(dan, n)
    until(lambda: len(run.answers()) == N_TASKS)
    run.check("every consensus is right, by three labels each", run.is_right(range(N_TASKS)))
    before = run.answers()
    ann.correct(of_ann[5], choice(BIRDS[0]))
    run.done["updated"] += 1
    late = run.client.stream("birds")["counts"]["late_labels"]
    run.check("a correction after the answer is late, and reported as late", late == 1)
    run.check("and changes no answer", run.answers() == before)


def miss(run: Run, project: int, url: str, key: str, people: list[Person]) -> None:
    """Switch the hook off while some annotate, and send an export after it."""
    [hook] = run.owner.ask("GET", f"/api/webhooks/?project={project}")
    run.owner.ask("PATCH", f"/api/webhooks/{hook['id']}/", {"is_active": False})
    for n in range(N_TASKS, N_TASKS + N_MISSED):
        for who in people:
            run.label(who, n)
    run.done["missed"] = N_MISSED * len(people)
    export = run.owner.ask("GET", f"/api/projects/{project}/export?exportType=JSON")
    headers = {"Authorization": f"Bearer {key}"}
    for expected in (run.done["missed"], 0):
        reply = httpx.post(url, json=export, headers=headers, trust_env=False, timeout=SECONDS)
        what = "an export brings what was missed" if expected else "and once only"
        run.check(what, reply.json().get("accepted") == expected)
    until(lambda: len(run.answers()) == N_TASKS + N_MISSED)
    run.check("the missed tasks are answered", run.is_right(range(N_TASKS, N_TASKS + N_MISSED)))


@contextmanager
def service(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Start `labelquorum serve`: its address, its first key, its log."""
    log = folder / "labelquorum.log"
    program = [sys.executable, "-m", "labelquorum", "serve", str(folder / "store"), "--port", "0"]
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*program, "--log-requests"], stdout=subprocess.PIPE, stderr=written, text=True
        )
    try:
        assert process.stdout is not None
        key = process.stdout.readline().strip()
        until(lambda: bool(lines(log, "serving")) or process.poll() is not None)
        [address] = lines(log, "serving")[0]["at_address"]
        yield f"http://{address}", key, log
    finally:
        process.terminate()
        process.wait(30)


def lines(log: Path, event: str) -> list[dict[str, Any]]:
    """What the service wrote down of one kind."""
    found = [line for line in log.read_text(encoding="utf-8").splitlines() if line[:1] == "{"]
    return [shown for line in found if (shown := json.loads(line))["event"] == event]


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, at most SECONDS."""
    deadline = time.monotonic() + SECONDS
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--environment", type=Path, default=ROOT / ".label-studio")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Studio.running(options.environment, Path(folder)) as studio,
        service(Path(folder)) as (address, first_key, log),
        lq.Client(address, first_key) as client,
    ):
        client.create("birds", classes=list(BIRDS), rules=RULES)
        key = client.make_key("Label Studio", "write", stream="birds")
        url = f"{address}/v1/streams/birds/hooks/label-studio?control=bird"
        owner = studio.owner
        texts = [{"text": f"recording {n}"} for n in range(N_TASKS + N_MISSED)]
        project = owner.project(CONFIG, texts)
        owner.hook(project, url, key)
        run = Run(client, owner, owner.tasks(project))
        people = [studio.join(name) for name in ("ann", "bob", "cleo", "dan")]
        annotate(run, *people)
        hooks = [one for one in lines(log, "request") if one["path"].endswith("label-studio")]
        run.check("no event was refused", not lines(log, "refused") and not lines(log, "failed"))
        miss(run, project, url, key, people[:3])
        shown = {
            "command": COMMAND,
            "label_studio": studio.version,
            "labelquorum": version("labelquorum"),
            "python": platform.python_version(),
            "annotations": dict(run.done),
            "events": len(hooks),
            "slowest_event_ms": round(1000 * max(one["seconds"] for one in hooks)),
            "answered": len(run.answers()),
            "checks": run.seen,
        }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
    failed = [what for what, held in run.seen.items() if not held]
    sys.exit(f"Failed: {'; '.join(failed)}." if failed else 0)


if __name__ == "__main__":
    main()
