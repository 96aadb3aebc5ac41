"""p: how each starts, what it refuses, and one of your own in a dozen lines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learn import reference

from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.chunks import make_chunk
from labelquorum.ingest.events import LabelSpace
from labelquorum.learn.batch import sum_by_item
from labelquorum.learn.bila import bila
from labelquorum.learn.generative import (
    GENERATIVE_MODELS,
    GenerativeModel,
    Newcomers,
    Params,
    confusion_matrix,
    worker_ability,
)
from labelquorum.trial.crowds import class_conditional_crowd, oracle_error

# --- one of your own -----------------------------------------------------------------------------


def one_coin():
    """Every worker is right with one probability, the same for all; other classes share the rest."""

    def init(newcomers):
        return Params({"coin": jnp.zeros(())}, {"size": jnp.full(len(newcomers.keys), newcomers.n_classes)})

    def log_confusion(params, n_classes):
        right, wrong = jax.nn.log_sigmoid(params.shared["coin"]), jax.nn.log_sigmoid(-params.shared["coin"])
        return jnp.where(jnp.eye(n_classes) > 0, right, wrong - np.log(n_classes - 1))
