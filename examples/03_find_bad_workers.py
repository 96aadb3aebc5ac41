"""Twenty honest workers and five who are not. Nobody tells the model which is which.

Three click at random, one always gives the same answer, one has two classes mixed up. All five are
found. What is special about one of them is seen soonest by the preset "network", which gives every
worker a matrix of their own from the start; the default needs hundreds of their labels for that.

    python examples/03_find_bad_workers.py [TASKS]
"""

import sys

import numpy as np
import pandas as pd

import labelquorum as lq
from labelquorum.evaluation import class_conditional_crowd

n_tasks = int(sys.argv[1]) if sys.argv[1:] else 1500
classes = np.array(["cat", "dog", "fox"])

crowd = class_conditional_crowd(n_tasks, 25, 3, labels_per_item=6, skill=(0.7, 0.9), seed=3)
label = crowd.label.copy()
random = np.random.default_rng(0)
for worker in (20, 21, 22):
    rows = crowd.worker == worker
    label[rows] = random.integers(3, size=rows.sum())
label[crowd.worker == 23] = 1  # always "dog"
rows = crowd.worker == 24
label[rows] = np.array([0, 2, 1])[label[rows]]  # calls a dog a fox, and a fox a dog

names = [f"honest {k:02}" for k in range(20)]
names += ["random 1", "random 2", "random 3", "always dog", "mixed up"]
labels = pd.DataFrame(
    {
        "task": crowd.item,
        "worker": np.array(names)[crowd.worker],
        "label": classes[label],
    }
)

model, network = lq.BiLA(), lq.BiLA("network")
for first in range(0, n_tasks, 50):
    chunk = labels[labels.task.between(first, first + 49)]
    model.partial_fit(chunk)
    network.partial_fit(chunk)

workers = model.report().workers.sort_values("annotator_quality")
print("The seven lowest of 25:")
columns = ["annotator_quality", "num_examples_labeled", "worst_class"]
print(workers[columns].head(7).to_string(float_format="{:.2f}".format))

print("\nWhat they say when the truth is … (rows: truth, columns: label)")
for worker in ("always dog", "mixed up"):
    matrix = network.confusion_[network.workers_.get_loc(worker)]
    print(f"\n{worker}")
    print(pd.DataFrame(matrix, network.classes_, network.classes_).round(2).to_string())
