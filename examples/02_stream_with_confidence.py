"""Labels arrive in chunks. Each chunk is answered at once, with a probability.

A team that needs the consensus now can use what is sure and ask again about the rest.

    python examples/02_stream_with_confidence.py [TASKS]
"""

import sys

import pandas as pd

import labelquorum as lq
from labelquorum.evaluation import class_conditional_crowd

n_tasks = int(sys.argv[1]) if sys.argv[1:] else 2000
sure_enough = 0.9

# A simulated crowd: 30 workers of mixed skill, five labels per task, and the truth to score with.
crowd = class_conditional_crowd(n_tasks, 30, 3, labels_per_item=5, seed=7)
labels = pd.DataFrame({"task": crowd.item, "worker": crowd.worker, "label": crowd.label})

model = lq.BiLA()
parts = []
for first in range(0, n_tasks, 50):
    chunk = labels[labels.task.between(first, first + 49)]
    model.partial_fit(chunk)
    probas = model.probas_  # the tasks of this chunk, task × class
    parts.append(pd.DataFrame({"label": model.labels_, "probability": probas.max(axis=1)}))

answers = pd.concat(parts)
answers["right"] = answers.label == crowd.truth[answers.index]
sure = answers.probability >= sure_enough

print(f"{len(parts)} chunks, {len(answers)} tasks, {answers.right.mean():.1%} right")
print(f"{sure.mean():.0%} of them are at least {sure_enough:.0%} sure:")
print(f"  {answers.right[sure].mean():.1%} right, to be used now")
print(f"  {answers.right[~sure].mean():.1%} right among the others, to be asked again:")
print(answers[~sure].sort_values("probability").head(5).to_string(float_format="{:.2f}".format))
