"""Presets: settings that go well together; and parts that do not go together at all."""

from collections.abc import Mapping
from typing import Any

from labelquorum.errors import StateError
from labelquorum.learn.bila.encoder import Encoder
from labelquorum.learn.bila.generative import GenerativeModel
from labelquorum.learn.bila.hierarchical import COUNTED_PRIORS, HIERARCHICAL, ONE_COIN, Recipe

__all__ = ["COUNTED", "CURVATURE", "PRESETS", "check_parts", "saved_settings", "settings_of"]

COUNTED: Mapping[str, tuple[str, ...]] = {
    "two_accounts": (HIERARCHICAL, ONE_COIN),
    "hierarchical": (HIERARCHICAL,),
    "one_coin": (ONE_COIN,),
}
"""The p that are learned by counting, and their worker models."""

CURVATURE, TIED, BLENDED = "curvature", "tied", "blended"

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


_BY_GRADIENT = (
    "hidden_sizes",
    "labels_as",
    "weight_init",
    "init_from",
    "init_strength",
    "init_smoothing",
    "newcomer_rows",
    "learning_rate",
    "decay",
    "minibatch_items",
    "epochs",
    "predict_by",
    "kl_weight",
)
_HIERARCHICAL_ALONE = ("bias_scale", "crowd_strength", "newton_classes", "own_weight")
_BY_COUNTING = tuple(
    name for name in Recipe._fields if name not in ("class_prior", "tolerance", "worker_models")
)
"""Settings that mean something to one kind of p alone."""


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


def check_parts(
    generative: str | GenerativeModel,
    encoder: str | Encoder,
    optimizer: str,
    class_prior: str,
    kl_weight: float,
) -> None:
    """Refuse a p, a q, a class prior and a step that make no sense together."""
    counted = isinstance(generative, str) and generative in COUNTED
    if counted or optimizer == CURVATURE:
        if not (counted and (encoder, optimizer) == (TIED, CURVATURE)):
            raise StateError(
                f"generative={_name(generative)}, encoder={_name(encoder)} and "
                f"optimizer={optimizer!r} of bila do not go together. Those of {list(COUNTED)} are "
                "solved on counts, with encoder='tied' and optimizer='curvature'; for any other "
                "start from preset='network'."
            )
        if class_prior not in COUNTED_PRIORS:
            raise StateError(
                f"`class_prior` of bila with generative={generative!r} must be one of "
                f"{list(COUNTED_PRIORS)}. Got {class_prior!r}."
            )
    elif class_prior == BLENDED:
        raise StateError(
            "class_prior='blended' of bila counts what was inferred, and only a p that is learned "
            f"by counting keeps such counts: {list(COUNTED)}. Take 'running'."
        )
    if encoder == TIED and kl_weight == 0:
        raise StateError(
            "`kl_weight` of bila must be > 0 with encoder='tied': without it the best q is no "
            "distribution. Got 0."
        )


def settings_of(preset: str, **changes: Any) -> dict[str, Any]:
    """The settings of a preset for `bila`, with changes; one without effect is refused.

    >>> settings_of("network", epochs=3)["epochs"]
    3
    """
    if preset not in list(PRESETS):
        raise StateError(f"`preset` of BiLA must be one of {list(PRESETS)}. Got {preset!r}.")
    settings = {**PRESETS[preset], **changes}
    generative = settings.get("generative", "two_accounts")
    worker_models = COUNTED.get(generative, ()) if isinstance(generative, str) else ()
    without_effect = _BY_GRADIENT if worker_models else _BY_COUNTING
    if HIERARCHICAL not in worker_models:
        without_effect += _HIERARCHICAL_ALONE
    idle = [name for name in changes if name in without_effect]
    if idle:
        if idle[0] in _BY_GRADIENT:
            why, other = "which is learned by counting", "network"
        elif worker_models:
            why, other = "which has one number per worker", "default"
        else:
            why, other = "which is learned by gradient steps", "default"
        raise StateError(
            f"`{idle[0]}` of BiLA has no effect with generative={_name(generative)}, {why}. "
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
    counted = isinstance(generative, str) and generative in COUNTED
    for name, value in _BEFORE.get(kept.get("preset", ""), {}).items():
        if kept.get(name) is None and not (counted and name in _BY_GRADIENT):
            kept[name] = value
    return kept


def _name(part: str | GenerativeModel | Encoder) -> str:
    return repr(part if isinstance(part, str) else part.name)
