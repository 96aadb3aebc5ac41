"""A stream driven from a source that can be read again."""

import pandas as pd

from labelquorum.evaluation import class_conditional_crowd, label_table
from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

RULES = Rules(
    labels_per_item=3,
    chunk_items=4,
    max_wait=None,
    max_chunk_wait=None,
    retention="discard",
    grace=1e9,
)


def batches():
    """What the source holds: labels in random order, so that some are late."""
    crowd = class_conditional_crowd(12, 7, 3, labels_per_item=4, seed=5)
    table = label_table(crowd)
    columns = {"task": table.item_ids, "worker": table.worker_ids, "label": table.labels}
    frame = pd.DataFrame(columns).sample(frac=1, random_state=1)
    return [frame.iloc[start : start + 8] for start in range(0, len(frame), 8)]


def drive(where):
    """Read the source from where it was left, to its end; say what is known then."""
    with Store.open(where) as store:
        stream = store.stream("s") if "s" in store.streams() else store.create("s", rules=RULES)
        stream.settle()
        todo = batches()
        for number in range(int(stream.position("source") or 0), len(todo)):
            position = str(number + 1)
            stream.accept(todo[number], key=f"batch {number}", source="source", position=position)
            stream.settle()
        stream.settle(flush=True)
        n_labels = sum(chunk["n_labels"] for chunk in stream.chunks())
        return n_labels, stream.count()["held_labels"], stream.state_hash()
