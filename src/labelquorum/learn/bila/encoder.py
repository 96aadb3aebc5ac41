"""q, the encoder: a network that reads an item's labels and says how likely each class is.

An encoder is one differentiable function of its parameters and a way to start:

    init(newcomers)             → Params
    class_logits(params, batch) → (M, C)

"tied" is the exception: it has no parameters of its own and is the best q there is for a given p.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from labelquorum.errors import StateError
from labelquorum.learn.bila.generative import Newcomers, Params
from labelquorum.learn.bila.lazy_jax import jax, jnp
from labelquorum.learn.bila.minibatch import Batch, Leaf, sum_by_item


class Encoder(NamedTuple):
    """q: a way to start and the class logits; `dense` when every worker's row moves each step.

    Where it is `tied`, q follows from p, and neither function is called but to find nothing.
    """

    name: str
    init: Callable[[Newcomers], Params]
    class_logits: Callable[[Params, Batch], jax.Array]
    dense: bool = False
    tied: bool = False


def mlp(
    hidden_sizes: Sequence[int] = (64, 32),
    labels_as: Literal["one_hot", "index"] = "one_hot",
    vote_scale: float = 1.0,
    weight_init: Literal["glorot", "shifted_normal"] = "glorot",
) -> Encoder:
    """A fully connected network, tanh between layers, softmax at the end.

    Parameters
    ----------
    hidden_sizes
        Units of each hidden layer; () is a linear softmax layer.
    labels_as
        "one_hot": an input for each (worker, label); absent workers say nothing. "index": the
        paper's input, the class number or −1; it makes classes ordinal and lets absent workers
        speak, so each step moves every worker's row.
    vote_scale
        A one-hot network without hidden layers starts as a vote of this weight: each label adds
        it to the logit of its class.
    weight_init
        "glorot": uniform weights of Glorot and Bengio (2010), or that vote, and biases 0.
        "shifted_normal": every weight and every bias is 1/√(2n) + N(0, 0.05²), n the first
        dimension of its array, as in the authors' code. In the first layer n is the number of
        inputs: workers, times classes if one-hot. A worker who joins later is drawn with the
        number of workers known by then.

    Examples
    --------
    >>> mlp().name, mlp(labels_as="index").dense
    ('mlp', True)
    """
    sizes = tuple(hidden_sizes)
    if any(size < 1 or size % 1 for size in sizes):
        raise StateError(
            f"`hidden_sizes` of mlp must be whole numbers ≥ 1. Got {list(hidden_sizes)!r}."
        )
    if labels_as not in ("one_hot", "index"):
        raise StateError(f"`labels_as` of mlp must be 'one_hot' or 'index'. Got {labels_as!r}.")
    if weight_init not in ("glorot", "shifted_normal"):
        raise StateError(
            f"`weight_init` of mlp must be 'glorot' or 'shifted_normal'. Got {weight_init!r}."
        )
    one_hot, shifted = labels_as == "one_hot", weight_init == "shifted_normal"
    draw = _shifted_normal if shifted else _glorot

    def init(newcomers: Newcomers) -> Params:
        n_classes = newcomers.n_classes
        widths = (*sizes, n_classes)
        keys = jax.random.split(newcomers.shared_key, len(widths))

        def bias(layer: int, width: int) -> jax.Array:
            if not shifted:
                return jnp.zeros(width)
            return _shifted_normal(jax.random.fold_in(keys[layer - 1], 1), width, (width,))

        shared: dict[str, Any] = {"b1": bias(1, widths[0])}
        for layer, (fan_in, fan_out) in enumerate(pairwise(widths), start=2):
            shared[f"w{layer}"] = draw(keys[layer - 1], fan_in, (fan_in, fan_out))
            shared[f"b{layer}"] = bias(layer, fan_out)
        row_shape = (n_classes, widths[0]) if one_hot else (widths[0],)
        if one_hot and not sizes and not shifted:
            vote = vote_scale * jnp.eye(n_classes)
            rows = jnp.broadcast_to(vote, (len(newcomers.keys), *vote.shape))
        else:
            inputs = newcomers.n_workers * (n_classes if one_hot else 1)
            rows = jax.vmap(lambda key: draw(key, inputs, row_shape))(newcomers.keys)
        return Params(shared, {"w1": rows})

    def class_logits(params: Params, batch: Batch) -> Leaf:
        # Alg. 1 line 18: h = W_2 tanh(W_1 l_i + b_1) + b_2, with any number of layers
        weights, first = params.shared, params.per_worker["w1"]
        if one_hot:
            hidden = sum_by_item(first[batch.worker, batch.label], batch)
        else:
            # l_ik is the class number, −1 where worker k is absent: Σ_k W_k l_ik
            # = Σ_{k present} W_k (l_ik + 1) − Σ_k W_k, and no dense matrix is needed.
            spoken = first[batch.worker] * (batch.label[:, None] + 1.0)
            hidden = sum_by_item(spoken, batch) - batch.worker_mask @ first
        hidden += weights["b1"]
        for layer in range(2, len(sizes) + 2):
            hidden = jnp.tanh(hidden) @ weights[f"w{layer}"] + weights[f"b{layer}"]
        return hidden

    return Encoder("mlp", init, class_logits, dense=not one_hot)


def tied() -> Encoder:
    """The exact minimiser of the loss over q: no parameters, and it never lags behind p.

    q(c | l_i) ∝ p(c) p(l_i | c)^(1/ζ), which is the posterior for ζ = 1. With one-hot labels it is
    a single linear layer whose weights are p's.

    Examples
    --------
    >>> tied().tied
    True
    """

    def init(newcomers: Newcomers) -> Params:
        return Params({}, {})

    def class_logits(params: Params, batch: Batch) -> jax.Array:
        raise NotImplementedError("a tied q is computed from p, in training.py")

    return Encoder("tied", init, class_logits, tied=True)


ENCODERS: dict[str, Callable[..., Encoder]] = {"mlp": mlp, "tied": tied}


def _glorot(key: jax.Array, fan_in: Leaf, shape: tuple[int, ...]) -> jax.Array:
    """Uniform weights of Glorot and Bengio (2010), (…, fan_out)."""
    limit = jnp.sqrt(6.0 / (fan_in + shape[-1]))
    return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0) * limit


def _shifted_normal(key: jax.Array, fan_in: Leaf, shape: tuple[int, ...]) -> jax.Array:
    """1/√(2n) + N(0, 0.05²), n the number of inputs: the start of the authors' code."""
    return 1 / jnp.sqrt(2.0 * fan_in) + 0.05 * jax.random.normal(key, shape)
