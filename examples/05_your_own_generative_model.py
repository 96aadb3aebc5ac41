"""BiLA with a p of your own: a dozen lines, and everything else stays as it is.

The preset "network" learns any p that can be differentiated, by gradient steps. Its own p is a
confusion matrix, C × C numbers per worker. Where a worker has few labels, one number, the skill,
with the mistakes spread as the crowd spreads them, can be learned better.

    python examples/05_your_own_generative_model.py [TASKS]
"""

import sys

import jax
import jax.numpy as jnp
import pandas as pd

import labelquorum as lq
from labelquorum import Batch, Newcomers, Params, sum_by_item
from labelquorum.evaluation import class_conditional_crowd, error_rate, oracle_error

n_tasks = int(sys.argv[1]) if sys.argv[1:] else 2000


def init(newcomers: Newcomers) -> Params:
    shared = {"popularity": jnp.zeros(newcomers.n_classes)}  # (C,) of each label, as a mistake
    return Params(shared, per_worker={"skill": jnp.full(len(newcomers.keys), 1.5)})  # (K,)


def log_confusion(params: Params) -> jax.Array:
    popularity, skill = params.shared["popularity"], params.per_worker["skill"]
    return jax.nn.log_softmax(popularity + skill[:, None, None] * jnp.eye(len(popularity)))


def log_likelihood(params: Params, batch: Batch) -> jax.Array:
    return sum_by_item(log_confusion(params)[batch.worker, :, batch.label], batch)  # (M, C)


def confusion(params: Params) -> jax.Array:
    return jnp.exp(log_confusion(params))  # (K, C, C)


one_skill = lq.GenerativeModel("one_skill", init, log_likelihood, confusion)

# Many workers with few labels each: 200 workers, 30 labels a head.
crowd = class_conditional_crowd(n_tasks, n_tasks // 10, 6, labels_per_item=3, seed=2)
labels = pd.DataFrame({"task": crowd.item, "worker": crowd.worker, "label": crowd.label})

for name, model in {
    "majority vote": lq.MajorityVote(),
    "network, a matrix a worker": lq.BiLA("network"),
    "network, one skill a worker": lq.BiLA("network", generative=one_skill),
    "BiLA() as it comes": lq.BiLA(),
}.items():
    answers = []
    for first in range(0, n_tasks, 50):
        model.partial_fit(labels[labels.task.between(first, first + 49)])
        answers.extend(model.labels_)
    print(f"{name:34} {error_rate(answers, crowd.truth):6.1%} wrong")
print(f"{'the oracle, who knows the matrices':34} {oracle_error(crowd):6.1%} wrong")
