"""BiLA: an encoder q and a generative model p, trained chunk by chunk on an exact loss.

Hong, Ghiassi, Zhou, Birke, Chen: Online Label Aggregation: A Variational Bayesian Approach,
WWW 2021. `docs/paper.md` maps every equation to a function and numbers every departure.
"""

from collections.abc import Sequence
from math import inf
from numbers import Integral, Real
from typing import Any, Literal

from labelquorum.errors import StateError
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.aggregator import Aggregator
from labelquorum.learn.bila.counts import counting
from labelquorum.learn.bila.encoder import ENCODERS, Encoder
from labelquorum.learn.bila.generative import GENERATIVE_MODELS, GenerativeModel, NewcomerRows
from labelquorum.learn.bila.gradient import PredictBy, gradient_aggregator
from labelquorum.learn.bila.hierarchical import LIMITS, Recipe
from labelquorum.learn.bila.optimizer import OPTIMIZERS
from labelquorum.learn.bila.presets import COUNTED, CURVATURE, PRESETS, check_parts
from labelquorum.learn.bila.training import ClassPrior, check_class_prior

__all__ = ["PRESETS", "bila"]


def bila(
    space: LabelSpace | None = None,
    *,
    generative: str | GenerativeModel = "two_accounts",
    encoder: str | Encoder = "tied",
    hidden_sizes: Sequence[int] = (),
    labels_as: Literal["one_hot", "index"] = "one_hot",
    weight_init: Literal["glorot", "shifted_normal"] = "glorot",
    init_from: Literal["log_frequencies", "frequencies"] = "log_frequencies",
    init_strength: float = 4.0,
    init_smoothing: float = 0.0,
    newcomer_rows: NewcomerRows = "votes",
    kl_weight: float = 1.0,
    class_prior: ClassPrior = "blended",
    optimizer: Literal[
        "bounded_rmsprop", "rmsprop", "tf1_rmsprop", "adam", "curvature"
    ] = "curvature",
    learning_rate: float = 0.02,
    decay: float = 0.9,
    minibatch_items: int = 50,
    epochs: int = 5,
    tolerance: float = 1e-3,
    predict_by: PredictBy = "posterior",
    tilt_scale: float = 1.0,
    bias_scale: float = 0.5,
    worker_cap: float = 5.0,
    crowd_strength: float = 50.0,
    crowd_accuracy: float = 0.7,
    accuracy_strength: float = 10.0,
    class_strength: float = 1.0,
    prior_mix: float = 0.7,
    inner_steps: int = 10,
    step_limit: float = 1.0,
    newton_classes: int = 8,
    own_weight: float = 0.005,
    dependence: float | Literal["learned"] = "learned",
    record_epochs: bool = False,
) -> Aggregator:
    """Build BiLA.

    Parameters
    ----------
    generative
        p. Learned by counting: "hierarchical" (a crowd's matrix that workers lean away from),
        "one_coin" (one accuracy per worker), "two_accounts" (both; one is
        selected). Learned by gradient steps: a name in `GENERATIVE_MODELS`, or one of your own.
    encoder
        q: a name in `ENCODERS`, or one of your own; "tied" where p is learned by counting.
    hidden_sizes, labels_as, weight_init
        Of the encoder "mlp"; the last is how its weights and biases are drawn.
    init_from, init_strength, init_smoothing
        Of the generative model "confusion_matrix" (the latter two of "worker_ability" too): what
        a worker's first matrix is made of.
    newcomer_rows
        Of both: a worker absent from the first chunk starts from their own "votes" in the chunk in
        which they first appear, or from "flat" rows (the authors' code; line 4 of Algorithm 1
        uses the initial set alone).
    kl_weight
        ζ of Eq. (minilossprac).
    class_prior
        p(y) counted from the first chunk ("warmup", the paper), from all so far ("running"),
        from each chunk alone ("chunk", the authors' code), "uniform", or "learned" with θ.
        "blended" counts labels and what was inferred, where p is learned by counting; so can
        "running" and "uniform" be chosen there.
    optimizer, learning_rate, decay
        "bounded_rmsprop" is the paper's; "rmsprop" has clipped gradients; "tf1_rmsprop" has them
        too, with the constants of TensorFlow 1 (the authors' code); "adam" is Adam. learning_rate
        is μ, decay is γ. "curvature" is the step where p is learned by counting.
    minibatch_items, epochs, tolerance
        M, the most epochs a chunk, and the relative change of the mean loss that ends them early.
        Where p is learned by counting, the change of every q below which the rounds end.
    predict_by
        Answer by p's "likelihood" alone (the paper), by the "posterior", or by the "encoder".
    tilt_scale, bias_scale
        Where p is learned by counting: σ_a and σ_b, how far workers differ in skill and in liking
        for labels.
    worker_cap, crowd_strength
        Of the same: κ, how many labels per class a worker counts for in the crowd's matrix, and
        g₀, how many labels per row of it the crowd's mean accuracy counts for.
    crowd_accuracy, accuracy_strength
        Of the same: that accuracy before any label, and how many labels that counts for.
    class_strength, prior_mix
        Of the same: how many items each class has before any, and how much of the class prior
        is counted; the rest is uniform.
    inner_steps, step_limit, newton_classes
        Of "curvature": the rounds of q and θ in a chunk, how far θ may move in one, and up to
        how many classes the whole Hessian is used; beyond, half a step by its diagonal.
    own_weight
        Of "hierarchical" and "two_accounts": how much each of a worker's labels says of their
        matrix beyond tilt and biases: (m + w N) / (1 + w n). 0.005 lets 200 labels per class weigh
        as much as the model, 0 leaves the model alone.
    dependence
        Where p is learned by counting: how far n labels of an item are taken for fewer. The
        answer's probabilities are q^(1/n^γ), γ from 0 to 1 "learned" from how far labels of an
        item go together beyond what p explains; or q^(1/(1 + ρ (n − 1))) with the ρ given.
    record_epochs
        Let `Info` tell the chunk's aggregated labels after every epoch.

    Examples
    --------
    >>> from labelquorum.ingest.chunks import make_chunk
    >>> labels = make_chunk([0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2], [1, 1, 0, 0, 0, 1])
    >>> method = bila()
    >>> state, info = method.update(method.init(labels, 0), labels)
    >>> method.aggregate(state, labels).aggregated.tolist()
    [1, 0]
    """
    _check_number("kl_weight", kl_weight, 0.0)
    _check_number("tolerance", tolerance, 0.0)
    _check_number("learning_rate", learning_rate, 1e-12)
    _check_number("decay", decay, 0.0, below=1.0)
    _check_number("init_strength", init_strength, 0.0)
    _check_number("init_smoothing", init_smoothing, 0.0)
    _check_number("minibatch_items", minibatch_items, 1)
    _check_number("epochs", epochs, 1)
    _check_name("predict_by", predict_by, ("likelihood", "posterior", "encoder"))
    _check_name("optimizer", optimizer, (*OPTIMIZERS, CURVATURE))
    _check_name("labels_as", labels_as, ("one_hot", "index"))
    _check_name("weight_init", weight_init, ("glorot", "shifted_normal"))
    _check_name("init_from", init_from, ("log_frequencies", "frequencies"))
    _check_name("newcomer_rows", newcomer_rows, ("votes", "flat"))
    if not isinstance(generative, GenerativeModel):
        _check_name("generative", generative, (*COUNTED, *GENERATIVE_MODELS))
    if not isinstance(encoder, Encoder):
        _check_name("encoder", encoder, tuple(ENCODERS))
    check_class_prior(class_prior)
    check_parts(generative, encoder, optimizer, class_prior, kl_weight)
    recipe = Recipe(
        tilt_scale=tilt_scale,
        bias_scale=bias_scale,
        worker_cap=worker_cap,
        crowd_strength=crowd_strength,
        crowd_accuracy=crowd_accuracy,
        accuracy_strength=accuracy_strength,
        class_prior=class_prior,
        class_strength=class_strength,
        prior_mix=prior_mix,
        inner_steps=inner_steps,
        step_limit=step_limit,
        newton_classes=newton_classes,
        own_weight=own_weight,
        dependence=dependence,
        tolerance=tolerance,
    )
    for name, (least, below) in LIMITS.items():
        if (name, getattr(recipe, name)) != ("dependence", "learned"):
            rule = "'learned', or " if name == "dependence" else ""
            _check_number(name, getattr(recipe, name), least, below, rule)
    if optimizer == CURVATURE and isinstance(generative, str):
        if record_epochs:
            raise StateError(
                "`record_epochs` of bila needs an optimizer that learns in epochs, and 'curvature' "
                "does not. Leave it out."
            )
        return counting(recipe._replace(worker_models=COUNTED[generative]))
    return gradient_aggregator(
        space,
        generative=generative,
        encoder=encoder,
        hidden_sizes=hidden_sizes,
        labels_as=labels_as,
        weight_init=weight_init,
        init_from=init_from,
        init_strength=init_strength,
        init_smoothing=init_smoothing,
        newcomer_rows=newcomer_rows,
        kl_weight=kl_weight,
        class_prior=class_prior,
        optimizer=optimizer,
        learning_rate=learning_rate,
        decay=decay,
        minibatch_items=minibatch_items,
        epochs=epochs,
        tolerance=tolerance,
        predict_by=predict_by,
        record_epochs=record_epochs,
    )


def _check_number(
    name: str, value: Any, least: float, below: float = inf, instead: str = ""
) -> None:
    whole = isinstance(least, int)
    number = isinstance(value, Integral if whole else Real)
    if not number or not least <= float(value) < below:
        rule = f"a {'whole ' * whole}number ≥ {least:g}" + f" and < {below:g}" * (below < inf)
        raise StateError(f"`{name}` of bila must be {instead}{rule}. Got {value!r}.")


def _check_name(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise StateError(f"`{name}` of bila must be one of {list(known)}. Got {value!r}.")
