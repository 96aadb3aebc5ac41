"""Labels come late, workers change their minds. Recent tasks stay open for both.

python examples/04_late_labels_and_corrections.py [TASKS]
"""

import sys

import pandas as pd

import labelquorum as lq
from labelquorum.evaluation import class_conditional_crowd

n_tasks = int(sys.argv[1]) if sys.argv[1:] else 400

crowd = class_conditional_crowd(n_tasks, 12, 2, labels_per_item=5, seed=1)
labels = pd.DataFrame({"task": crowd.item, "worker": crowd.worker, "label": crowd.label})
model = lq.BiLA(open_items=100)  # the last 100 tasks stay open
for first in range(0, n_tasks, 50):
    model.partial_fit(labels[labels.task.between(first, first + 49)])


def show(what: str, task: str) -> None:
    answer, probas, tally = model.labels_[task], model.probas_.loc[task], model.tally_
    print(f"{what:34} → {answer} ({probas[answer]:.0%} sure), ", end="")
    print(f"late {tally.late_items}, corrected {tally.corrected}, returned {tally.returned_items}")


best, second, third = model.skills_.nlargest(3).index
model.partial_fit({"new": {third: 0}})
show("one label", "new")

model.partial_fit({"new": {second: 1}})
show("a late one, against the first", "new")

model.partial_fit({"new": {best: 1}})
show("another late one", "new")

model.partial_fit({"new": {third: 1}})
show("the first worker corrects it", "new")

# Push the task out: a hundred newer ones take its place.
model.partial_fit({f"newer {n}": {best: n % 2, second: n % 2} for n in range(100)})
model.partial_fit({"new": {third: 0}})
show("once closed, it starts again", "new")
