"""Presets: settings that go well together."""

from collections.abc import Mapping
from typing import Any, Literal

from labelquorum.errors import StateError
from labelquorum.learn.bila.settings import (
    BY_GRADIENT,
    SETTINGS,
    complete,
    counted_models,
    has_effect,
    name_of,
)

Preset = Literal["default", "recipe", "network", "www2021", "authors"]

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # What we would use ourselves: docs/worker-models.md.
    "default": {},
    # A shared matrix that workers lean away from, solved on counts: docs/hierarchical.md.
    "recipe": {
        "generative": "hierarchical",
        "bias_scale": 0.4,
        "prior_mix": 0.8,
        "tolerance": 0.0,
        "own_weight": 0.0,
        "dependence": 0.2,
    },
    # An encoder network and any differentiable p, by gradient steps: the place to start with a p
    # of your own; docs/paper.md numbers each departure from the paper.
    "network": {
        "generative": "confusion_matrix",
        "encoder": "mlp",
        "kl_weight": 0.1,
        "class_prior": "running",
        "optimizer": "rmsprop",
    },
    # Our reading of Algorithm 1: docs/paper.md has a note on each choice where the text is silent.
    "www2021": {
        "generative": "confusion_matrix",
        "encoder": "mlp",
        "labels_as": "index",
        "hidden_sizes": (64, 32),
        "init_from": "log_frequencies",
        "init_strength": 0.0,
        "init_smoothing": 1.0,
        "newcomer_rows": "flat",
        "kl_weight": 0.1,
        "class_prior": "warmup",
        "optimizer": "bounded_rmsprop",
        "learning_rate": 0.01,
        "decay": 0.999,
        "minibatch_items": 50,
        "epochs": 20,
        "tolerance": 0.0,
        "predict_by": "likelihood",
    },
    # As the authors' released code behaves.
    "authors": {
        "generative": "confusion_matrix",
        "encoder": "mlp",
        "labels_as": "index",
        "hidden_sizes": (64, 32),
        "weight_init": "shifted_normal",
        "init_from": "frequencies",
        "init_strength": 0.0,
        "newcomer_rows": "flat",
        "kl_weight": 0.1,
        "class_prior": "chunk",
        "optimizer": "tf1_rmsprop",
        "learning_rate": 1e-4,
        "decay": 0.9,
        "minibatch_items": 50,
        "epochs": 20,
        "tolerance": 0.0,
        "predict_by": "likelihood",
    },
}


_BEFORE: Mapping[str, Mapping[str, Any]] = {
    "www2021": {
        "init_smoothing": 0.0,
        "newcomer_rows": "votes",
        "learning_rate": 1e-3,
        "decay": 0.9,
        "epochs": 100,
        "tolerance": 1e-3,
    },
    "authors": {
        "weight_init": "glorot",
        "newcomer_rows": "votes",
        "optimizer": "rmsprop",
    },
}
"""Presets that meant something else before `weight_init` was a setting: what they set then."""


def settings_of(preset: str, **changes: Any) -> dict[str, Any]:
    """The settings of a preset for `bila`, with changes; one without effect is refused.

    >>> settings_of("network", epochs=3)["epochs"]
    3
    """
    if preset not in list(PRESETS):
        raise StateError(f"`preset` of BiLA must be one of {list(PRESETS)}. Got {preset!r}.")
    settings = complete(changes, PRESETS[preset])
    generative = settings.get("generative", SETTINGS["generative"].default)
    idle = [name for name in changes if not has_effect(name, generative)]
    if idle:
        if SETTINGS[idle[0]].where == BY_GRADIENT:
            why, other = "which is learned by counting", "network"
        elif counted_models(generative):
            why, other = "which has one number per worker", "default"
        else:
            why, other = "which is learned by gradient steps", "default"
        raise StateError(
            f"`{idle[0]}` of BiLA has no effect with generative={name_of(generative)}, {why}. "
            f"Leave it out, or start from preset={other!r}."
        )
    return settings


def saved_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a saved model or stream, with what its preset meant when it was made.

    A preset is kept by its name, and None stands for what it says. Settings from before a preset
    was changed lack `weight_init`.

    >>> saved_settings({"preset": "authors", "optimizer": None})["optimizer"]
    'rmsprop'
    """
    kept = dict(settings)
    if "weight_init" in kept:
        return kept
    generative = kept.get("generative") or "confusion_matrix"
    for name, value in _BEFORE.get(kept.get("preset", ""), {}).items():
        if kept.get(name) is None and has_effect(name, generative):
            kept[name] = value
    return kept
