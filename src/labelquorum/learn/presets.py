"""Presets: settings that go well together; and parts that do not go together at all."""

from collections.abc import Mapping
from typing import Any

from labelquorum.errors import StateError
from labelquorum.learn.encoder import Encoder
from labelquorum.learn.generative import GenerativeModel
from labelquorum.learn.hierarchical import COUNTED_PRIORS

__all__ = ["CURVATURE", "HIERARCHICAL", "PRESETS", "check_parts"]

HIERARCHICAL, CURVATURE, TIED, BLENDED = "hierarchical", "curvature", "tied", "blended"

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # What we would use ourselves; docs/paper.md numbers each departure.
    "default": {},
    # A shared matrix that workers lean away from, solved on counts: docs/recipe.md.
    "recipe": {
        "generative": HIERARCHICAL,
        "encoder": TIED,
        "kl_weight": 1.0,
        "class_prior": BLENDED,
        "optimizer": CURVATURE,
    },
    # Algorithm 1 to the letter.
    "www2021": {
        "generative": "confusion_matrix",
        "encoder": "mlp",
        "labels_as": "index",
        "hidden_sizes": (64, 32),
        "init_from": "log_frequencies",
        "init_strength": 0.0,
        "kl_weight": 0.1,
        "class_prior": "warmup",
        "optimizer": "bounded_rmsprop",
        "learning_rate": 1e-3,
        "decay": 0.9,
        "minibatch_items": 50,
        "epochs": 100,
        "tolerance": 1e-3,
        "predict_by": "likelihood",
    },
    # As the authors' released code behaves.
    "authors": {
        "generative": "confusion_matrix",
        "encoder": "mlp",
        "labels_as": "index",
        "hidden_sizes": (64, 32),
        "init_from": "frequencies",
        "init_strength": 0.0,
        "kl_weight": 0.1,
        "class_prior": "chunk",
        "optimizer": "rmsprop",
        "learning_rate": 1e-4,
        "decay": 0.9,
        "minibatch_items": 50,
        "epochs": 20,
        "tolerance": 0.0,
        "predict_by": "likelihood",
    },
}


def check_parts(
    generative: str | GenerativeModel,
    encoder: str | Encoder,
    optimizer: str,
    class_prior: str,
    kl_weight: float,
) -> None:
    """Refuse a p, a q, a class prior and a step that make no sense together."""
    if generative == HIERARCHICAL or optimizer == CURVATURE:
        if (generative, encoder, optimizer) != (HIERARCHICAL, TIED, CURVATURE):
            raise StateError(
                "generative='hierarchical', encoder='tied' and optimizer='curvature' of bila go "
                "together: this p is solved on the counts of the exact q. "
                f"Got {generative!r}, {encoder!r} and {optimizer!r}. Take all three, or "
                "preset='recipe'."
            )
        if class_prior not in COUNTED_PRIORS:
            raise StateError(
                "`class_prior` of bila with generative='hierarchical' must be one of "
                f"{list(COUNTED_PRIORS)}. Got {class_prior!r}."
            )
    elif class_prior == BLENDED:
        raise StateError(
            "class_prior='blended' of bila counts what was inferred, and only "
            "generative='hierarchical' keeps such counts. Take 'running'."
        )
    if encoder == TIED and kl_weight == 0:
        raise StateError(
            "`kl_weight` of bila must be > 0 with encoder='tied': without it the best q is no "
            "distribution. Got 0."
        )
