"""BiLA once more, straight from the paper: NumPy, float64, gradients derived by hand.

Algorithm 1 lines 10–30 of Hong et al., WWW 2021, for BiLA-CM and for BiLA-WA (Appendix B), on a
dense matrix of labels, (N, K), −1 where a worker is missing. It shares two things with the package,
because they are drawn at random: the first weights of the network, which the caller hands over,
and the order of the items in an epoch.

`RELEASED` has what the authors' released code does otherwise, from the facts known of it: vote
frequencies as logits, TensorFlow 1's RMSProp, 20 epochs of minibatches of 50, and the class prior
of each chunk alone, which the caller hands over.
"""

from typing import NamedTuple

import jax
import numpy as np

from labelquorum.learn.bila.minibatch import minibatch_order

MISSING = -1

shuffle = jax.jit(minibatch_order, static_argnums=1)


class Settings(NamedTuple):
    """What Algorithm 1 leaves open, at the values of the preset "www2021"."""

    generative: str = "confusion_matrix"
    labels_as: str = "index"
    n_classes: int = 2
    init_from: str = "log_frequencies"
    init_smoothing: float = 1.0
    newcomer_rows: str = "flat"
    kl_weight: float = 0.1  # ζ
    optimizer: str = "bounded_rmsprop"
    learning_rate: float = 0.01  # μ
    decay: float = 0.999  # γ
    minibatch_items: int = 50  # M
    epochs: int = 20
    tolerance: float = 0.0


RELEASED = Settings(
    init_from="frequencies",
    init_smoothing=0.0,
    optimizer="tf1_rmsprop",
    learning_rate=1e-4,
    decay=0.9,
)
"""The released code; ζ, M, the epochs and flat newcomers are as above."""


class Learned(NamedTuple):
    """θ by name, v, t − 1, and the mean loss of each epoch of the last chunk."""

    params: dict  # w1, b1, w2, b2, …; omega (K, C, C) or lam (K, C)
    second_moment: dict
    step: int
    losses: tuple = ()


def start(weights, beta, settings):
    """θ of the first step: α from the network's first weights, β as given."""
    name = "omega" if beta.ndim == 3 else "lam"
    params = {**weights, name: beta}
    params = {name: np.asarray(value, np.float64) for name, value in params.items()}
    first = FIRST_SECOND_MOMENT[settings.optimizer]
    return Learned(params, {name: np.full_like(value, first) for name, value in params.items()}, 0)


def join(learned, weights, beta, settings):
    """Workers who were unknown so far: their rows of W₁, which the caller hands over, and of β."""
    name = "omega" if beta.ndim == 3 else "lam"
    new = start({"w1": weights}, beta, settings)
    params, v = dict(learned.params), dict(learned.second_moment)
    for part in ("w1", name):
        params[part] = np.concatenate([params[part], new.params[part]])
        v[part] = np.concatenate([v[part], new.second_moment[part]])
    return learned._replace(params=params, second_moment=v)


def update(learned, labels, log_prior, settings, seed, chunk_index):
    """Lines 10–27: learn from the chunk `labels`, (N, K)."""
    params, v, t = dict(learned.params), dict(learned.second_moment), learned.step + 1
    n_items, size = len(labels), settings.minibatch_items
    key = jax.random.fold_in(jax.random.key(seed), chunk_index)
    losses = []
    for epoch in range(settings.epochs):  # line 11
        if n_items <= size:
            batches = [np.arange(n_items)]
        else:
            order = np.asarray(shuffle(jax.random.fold_in(key, epoch), n_items, n_items))
            batches = [order[b : b + size] for b in range(0, n_items, size)]
        total = 0.0
        for batch in batches:  # lines 12–13
            value, grads = loss_and_grads(params, labels[batch], log_prior, settings)
            params, v = STEPS[settings.optimizer](params, v, grads, t, settings)
            t += 1
            total += value * len(batch)
        losses.append(total / n_items)
        if epoch and abs(losses[-1] - losses[-2]) < settings.tolerance * abs(losses[-2]):
            break  # "until convergence using marginal loss as stopping criteria"
    return Learned(params, v, t - 1, tuple(losses))


def aggregate(learned, labels):
    """Lines 28–30: the class under which the labels are likeliest; and the log likelihoods."""
    pi = confusion(learned.params)  # line 28
    log_likelihood = np.zeros((len(labels), pi.shape[1]))
    for i, row in enumerate(labels):
        for k, label in enumerate(row):
            if label != MISSING:  # Π_k Π_z π_{c,z}^{(k)} ^ I(l_ik = z), in logs
                log_likelihood[i] += np.log(pi[k, :, label])
    return log_likelihood.argmax(axis=1), log_likelihood


def confusion(params):
    """π, (K, C, C)."""
    if "omega" in params:
        return softmax(params["omega"])
    right = 1 / (1 + np.exp(-params["lam"]))  # (K, 2)
    return np.stack(
        [
            np.stack([right[:, 0], 1 - right[:, 0]], axis=1),
            np.stack([1 - right[:, 1], right[:, 1]], axis=1),
        ],
        axis=1,
    )


def loss_and_grads(params, labels, log_prior, settings):
    """Eq. (minilossprac) on a minibatch, (M, K), and ∇f by hand: lines 14–22."""
    M = len(labels)
    activations, logits = forward(params, labels, settings)
    log_q = logits - logsumexp(logits)
    q = np.exp(log_q)
    log_p = log_likelihood(params, labels)
    # f = 1/M Σ_i Σ_c q_ic s_ic with s_ic = ζ (log q_ic − log p_c) − log p(l_i | c)
    s = settings.kl_weight * (log_q - log_prior) - log_p
    value = (q * s).sum() / M
    # ∂q_a/∂h_c = q_a (I(a = c) − q_c), and Σ_c q_c ∂log q_c/∂h vanishes:
    # ∂f/∂h_ic = 1/M q_ic (s_ic − Σ_a q_ia s_ia)
    delta = q * (s - (q * s).sum(axis=1, keepdims=True)) / M
    grads = {}
    for layer in range(len(activations), 0, -1):
        below, weight = activations[layer - 1], params[f"w{layer}"]
        grads[f"w{layer}"] = (below.T @ delta).reshape(weight.shape)
        grads[f"b{layer}"] = delta.sum(axis=0)
        if layer > 1:  # tanh' = 1 − tanh²
            delta = (delta @ weight.T) * (1 - below**2)
    # ∂f/∂log p(l_i | c) = −q_ic / M
    if "omega" in params:
        psi = softmax(params["omega"])
        grad = np.zeros_like(psi)
        for k in range(labels.shape[1]):
            here = labels[:, k] != MISSING
            said = np.eye(psi.shape[2])[labels[here, k]]  # (m, C)
            for c in range(psi.shape[1]):
                # ∂log ψ_{ck,l}/∂ω_{ck,z} = I(l = z) − ψ_{ck,z}
                grad[k, c] = -(q[here, c, None] * (said - psi[k, c])).sum(axis=0) / M
        grads["omega"] = grad
    else:
        ability = params["lam"]
        grad = np.zeros_like(ability)
        for k in range(labels.shape[1]):
            here = labels[:, k] != MISSING
            for c in range(ability.shape[1]):
                # right: ∂/∂λ log 1/(1+e^−λ) = 1 − σ(λ); wrong: ∂/∂λ log e^−λ/(1+e^−λ) = −σ(λ)
                slope = (labels[here, k] == c) - 1 / (1 + np.exp(-ability[k, c]))
                grad[k, c] = -(q[here, c] * slope).sum() / M
        grads["lam"] = grad
    return value, grads


def forward(params, labels, settings):
    """Line 18, with any number of layers: what each layer is fed, and h, (M, C)."""
    fed = encode(labels, settings)
    activations = [fed]
    n_layers = sum(name.startswith("w") for name in params)
    for layer in range(1, n_layers + 1):
        weight = params[f"w{layer}"].reshape(activations[-1].shape[1], -1)
        h = activations[-1] @ weight + params[f"b{layer}"]
        if layer < n_layers:
            activations.append(np.tanh(h))
    return activations, h


def encode(labels, settings):
    """The network's input: the class numbers with −1 (M, K), or one-hot (M, K·C)."""
    if settings.labels_as == "index":
        return labels.astype(np.float64)
    one_hot = labels[:, :, None] == np.arange(settings.n_classes)
    return one_hot.reshape(len(labels), -1).astype(np.float64)


def log_likelihood(params, labels):
    """Line 21, or Appendix B: log p(l_i | y = c), (M, C)."""
    log_pi = np.log(confusion(params))
    total = np.zeros((len(labels), log_pi.shape[1]))
    for k in range(labels.shape[1]):
        here = labels[:, k] != MISSING
        total[here] += log_pi[k][:, labels[here, k]].T
    return total


def _bounded_step(params, v, grads, t, settings):
    """Lines 23–26."""
    mu, gamma = settings.learning_rate, settings.decay
    lower, upper = 0.1 - 0.1 / ((1 - gamma) * t + 1), 0.1 + 0.1 / ((1 - gamma) * t)
    mu_t = mu * np.sqrt(1 - gamma**t)
    after, v_t = {}, {}
    for name, g in grads.items():
        v_t[name] = gamma * v[name] + (1 - gamma) * g * g
        with np.errstate(divide="ignore"):  # a gradient that was always 0 has the largest step
            ratio = mu_t / np.sqrt(v_t[name])
        eta = np.clip(ratio, lower, upper) / np.sqrt(t)
        after[name] = params[name] - eta * g
    return after, v_t


def _clipped_rmsprop_step(params, v, grads, t, settings):
    """Gradients clipped to ±1, then RMSProp at a constant rate, ε inside the root."""
    epsilon = {"rmsprop": 1e-7, "tf1_rmsprop": 1e-10}[settings.optimizer]
    after, v_t = {}, {}
    for name, g in grads.items():
        g = np.clip(g, -1, 1)
        v_t[name] = settings.decay * v[name] + (1 - settings.decay) * g * g
        after[name] = params[name] - settings.learning_rate * g / np.sqrt(v_t[name] + epsilon)
    return after, v_t


STEPS = {
    "bounded_rmsprop": _bounded_step,
    "rmsprop": _clipped_rmsprop_step,
    "tf1_rmsprop": _clipped_rmsprop_step,
}
FIRST_SECOND_MOMENT = {"bounded_rmsprop": 0.0, "rmsprop": 0.0, "tf1_rmsprop": 1.0}


def vote_counts(labels, n_classes):
    """How many labels z worker k gave where the majority says c, (K, C, C).

    Classes that tie for the majority share the item.
    """
    counts = np.zeros((labels.shape[1], n_classes, n_classes))
    for row in labels:
        votes = np.bincount(row[row != MISSING], minlength=n_classes)
        winners = np.flatnonzero(votes == votes.max())
        for k, label in enumerate(row):
            if label != MISSING:
                counts[k, winners, label] += 1 / len(winners)
    return counts


def first_beta(labels, settings):
    """β "by its definition and majority voting" on the initial set L*, (K, C, C) or (K, C).

    The paper is silent on cells and rows that no label fills. As documented for the package: one
    may be added to every count; without that, a frequency counts as at least 1/1000, and an empty
    row as one of accuracy 0.7.
    """
    C = settings.n_classes
    counts = vote_counts(labels, C) + settings.init_smoothing
    total = counts.sum(axis=2, keepdims=True)
    empty = total == 0
    frequencies = np.divide(counts, total, out=np.zeros_like(counts), where=~empty)
    if settings.generative == "worker_ability":
        right = np.where(empty[:, :, 0], 0.7, np.diagonal(frequencies, axis1=1, axis2=2))
        right = np.clip(right, 1e-3, 1 - 1e-3)
        return np.log(right / (1 - right))
    if settings.init_from == "frequencies":
        return frequencies
    guess = np.where(np.eye(C) > 0, 0.7, 0.3 / (C - 1))
    filled = np.where(empty, guess, frequencies)
    return np.log(filled if settings.init_smoothing else np.maximum(filled, 1e-3))


def flat_beta(n_workers, settings):
    """β of workers absent from the initial set: ψ = 1/C; where frequencies are logits, they are 0.

    In BiLA-WA such a worker is right one time in two, λ = 0.
    """
    C = settings.n_classes
    if settings.generative == "worker_ability":
        return np.zeros((n_workers, C))
    logit = 0 if settings.init_from == "frequencies" else np.log(1 / C)
    return np.full((n_workers, C, C), logit)


def log_label_shares(labels, n_classes):
    """Eq. (priorest) in logs, (C,); a class nobody named counts as half a label."""
    counts = np.bincount(labels[labels != MISSING], minlength=n_classes)
    counts = np.maximum(counts, 0.5)
    return np.log(counts / counts.sum())


def softmax(logits):
    return np.exp(logits - logsumexp(logits))


def logsumexp(logits):
    top = logits.max(axis=-1, keepdims=True)
    return top + np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
