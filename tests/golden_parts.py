"""What the goldens record; `goldens.py` compares it.

Every part is a dict of goldens, plain JSON. It follows from the code alone: the labels come from
checksums instead of a random generator, and the time from a clock that is set.
"""

import asyncio
import hashlib
import io
import json
import math
import sqlite3
import tempfile
from collections.abc import Collection
from contextlib import chdir
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any
from zlib import crc32

import httpx
import numpy as np
import pandas as pd
import sqlalchemy as sa
from postgresql import empty_databases, running_server
from pyarrow import parquet
from safetensors.numpy import load as parse_arrays
from typer.testing import CliRunner

import labelquorum as lq
from labelquorum.cli import app as command_line

# ── adapter: all that depends on where modules are; a move changes these lines and no others ──
from labelquorum.learn.estimators import method_names
from labelquorum.server.app import create_app
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store


def asgi_app(store: Store) -> Any:
    """Return the service of a store, which need not learn."""
    return create_app(store, None)


# ── end of the adapter ───────────────────────────────────────────────────────────────────────

METHODS = (*method_names(), "windowed:bila", "windowed:dawid_skene", "refit:bila", "refit:mace")
COMPILED = tuple(name for name in METHODS if "bila" in name or "laa" in name)  # seconds of XLA each
TWO_CLASSES = ("sbic",)  # methods that know no more
FORMATS = ("csv", "jsonl", "parquet")
MAX_LINES = 30  # of a longer text only the first are recorded, and a digest
END = 1300.0  # the time at which the recorded streams end, in seconds

# ── a crowd ──────────────────────────────────────────────────────────────────────────────────

# How many of 100 labels are right. Ids that need care in CSV, and two that differ in type alone.
SKILLS = {"ann": 85, "bob": 70, "=cy": 60, "dee, jr": 45, 'eve "e"': 75, "Faÿ": 65, 7: 55, "7": 80}
WORKERS = list(SKILLS)
TASKS = [*(f"t{n:02}" for n in range(20)), "=1+1", "a,b", 'say "hi"', "日本", 3, "3", 2.5]
CLASSES = ["cat", "dog", "-emu"]


def labels(tasks: list[Any], workers: list[Any], classes: list[Any]) -> pd.DataFrame:
    """Return what these workers say about these tasks; one label in five is missing."""
    rows = []
    for task, worker in product(tasks, workers):
        roll, truth = crc32(f"{worker!r} {task!r}".encode()), crc32(f"{task!r}".encode())
        if roll % 5:
            label = truth if roll // 5 % 100 < SKILLS[worker] else truth + 1 + roll // 1000
            rows.append(
                (task, worker, classes[label % len(classes)], roll % 4 / 4 + 0.25, roll % 97)
            )
    table = pd.DataFrame(rows, columns=["task", "worker", "label", "weight", "timestamp"])
    return table.astype({"task": object, "worker": object})


# ── the library ──────────────────────────────────────────────────────────────────────────────


def models(methods: Collection[str] = METHODS) -> dict[str, Any]:
    """Return what `save` writes after two chunks, for each method and preset.

    Between the chunks a worker is forgotten. The second chunk brings a new worker, a new class, and
    more labels for tasks of the first.
    """
    found = {}
    for method in methods:
        model = lq.estimator(method)
        model.partial_fit(labels(TASKS[:12], WORKERS[:5], CLASSES[:2]))
        model.forget(WORKERS[2])
        classes = CLASSES[:2] if method in TWO_CLASSES else CLASSES
        model.partial_fit(labels(TASKS[10:22], WORKERS[1:6], classes))
        found[method] = saved(model) | {"probas_": numbers(model.probas_)}
    return found


def saved(model: Any) -> dict[str, Any]:
    """Return what `save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.lq")
        return model_file(Path(folder, "model.lq").read_bytes())


def model_file(data: bytes) -> dict[str, Any]:
    """Return the digest of a saved model, and its content in a form that can be compared."""
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    header = json.loads(metadata["labelquorum"].partition(" ")[2])
    given = {name: value for name, value in header["settings"].items() if value is not None}
    arrays = {name: numbers(array) for name, array in sorted(parse_arrays(data).items())}
    return {"sha256": sha256(data), "header": header | {"settings": given}, **arrays}


def numbers(array: Any) -> Any:
    """Return type, shape and digest of an array; for floats how many are finite, and averages.

    These are the mean, the mean magnitude, and a mean whose weights depend on the place, so that
    a change of order shows.
    """
    values = np.asarray(array)
    kind = f"{values.dtype} {'×'.join(map(str, values.shape))}"
    if values.dtype.kind != "f":
        return f"{kind} {sha256(values.tobytes())[:16]}"
    finite = [(n, x) for n, x in enumerate(values.ravel().tolist()) if math.isfinite(x)]
    sums = (
        math.fsum(x for _, x in finite),
        math.fsum(abs(x) for _, x in finite),
        math.fsum(x * math.cos(n) for n, x in finite),
    )
    return [kind, len(finite), *(float(f"{one / max(1, len(finite)):.9g}") for one in sums)]


def sha256(data: bytes) -> str:
    """Return a digest in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


# ── the store ────────────────────────────────────────────────────────────────────────────────


@cache
def on_sqlite() -> dict[str, Any]:
    """Return the recorded streams in a SQLite file."""
    with tempfile.TemporaryDirectory() as folder:
        return streams(folder)


def on_postgresql(database: str | None = None) -> dict[str, Any]:
    """Return the recorded streams in PostgreSQL, and what is not as in SQLite.

    Parameters
    ----------
    database
        The URL of an empty database; one on a new server unless given.
    """
    if database is None:
        with running_server() as server, empty_databases(server) as make:
            return on_postgresql(make())
    found, expected = streams(database), on_sqlite()
    unlike = [name for name in expected if name != "schema" and expected[name] != found[name]]
    hashes = {stream: found[stream]["sha256"] for stream in ("birds", "pages")}
    return {"state": {"sha256": hashes}, "schema": found["schema"], "unlike SQLite": unlike}


def streams(where: str) -> dict[str, Any]:
    """Record two streams in an empty store; return their state, the schema and all exports."""
    moment = 1000.0
    with Store.open(where, lambda: moment) as store:
        rules = Rules(3, max_wait=60, chunk_items=6, max_chunk_wait=30, retention="keep", grace=150)
        birds = store.create("birds", rules=rules)
        first = labels(TASKS[:8], WORKERS[:5], CLASSES[:2])
        results: list[Any] = [birds.accept(first, "batch 1", source="files", position="a.csv:8")]
        moment = 1001.0
        results += [birds.accept(first, "batch 1"), birds.gold({"t01": "cat", "t30": "dog"}, "g")]
        moment = 1002.5
        results += [birds.retract("t07", "bob"), birds.settle()]
        moment = 1010.0  # late labels, corrections, a new worker and class, a truth
        results += [birds.accept(labels(TASKS[4:12], WORKERS[1:6], CLASSES), "batch 2")]
        results += [birds.gold({"t02": "dog"}), birds.cut(), birds.settle()]
        moment = 1200.0
        results += [birds.forget("bob"), birds.change(grace=5000.0, chunk_items=5).as_dict()]
        results += [birds.accept(labels(TASKS[15:], WORKERS[3:], CLASSES)), birds.settle()]
        moment = END  # a truth and labels for closed tasks; tasks that wait
        results += [birds.gold({"t00": "dog"}), birds.accept(labels(TASKS[:3], ["Faÿ"], CLASSES))]
        results += [birds.accept(labels(["t40", "t41"], WORKERS[3:], CLASSES))]

        rules = Rules(2, max_wait=None, chunk_items=8, max_chunk_wait=None)
        rules = rules.changed(retention="discard", grace=0.0)
        settings: Any = {"preset": "recipe", "classes": [0, 1], "repeats": "all", "seed": 3}
        pages = store.create("pages", rules=rules, **settings)
        for tasks in (TASKS[:9], TASKS[5:14]):
            rows = labels(tasks, WORKERS[:4], [0, 1]).drop(columns="weight")
            results += [pages.accept(rows), pages.settle(flush=True)]
        states = {
            stream.name: {
                "sha256": stream.state_hash(),
                "count": stream.count(),
                "events": [[one["at"], one["kind"], one["body"]] for one in stream.events()],
                "model": saved(stream.estimator()),
            }
            for stream in (birds, pages)
        }
    return {"results": results, **states, "schema": schema(where), **exports(where)}


def schema(where: str) -> dict[str, str]:
    """Return tables, columns and indexes as the database reports them."""
    if "://" in where:
        columns = "column_name || ' ' || data_type || ' ' || is_nullable"
        query = (
            f"SELECT table_name, string_agg({columns}, ', ' ORDER BY ordinal_position) "
            "FROM information_schema.columns WHERE table_schema = 'public' GROUP BY 1 "
            "UNION SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
        )
        engine = sa.create_engine(sa.make_url(where).set(drivername="postgresql+psycopg"))
        with engine.connect() as connection:
            rows = [tuple(row) for row in connection.execute(sa.text(query))]
        engine.dispose()
    else:
        [file] = Path(where).glob("*.db")
        database = sqlite3.connect(file)
        rows = database.execute("SELECT name, sql FROM sqlite_master WHERE sql <> ''").fetchall()
        database.close()
    return {name: " ".join(text.split()) for name, text in sorted(rows)}


# ── files that are written ───────────────────────────────────────────────────────────────────


def exports(where: str) -> dict[str, Any]:
    """Return what the command line and the service write of the recorded streams."""
    found: dict[str, Any] = {}
    kinds = ("answers", "workers", "chunks", "labels")
    wanted = [*product(["birds"], kinds, FORMATS), *product(["pages"], kinds, ("csv", "parquet"))]
    for stream, what, suffix in wanted:
        found |= output("export", stream, "--what", what, "-o", f"x.{suffix}", store=where)
    found |= output("export", "birds", "--raw", "-o", "x.csv", store=where)
    found |= output("export", "birds", store=where)
    for suffix in FORMATS:
        found |= output("refine", "birds", "-o", f"x.{suffix}", store=where)
    birds = "/v1/streams/birds"
    paths = {f"{birds}/model": "lq", f"{birds}/ask?limit=4&format=csv": "csv"}
    for what, suffix in product(("items", "workers"), FORMATS):
        paths[f"{birds}/export?what={what}&format={suffix}"] = suffix
    for path, data in get(where, *paths).items():
        found[f"GET {path}"] = content(data, paths[path])
    rows = labels(TASKS[14:18], WORKERS[:4], [0, 1]).to_json(orient="records", lines=True)
    return found | output("run", "pages", "--flush", "--print", store=where, stdin=rows)


def files() -> dict[str, Any]:
    """Return what commands write that need no store."""
    found: dict[str, Any] = {}
    rows = labels(TASKS, WORKERS, CLASSES).to_csv(index=False)
    for method, suffix in (("majority_vote", "csv"), ("dawid_skene", "jsonl")):  # nothing compiles
        by = ("--method", method)
        found |= output("aggregate", "-", *by, "-o", f"x.{suffix}", "--model", "x.lq", stdin=rows)
        found |= output("stream", *by, "--chunk-items", "9", "--format-out", suffix, stdin=rows)
    crowd = ("--items", "9", "--workers", "6", "--spammers", "0.25", "--arrival", "trickle")
    written = ("-o", "x.csv", "--truth", "truth.jsonl", "--roles", "roles.csv")
    found |= output("simulate", *crowd, *written)
    with tempfile.TemporaryDirectory() as folder:
        run("aggregate", "-", "--method", "one_coin", "--model", f"{folder}/x.lq", stdin=rows)
        report = run("workers", f"{folder}/x.lq", "--json")
    return found | {"labelquorum workers x.lq --json": content(report)}


def output(*arguments: str, store: str = "", stdin: str | None = None) -> dict[str, Any]:
    """Return the files that a command writes, or else its standard output."""
    command = " ".join(["labelquorum", *arguments])
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        printed = run(*arguments, *(["--store", store] if store else []), stdin=stdin)
        written = {path.name: path.read_bytes() for path in sorted(Path().iterdir())}
    found = {f"{command} → {name}": content(data, name) for name, data in written.items()}
    return found or {command: content(printed)}


def run(*arguments: str, stdin: str | None = None) -> bytes:
    """Run a command; return its standard output."""
    done = CliRunner().invoke(command_line, arguments, input=stdin, catch_exceptions=False)
    assert done.exit_code == 0, f"labelquorum {' '.join(arguments)}: {done.output}"
    return done.stdout_bytes


def get(where: str, *paths: str) -> dict[str, bytes]:
    """Return the bodies that the service of a store answers with, without a network."""
    key = run("keys", "make", where, "--name", "goldens", "--scope", "admin").decode().strip()

    async def ask(app: Any) -> dict[str, bytes]:
        transport, headers = httpx.ASGITransport(app), {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(transport=transport, headers=headers) as client:
            found = {path: await client.get(f"http://localhost{path}") for path in paths}
        return {path: response.raise_for_status().content for path, response in found.items()}

    with Store.open(where, lambda: END) as store:
        return asyncio.run(ask(asgi_app(store)))


def content(data: bytes, name: str = "") -> Any:
    """Return the lines of a text, the columns of a Parquet file, or the arrays of a model."""
    if name.endswith("lq"):
        return model_file(data)
    if name.endswith("parquet"):
        table = parquet.read_table(io.BytesIO(data))
        return {
            f"{field.name}: {field.type}": numbers(np.array(column.to_pylist(), float))
            if str(field.type) == "double"
            else sha256(json.dumps(column.to_pylist()).encode())[:16]
            for field, column in zip(table.schema, table.columns, strict=True)
        }
    lines = data.decode().split("\n")
    if len(lines) <= MAX_LINES:
        return lines
    return {"sha256": sha256(data), "lines": len(lines), "first": lines[:MAX_LINES]}


# ── commands and routes, without descriptions ────────────────────────────────────────────────
