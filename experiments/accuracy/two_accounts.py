# ruff: noqa: E501, N803
"""Two worker models: the best variant so far as plain NumPy (a reference, not fast).

Two aggregators read the same stream. The *plain* one knows one accuracy per worker (rows of S); the *rich* one is
the recipe (shared matrix G, worker tilt, worker label bias). The rich answers are emitted unless believing them makes the
average worker look clearly less skilled. Raw labels are dropped after each chunk.
"""

import numpy as np

KAPPA, G0, MIX, INNER = (
    5.0,
    50.0,
    0.7,
    10,
)  # pooling cap, prior weight of S in G, prior mix, inner steps
SIGMA_A, SIGMA_B = 1.0, 0.5  # spread of worker tilts and of worker biases
OWN = 0.005  # weight of a worker's own counts beside the model: 200 labels per class weigh as much
DROP, NOISE = 0.10, 4.0  # log skill may fall by 0.1 plus 4 / items before we distrust
# temper = n ** (x / (1 + x)), x = rho / RHO_HALF + w u / GAIN_HALF: rho the residual correlation, u what a label
# gains by supposing that a share of the items is clear, their labels given by m ** CLARITY, normalised
RHO_HALF, GAIN_HALF, CLARITY, CLEAR_SHARE = 0.04, 0.005, 3.0, 0.2
RHO_OF_CLEAR = 0.01
# x counts for more with many classes, and temper for more where answers and labels name other classes
PER_CLASS, SHIFT, SHIFT_NOISE, PER_SHIFT = 0.5, 0.09, 0.5, 10.0


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Account:
    """State: N (K,C,C) soft counts, theta (K,D), P (C,C) pooled counts, nu (C,) classes, pairs and tally."""

    def __init__(self, n_classes, rich):
        self.C, self.rich = n_classes, rich
        eye = np.eye(n_classes)
        tilt = eye[:, :, None]  # x[c,z] = 1[c=z]
        bias = np.broadcast_to(eye, (n_classes,) * 3)  # x[c,z] = e_z
        self.X = np.concatenate([tilt, bias], 2) if rich else tilt  # (C,C,D)
        self.precision = (
            np.r_[SIGMA_A**-2, [SIGMA_B**-2] * n_classes] if rich else np.array([SIGMA_A**-2])
        )
        self.N = np.zeros((0, n_classes, n_classes))
        self.theta = np.zeros((0, self.X.shape[2]))
        self.P, self.nu = np.zeros((n_classes, n_classes)), np.zeros(n_classes)
        self.pairs = np.zeros(
            (2, n_classes)
        )  # observed and expected-scale pair products of residuals, by class
        self.tally = np.zeros((3, n_classes))  # sum of residuals, labels, pairs of labels, by class
        self.gain = 0.0  # nats gained by clear items

    def grow(self, n_workers):
        more = n_workers - len(self.N)
        if more > 0:
            self.N = np.concatenate([self.N, np.zeros((more, self.C, self.C))])
            self.theta = np.concatenate([self.theta, np.zeros((more, self.theta.shape[1]))])

    def centre(self, P, weight):
        """(P + weight S) / row sums; S has the pooled accuracy on its diagonal."""
        acc = (np.trace(P) + 7) / (P.sum() + 10)
        S = np.full((self.C, self.C), (1 - acc) / max(self.C - 1, 1))
        np.fill_diagonal(S, acc)
        if np.isinf(weight):
            return S
        G = P + weight * S
        return G / G.sum(1, keepdims=True)

    def base(self, P):
        return np.log(self.centre(P, G0 if self.rich else np.inf))

    def skill(self, P):
        """Class-balanced skill of the average worker: 0 chance, 1 perfect."""
        return (np.trace(self.centre(P, 1.0)) / self.C - 1 / self.C) / (1 - 1 / self.C)

    def matrices(self, theta, base):
        return softmax(base + np.einsum("czd,wd->wcz", self.X, theta))

    def newton(self, N, theta, base):
        m, n = self.matrices(theta, base), N.sum(2)
        grad = np.einsum("wcz,czd->wd", N - n[:, :, None] * m, self.X) - theta * self.precision
        mean = np.einsum("wcz,czd->wcd", m, self.X)
        hess = np.einsum("wc,wcz,czd,cze->wde", n, m, self.X, self.X) - np.einsum(
            "wc,wcd,wce->wde", n, mean, mean
        )
        hess += np.diag(self.precision)
        return theta + np.clip(np.linalg.solve(hess, grad[:, :, None])[:, :, 0], -1, 1)

    def prior(self, f, nu):
        u, v = (f + 1) / (f + 1).sum(), (nu + 1) / (nu + 1).sum()
        w = np.sqrt(u * v)
        return np.log(MIX * w / w.sum() + (1 - MIX) / self.C)

    def learn(self, item, rows, worker, label, n_items, f):
        """rows: distinct workers of the chunk; worker: index into rows; item: 0..n_items-1; f: label shares so far."""

        def counts(q):
            dN = np.zeros((len(rows), self.C, self.C))
            np.add.at(dN.transpose(0, 2, 1), (worker, label), q[item])
            return dN

        def pooled(N):
            return (N * KAPPA / (KAPPA + N.sum(2, keepdims=True))).sum(0)

        def matrices(theta, base, N):
            m = self.matrices(theta, base)
            return (m + OWN * N) / (1 + OWN * N.sum(2, keepdims=True)) if self.rich else m

        def posterior(m, nu):
            logit = np.tile(self.prior(f, nu), (n_items, 1))
            np.add.at(logit, item, np.log(m[worker, :, label]))
            return softmax(logit)

        N, theta = self.N[rows], self.theta[rows]
        rest = self.P - pooled(N)
        theta = self.newton(N, theta, self.base(self.P))
        q = posterior(matrices(theta, self.base(self.P), N), self.nu)
        for _ in range(INNER):
            N1 = N + counts(q)
            base = self.base(rest + pooled(N1))
            theta = self.newton(N1, theta, base)
            m = matrices(theta, base, N1)
            q = posterior(m, self.nu + q.sum(0))
        self.N[rows] = N + counts(q)
        self.theta[rows], self.P, self.nu = theta, rest + pooled(self.N[rows]), self.nu + q.sum(0)
        # products of the residuals of two labels of one item, in expectation over q: 0 if the account is right
        hit = m[worker].diagonal(axis1=1, axis2=2)  # (L,C) P(label = c | class c)
        r, s = (label[:, None] == np.arange(self.C)) - hit, np.sqrt(hit * (1 - hit))

        def total(x):
            return np.stack([np.bincount(item, x[:, c], n_items) for c in range(self.C)], 1)

        n = np.bincount(item, minlength=n_items)[:, None]
        self.pairs += (
            (q * (total(r) ** 2 - total(r * r))).sum(0),
            (q * (total(s) ** 2 - total(s * s))).sum(0),
        )
        self.tally += (q * total(r)).sum(0), (q * n).sum(0), (q * n * (n - 1)).sum(0)
        cubes = m**CLARITY
        log_prior = self.prior(f, self.nu)
        log_p, log_clear = (
            np.log(np.exp(log_prior + total(np.log(x[worker, :, label]))).sum(1))
            for x in (m, cubes / cubes.sum(2, keepdims=True))
        )
        self.gain += np.log(1 - CLEAR_SHARE + CLEAR_SHARE * np.exp(log_clear - log_p)).sum()
        return q

    def dependence(self):
        """Correlation of two labels of one item beyond the account, freed of each class's mean misfit."""
        residual, labels, pairs = self.tally
        observed = self.pairs[0].sum() - (pairs * (residual / np.maximum(labels, 1e-12)) ** 2).sum()
        return observed / max(self.pairs[1].sum(), 1e-12)


class TwoAccounts:
    def __init__(self, n_classes):
        self.C, self.f, self.n_items, self.rows = n_classes, np.zeros(n_classes), 0, {}
        self.plain, self.rich = Account(n_classes, rich=False), Account(n_classes, rich=True)

    def partial_fit(self, item, worker, label):
        """Ids of items and workers (any hashable), classes 0..C-1. Gives item ids, classes, probabilities."""
        items, item = np.unique(np.asarray(item), return_inverse=True)
        label = np.asarray(label)
        index = np.array(
            [self.rows.setdefault(w, len(self.rows)) for w in np.asarray(worker).tolist()]
        )
        rows, worker = np.unique(index, return_inverse=True)
        n = np.bincount(item)
        self.n_items += len(items)
        self.f += np.bincount(label, 1 / n[item], self.C)
        posteriors = []
        for account in (self.plain, self.rich):
            account.grow(len(self.rows))
            posteriors.append(account.learn(item, rows, worker, label, len(items), self.f))
        chosen, q = (self.rich, posteriors[1]) if self.trust_rich() else (self.plain, posteriors[0])
        u = chosen.gain / chosen.tally[1].sum()
        rho = max(chosen.dependence(), 0.0)
        surely = rho - np.sqrt(2 / max(chosen.tally[2].sum(), 1)) / 2
        x = rho / RHO_HALF + np.clip(surely / RHO_OF_CLEAR, 0, 1) * max(u, 0.0) / GAIN_HALF
        x *= 1 + PER_CLASS * max(1 - 2 / self.C, 0)
        shift = np.abs(chosen.nu / chosen.nu.sum() - self.f / self.n_items).sum() / 2
        beyond = max(shift - SHIFT - SHIFT_NOISE / self.n_items, 0)
        temper = n ** (x / (1 + x)) * (1 + PER_SHIFT * beyond)
        probs = softmax(np.log(np.maximum(q, 1e-300)) / temper[:, None])
        return items, q.argmax(1), probs

    def trust_rich(self):
        plain, rich = self.plain.skill(self.plain.P), self.rich.skill(self.rich.P)
        return rich > plain * np.exp(-DROP - NOISE / self.n_items)
