"""The settings of BiLA: type, default, limits and meaning of each, stated once.

Signatures and docstrings of `bila` and `BiLA`, the checks, what a preset may change and the
reference page are made from `Settings`.
"""

import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from math import inf
from numbers import Integral, Real
from typing import Annotated, Any, NamedTuple, TypedDict, TypeVar, get_args, get_type_hints

from labelquorum.errors import StateError
from labelquorum.learn.bila.encoder import ENCODERS, Encoder
from labelquorum.learn.bila.generative import GENERATIVE_MODELS, GenerativeModel, NewcomerRows
from labelquorum.learn.bila.gradient import PredictBy
from labelquorum.learn.bila.hierarchical import COUNTED_PRIORS, HIERARCHICAL, ONE_COIN
from labelquorum.learn.bila.optimizer import OPTIMIZERS
from labelquorum.learn.bila.stacking import RANDOM, SELECTED
from labelquorum.learn.bila.training import ClassPrior

COUNTED: Mapping[str, tuple[str, ...]] = {
    "two_accounts": (HIERARCHICAL, ONE_COIN),
    "hierarchical": (HIERARCHICAL,),
    "one_coin": (ONE_COIN,),
}
"""The p that are learned by counting, and their worker models."""

CURVATURE, TIED, BLENDED = "curvature", "tied", "blended"

BY_GRADIENT = "where p is learned by gradient steps"
BY_COUNTING = "where p is learned by counting"
HIERARCHICAL_ALONE = "with the hierarchical model"
"""The kinds of p to which alone a setting means something."""


class Setting(NamedTuple):
    """What there is to know of a setting besides its name and its type."""

    default: Any
    where: str = ""  # the kind of p that reads it; every kind if empty
    least: float | None = None  # a whole number if this is an int
    below: float = inf
    choices: tuple[str, ...] = ()
    own: type | None = None  # a part of the user's own

    @property
    def rule(self) -> str:
        """What a value must be."""
        if self.least is None:
            return f"one of {list(self.choices)}"
        kind = "a whole number" if isinstance(self.least, int) else "a number"
        below = f" and < {self.below:g}" if self.below < inf else ""
        return "".join(f"{c!r}, or " for c in self.choices) + f"{kind} ≥ {self.least:g}{below}"

    def admits(self, value: Any) -> bool:
        """Whether it may have this value."""
        if self.own is not None and isinstance(value, self.own):
            return True
        if self.least is None:
            return not self.choices or value in self.choices
        if isinstance(value, str):
            return value in self.choices
        kind = Integral if isinstance(self.least, int) else Real
        return isinstance(value, kind) and self.least <= float(value) < self.below


class Settings(TypedDict, total=False):
    """The settings of BiLA; None, in `BiLA`, means what the preset says.

    Parameters
    ----------
    generative
        p. Learned by counting: "hierarchical" (a crowd's matrix, and how each worker departs from
        it), "one_coin" (one accuracy per worker) or "two_accounts" (both; the one with more
        evidence is selected). Learned by gradient steps: "confusion_matrix", "worker_ability" (two
        classes), or a `GenerativeModel`.
    encoder
        q: "tied" (the exact posterior; `kl_weight` > 0), the only one where p is learned by
        counting; "mlp", or an `Encoder`.
    hidden_sizes
        Units of each hidden layer of "mlp"; () is a single linear layer.
    labels_as
        What "mlp" sees: "one_hot" (worker, label) pairs, or the class "index", −1 for none.
    weight_init
        First weights of "mlp": "glorot" (uniform, biases 0), or "shifted_normal", 1/√(2n) +
        N(0, 0.05²) for weights and biases, n the first dimension of their array.
    init_from
        First logits of "confusion_matrix": "log_frequencies" of the votes, or the "frequencies"
        themselves.
    init_strength
        Weight of the crowd's average in a worker's first matrix, in labels per row.
    init_smoothing
        Added to every count of a worker's first matrix; at 0, a frequency counts as at least 0.001.
    newcomer_rows
        The first matrix of a worker absent from the first chunk: from their own "votes" in the
        chunk in which they first appear, or "flat", 1/C (the authors' code; line 4 of Algorithm 1
        uses the initial set alone).
    kl_weight
        ζ of Eq. (minilossprac), the weight of the divergence from the class prior; it is 1 where p
        is learned by counting.
    class_prior
        p(y) counted from the first chunk ("warmup", the paper), from all so far ("running"), from
        each chunk alone ("chunk", the authors' code), "uniform", or "learned" with θ. "blended"
        counts labels and what was inferred, where p is learned by counting; "running" and "uniform"
        can be chosen there too.
    optimizer
        "curvature" where p is learned by counting; "bounded_rmsprop" (the paper's), "rmsprop"
        (gradients clipped to ±1), "tf1_rmsprop" (the same with the constants of TensorFlow 1, as in
        the authors' code) or "adam".
    learning_rate
        μ.
    decay
        γ; "adam" does not use it.
    minibatch_items
        M, tasks in a minibatch.
    epochs
        Maximum number of epochs per chunk.
    tolerance
        Where p is learned by counting: rounds end when no q moves by this much. Else: relative
        change of the mean loss that ends training early; 0 never does.
    predict_by
        Answer by p's "likelihood" (the paper), by the "posterior", or by the "encoder".
    tilt_scale
        σ_a: standard deviation of workers' skill, in logits.
    bias_scale
        σ_b: standard deviation of workers' biases, in logits.
    worker_cap
        κ: maximum weight of a worker in the crowd's matrix, in labels per class.
    crowd_strength
        g₀: weight of the crowd's mean accuracy in its matrix, in labels per row.
    crowd_accuracy
        The crowd's mean accuracy before any label.
    accuracy_strength
        Weight of `crowd_accuracy`, in labels.
    class_strength
        Number of tasks each class starts with.
    prior_mix
        Share of the class prior that is counted; the rest is uniform.
    inner_steps
        Maximum number of rounds of θ and q per chunk.
    step_limit
        Maximum step of each θ in a round.
    newton_classes
        Maximum number of classes for a full Newton step; above, half a step by the Hessian's
        diagonal.
    own_weight
        w, the weight of a worker's own counts per label: (m + w N) / (1 + w n). 0.005 lets 200
        labels per class weigh as much as the model, 0 leaves the model alone.
    dependence
        How far n labels of a task are taken for fewer. "learned": probabilities are q^(1/(s n^γ)),
        a temperature estimated from how far labels of a task go together beyond what p explains,
        and from how far answers name other classes. A number ρ: they are q^(1/(1 + ρ(n − 1))), and
        0 gives q itself.
    gold_sampling
        How tasks with a true label are drawn: "random" among all, or "selected" by what they are,
        such as disputed ones. Selected gold teaches about workers, and is no measure of the error.
    record_epochs
        Keep the last chunk's labels after every epoch, for `epoch_labels_`.
    """

    generative: Annotated[
        str | GenerativeModel | None,
        Setting("two_accounts", choices=(*COUNTED, *GENERATIVE_MODELS), own=GenerativeModel),
    ]
    encoder: Annotated[str | Encoder | None, Setting(TIED, choices=tuple(ENCODERS), own=Encoder)]
    hidden_sizes: Annotated[Sequence[int] | None, Setting((), BY_GRADIENT)]
    labels_as: Annotated[str | None, Setting("one_hot", BY_GRADIENT, choices=("one_hot", "index"))]
    weight_init: Annotated[
        str | None, Setting("glorot", BY_GRADIENT, choices=("glorot", "shifted_normal"))
    ]
    init_from: Annotated[
        str | None,
        Setting("log_frequencies", BY_GRADIENT, choices=("log_frequencies", "frequencies")),
    ]
    init_strength: Annotated[float | None, Setting(4.0, BY_GRADIENT, 0.0)]
    init_smoothing: Annotated[float | None, Setting(0.0, BY_GRADIENT, 0.0)]
    newcomer_rows: Annotated[
        str | None, Setting("votes", BY_GRADIENT, choices=get_args(NewcomerRows))
    ]
    kl_weight: Annotated[float | None, Setting(1.0, BY_GRADIENT, 0.0)]
    class_prior: Annotated[str | None, Setting(BLENDED, choices=get_args(ClassPrior))]
    optimizer: Annotated[str | None, Setting(CURVATURE, choices=(*OPTIMIZERS, CURVATURE))]
    learning_rate: Annotated[float | None, Setting(0.02, BY_GRADIENT, 1e-12)]
    decay: Annotated[float | None, Setting(0.9, BY_GRADIENT, 0.0, 1.0)]
    minibatch_items: Annotated[int | None, Setting(50, BY_GRADIENT, 1)]
    epochs: Annotated[int | None, Setting(5, BY_GRADIENT, 1)]
    tolerance: Annotated[float | None, Setting(1e-3, least=0.0)]
    predict_by: Annotated[
        str | None, Setting("posterior", BY_GRADIENT, choices=get_args(PredictBy))
    ]
    tilt_scale: Annotated[float | None, Setting(1.0, BY_COUNTING, 1e-3)]
    bias_scale: Annotated[float | None, Setting(0.5, HIERARCHICAL_ALONE, 1e-3)]
    worker_cap: Annotated[float | None, Setting(5.0, BY_COUNTING, 1e-3)]
    crowd_strength: Annotated[float | None, Setting(50.0, HIERARCHICAL_ALONE, 1e-3)]
    crowd_accuracy: Annotated[float | None, Setting(0.7, BY_COUNTING, 1e-3, 1.0)]
    accuracy_strength: Annotated[float | None, Setting(10.0, BY_COUNTING, 1e-3)]
    class_strength: Annotated[float | None, Setting(1.0, BY_COUNTING, 1e-3)]
    prior_mix: Annotated[float | None, Setting(0.7, BY_COUNTING, 0.0, 1.0)]
    inner_steps: Annotated[int | None, Setting(10, BY_COUNTING, 1)]
    step_limit: Annotated[float | None, Setting(1.0, BY_COUNTING, 1e-3)]
    newton_classes: Annotated[int | None, Setting(8, HIERARCHICAL_ALONE, 0)]
    own_weight: Annotated[float | None, Setting(0.005, HIERARCHICAL_ALONE, 0.0)]
    dependence: Annotated[
        float | str | None, Setting("learned", BY_COUNTING, 0.0, choices=("learned",))
    ]
    gold_sampling: Annotated[str | None, Setting(RANDOM, BY_COUNTING, choices=(RANDOM, SELECTED))]
    record_epochs: Annotated[bool, Setting(False)]


_HINTS = get_type_hints(Settings, include_extras=True)
SETTINGS: Mapping[str, Setting] = {name: hint.__metadata__[0] for name, hint in _HINTS.items()}
"""Every setting by name."""
LEFT_TO_PRESET: Mapping[str, Any] = {
    name: None if type(None) in get_args(hint.__origin__) else SETTINGS[name].default
    for name, hint in _HINTS.items()
}
"""The settings of a model for which none was given."""

Taker = TypeVar("Taker")


def takes_settings(taker: Taker) -> Taker:
    """Put every setting into signature and docstring of what takes `**settings`.

    A class leaves them to its preset; a function has the defaults.
    """
    left = isinstance(taker, type)
    call: Any = vars(taker)["__init__"] if left else taker
    signature = inspect.signature(call)
    given = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    first = [p for p in given if p.kind is not p.KEYWORD_ONLY]
    settings = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=LEFT_TO_PRESET[name] if left else SETTINGS[name].default,
            annotation=hint.__origin__,
        )
        for name, hint in _HINTS.items()
    ]
    call.__signature__ = signature.replace(parameters=[*first, *settings, *given[len(first) :]])
    before, _, after = (inspect.getdoc(taker) or "").partition("settings\n    ")
    taker.__doc__ = before + _entries() + after.partition("\n")[2]
    return taker


def _entries() -> str:
    """The docstring of `Settings`, each entry with its limits and the p that reads it."""
    entries = ""
    text = f"{inspect.getdoc(Settings)}\n"
    for name, meaning in re.findall(r"^(\w+)\n((?:    .*\n)+)", text, re.MULTILINE):
        setting = SETTINGS[name]
        limits = [setting.rule] if setting.least is not None else []
        only = [f"only {setting.where}"] if setting.where else []
        rest = "; ".join(limits + only)
        whole = " ".join([*meaning.split(), rest[:1].upper() + rest[1:] + "." * bool(rest)])
        entries += f"{name}\n{textwrap.indent(textwrap.fill(whole, 92), '    ')}\n"
    return entries


# ── what goes together ───────────────────────────────────────────────────────────────────


def counted_models(generative: str | GenerativeModel) -> tuple[str, ...]:
    """The worker models of a p that is learned by counting; none for another."""
    return COUNTED.get(generative, ()) if isinstance(generative, str) else ()


def has_effect(name: str, generative: str | GenerativeModel) -> bool:
    """Whether a setting means anything to this p."""
    models = counted_models(generative)
    return {
        BY_GRADIENT: not models,
        BY_COUNTING: bool(models),
        HIERARCHICAL_ALONE: HIERARCHICAL in models,
    }.get(SETTINGS[name].where, True)


def complete(settings: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """All settings: those given, and `others` for the rest."""
    for name in settings:
        if name not in SETTINGS:
            raise TypeError(f"BiLA got an unexpected keyword argument {name!r}")
    return {**others, **settings}


def check(settings: Mapping[str, Any]) -> None:
    """Refuse values that a setting cannot have, and parts that make no sense together."""
    for name, setting in SETTINGS.items():
        if not setting.admits(settings[name]):
            raise StateError(f"`{name}` of bila must be {setting.rule}. Got {settings[name]!r}.")
    generative, encoder, optimizer, class_prior, kl_weight = (
        settings[name]
        for name in ("generative", "encoder", "optimizer", "class_prior", "kl_weight")
    )
    counted = bool(counted_models(generative))
    if counted or optimizer == CURVATURE:
        if not (counted and (encoder, optimizer) == (TIED, CURVATURE)):
            raise StateError(
                f"generative={name_of(generative)}, encoder={name_of(encoder)} and "
                f"optimizer={optimizer!r} of bila do not go together. Those of {list(COUNTED)} are "
                "solved on counts, with encoder='tied' and optimizer='curvature'; for any other "
                "start from preset='network'."
            )
        if class_prior not in COUNTED_PRIORS:
            raise StateError(
                f"`class_prior` of bila with generative={generative!r} must be one of "
                f"{list(COUNTED_PRIORS)}. Got {class_prior!r}."
            )
        if settings["record_epochs"]:
            raise StateError(
                "`record_epochs` of bila needs an optimizer that learns in epochs, and 'curvature' "
                "does not. Leave it out."
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


def name_of(part: str | GenerativeModel | Encoder) -> str:
    """The name of a part, for sentences."""
    return repr(part if isinstance(part, str) else part.name)
