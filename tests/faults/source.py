"""A source that can be read again, a stream driven from it, and what must hold at the end.

Nothing here starts JAX: that is the learner's.
"""

from hashlib import sha256
from random import Random

import sqlalchemy as sa

from labelquorum.ingest.labels import LabelTable
from labelquorum.store.batch import decode
from labelquorum.store.database import schema
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

CLASSES = ["a", "b", "c"]
JUDGES = ("w0", "w1", "w2", "w3")
RULES = Rules(
    labels_per_item=3,
    chunk_items=4,
    max_wait=None,
    max_chunk_wait=None,
    retention="discard",
    grace=1e9,
)


def labels_of(n_items, seed=5, n_workers=7, labels_per_item=4):
    """Labels of a small crowd in random order, so that some come late: (task, worker, label)."""
    return crowd_of(n_items, seed, n_workers, labels_per_item)[0]


def crowd_of(n_items, seed=5, n_workers=7, labels_per_item=4):
    """The labels, and the true ones by task."""
    rng = Random(seed)
    rows, truths = [], {}
    for item in range(n_items):
        truth = truths[f"t{item}"] = rng.choice(CLASSES)
        for worker in rng.sample(range(n_workers), labels_per_item):
            right = rng.random() < 0.6 + 0.05 * worker
            rows.append((f"t{item}", f"w{worker}", truth if right else rng.choice(CLASSES)))
    rng.shuffle(rows)
    return rows, truths


def batches_of(rows, size=8):
    """The labels as they are sent."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def table_of(rows):
    """Rows as a table a stream accepts; w0 to w3 are judges, with attributes and a score each."""
    judges = [int(worker[1:]) if worker in JUDGES else None for _, worker, _ in rows]
    return LabelTable(
        *(list(column) for column in zip(*rows, strict=True)),
        source="test",
        scores=[
            None if k is None else k + len(task) / 8
            for k, (task, *_) in zip(judges, rows, strict=True)
        ],
        worker_kinds=[None if k is None else "llm" for k in judges],
        models=[None if k is None else f"m{k // 2}" for k in judges],
        orders=[None if k is None else "AB" if k % 2 else "BA" for k in judges],
    )


def opened(store, rules=RULES):
    """The stream of a store, made where there is none."""
    if "s" in store.streams():
        return store.stream("s")
    return store.create("s", rules=rules, classes=CLASSES)


def drive(store, todo, acknowledged=lambda key, receipt: None, truths=None):
    """Read the source from where it was left, to its end, and settle after every table.

    With truths, those of each third task come before the table, of tasks of the table before: some
    of them wait, others were answered.
    """
    stream = opened(store)
    stream.settle()
    for number in range(int(stream.position("source") or 0), len(todo)):
        key, place = f"batch {number}", str(number + 1)
        if truths and number:
            tasks = sorted({task for task, *_ in todo[number - 1] if int(task[1:]) % 3 == 0})
            if tasks:
                stream.gold({task: truths[task] for task in tasks}, key=f"gold {number}")
                stream.settle()
        receipt = stream.accept(table_of(todo[number]), key, source="source", position=place)
        acknowledged(key, receipt)
        stream.settle()
    stream.settle(flush=True)
    return stream


def ended(stream):
    """What is known at the end: labels in chunks, late, still held, and the state."""
    count = stream.count()
    in_chunks = sum(chunk["n_labels"] for chunk in stream.chunks())
    return in_chunks, count["late_labels"], count["held_labels"], stream.state_hash()


def learned_from_gold(stream):
    """Digests of the answers, of the gold a model keeps, and of what it learned from it."""
    arrays = stream.snapshot().arrays
    of_model = {
        kind: sha256(
            repr([(n, a.tolist()) for n, a in sorted(arrays.items()) if f"/{kind}/" in n]).encode()
        ).hexdigest()
        for kind in ("gold", "stack")
    }
    answers = [(one.item_id, one.label, one.confidence) for one in stream.answers()]
    return {"answers": sha256(repr(answers).encode()).hexdigest(), **of_model} | {
        "tasks": len(arrays.get("state/gold/key", ())),
        "fitted": len(arrays.get("state/stack/tasks", ())),
    }


def fingerprint(store):
    """SHA-256 of every row of every table."""
    digest = sha256()
    with store.read() as connection:
        for table in schema.metadata.sorted_tables:
            for row in connection.execute(sa.select(table).order_by(*table.primary_key)):
                digest.update(repr((table.name, *row)).encode())
    return digest.hexdigest()


def recorded(store):
    """The labels of each chunk, in the order they came; they must have been kept."""
    labels = schema.labels.c
    by_chunk = {}
    with store.read() as connection:
        cells = (labels.chunk, labels.item, labels.worker, labels.label)
        for chunk, *row in connection.execute(sa.select(*cells).order_by(labels.row)):
            by_chunk.setdefault(chunk, []).append(tuple(map(decode, row)))
    return by_chunk


def replayed(chunks, where, grace):
    """The state of a fresh store that is given these chunks, one after the other."""
    rules = RULES.changed(labels_per_item=10**6, chunk_items=10**6, grace=grace)
    with Store.open(where) as store:
        stream = opened(store, rules)
        for _, rows in sorted(chunks.items()):
            stream.accept(table_of(rows))
            stream.settle(flush=True)
        return stream.state_hash()
