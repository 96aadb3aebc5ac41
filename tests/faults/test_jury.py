"""A jury of a thousand judges is one question of many: it may not hold up the others for long."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from labelquorum.store.rules import Rules
from labelquorum.store.store import Store

pytestmark = pytest.mark.kill

N_JUDGES, LABELS_PER_TASK = 1000, 100

ASK = """
import json, sys, time
from labelquorum.store.store import Store
with Store.open(sys.argv[1]) as store:
    stream = store.stream("s")
    stream.jury(2)  # what is imported then is not counted
    began, used = time.monotonic(), time.process_time()
    report = stream.jury(1000)
    took = time.monotonic() - began, time.process_time() - used
print(json.dumps([*took, report["n_judges"], report["tasks"], len(report["groups"])]))
"""


def labels_of(n_tasks):
    """Labels by judges of whom every twenty fall for the same tasks."""
    rng = np.random.default_rng(0)
    worker = np.argsort(rng.random((n_tasks, N_JUDGES)), axis=1)[:, :LABELS_PER_TASK]
    truth = rng.integers(3, size=(n_tasks, 1))
    trap = rng.random((n_tasks, N_JUDGES // 20)) < 0.2
    falls = np.take_along_axis(trap, worker // 20, axis=1)
    said = np.where(rng.random(worker.shape) < 0.3, rng.integers(3, size=worker.shape), truth)
    said = np.where(falls, (truth + 1) % 3, said)
    task = np.repeat(np.arange(n_tasks), LABELS_PER_TASK)
    return pd.DataFrame({"task": task, "worker": worker.ravel(), "label": said.ravel()})


def test_a_jury_of_a_thousand_judges_takes_at_most_3_seconds(tmp_path, size, record_property):
    n_tasks = size(600, 1000)
    with Store.open(tmp_path / "store") as store:
        rules = Rules(labels_per_item=LABELS_PER_TASK, chunk_items=n_tasks)
        stream = store.create("s", rules=rules)
        stream.accept(labels_of(n_tasks))
        stream.settle()
    # On one thread, the time of the processor depends least on what else the machine does.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ASK, str(tmp_path / "store")]
    reply = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    took, used, n_judges, tasks, n_groups = json.loads(reply.stdout)
    record_property("seconds a jury takes", round(took, 2))
    record_property("processor seconds a jury takes", round(used, 2))
    assert (n_judges, tasks) == (N_JUDGES, n_tasks) and n_groups > 5
    assert used < 3
