"""The engine against an independent NumPy version of Algorithm 1 (`reference.py`)."""

import numpy as np
import pytest
from learn import reference

from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.bila import PRESETS, bila
from labelquorum.trial.crowds import class_conditional_crowd

SEED = 11
N_WORKERS = 7
CHUNK_ITEMS = (62, 37, 55)  # two minibatches of 50, less than one, two; all in one bucket
TOLERANCE = 1e-5


def three_chunks(n_classes, seed):
    """Three dense matrices (N, K) in which every worker is present from the first one on."""
    crowd = class_conditional_crowd(
        sum(CHUNK_ITEMS), N_WORKERS, n_classes, labels_per_item=4, skill=(0.6, 0.9), seed=seed
    )
    dense = np.full((sum(CHUNK_ITEMS), N_WORKERS), reference.MISSING)
    dense[crowd.item, crowd.worker] = crowd.label
    return np.split(dense, np.cumsum(CHUNK_ITEMS)[:-1])


def as_chunk(dense, n_classes):
    item, worker = np.nonzero(dense != reference.MISSING)
    return make_chunk(
        item,
        worker,
        dense[item, worker],
        n_items=len(dense),
        n_workers=dense.shape[1],
        n_classes=n_classes,
    )


def parameters(state):
    """The engine's θ under the reference's names."""
    leaves = {**state.shared, **state.rows.to_arrays()}
    renamed = {"confusion_logits": "omega", "ability_logits": "lam"}
    names = [name for name in leaves if name.startswith("params.")]
    return {renamed.get(last := name.split(".")[-1], last): leaves[name] for name in names}


def deviation(ours, theirs):
    """The largest difference of any parameter, relative to the largest number in its array."""
    assert ours.keys() == theirs.keys()
    return max(
        np.abs(ours[name] - value).max() / (np.abs(value).max() or 1.0)
        for name, value in theirs.items()
    )


def run_both(options, *, n_classes, seed=2):
    """Yield after each chunk: engine state and info, the reference, both answers and matrices."""
    dense = three_chunks(n_classes, seed)
    chunks = [as_chunk(labels, n_classes) for labels in dense]
    method = bila(**options)
    state = method.init(chunks[0], SEED)

    known = {name: options[name] for name in reference.Settings._fields if name in options}
    settings = reference.Settings(**known, n_classes=n_classes)
    alpha = {name: w for name, w in parameters(state).items() if name not in ("omega", "lam")}
    init_from = options.get("init_from", "log_frequencies")
    learned = reference.start(alpha, reference.first_beta(dense[0], settings, init_from))
    assert deviation(parameters(state), learned.params) < 1e-6

    for chunk_index, (labels, chunk) in enumerate(zip(dense, chunks, strict=True)):
        counted = labels if options["class_prior"] == "chunk" else dense[0]
        log_prior = reference.log_label_shares(counted, n_classes)
        state, info = method.update(state, chunk)
        learned = reference.update(learned, labels, log_prior, settings, SEED, chunk_index)
        answer = method.aggregate(state, chunk)
        yield state, info, learned, labels, answer, method.confusion(state, np.arange(N_WORKERS))


CONFUSION_MATRIX = {"generative": "confusion_matrix"}
WORKER_ABILITY = {"generative": "worker_ability"}
ONE_HOT = {"labels_as": "one_hot", "minibatch_items": 17}  # up to four minibatches
CASES = {
    "paper-confusion_matrix": ("www2021", CONFUSION_MATRIX, 3),
    "paper-worker_ability": ("www2021", WORKER_ABILITY, 2),
    "paper-one_hot": ("www2021", ONE_HOT | {"hidden_sizes": (9, 6, 5), "kl_weight": 0.7}, 3),
    "authors-confusion_matrix": ("authors", CONFUSION_MATRIX, 3),
    "authors-one_hot": ("authors", ONE_HOT | {"hidden_sizes": (8,)}, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_three_chunks_give_the_parameters_and_labels_of_algorithm_1(case):
    preset, changes, n_classes = CASES[case]
    options = {**PRESETS[preset], **changes}
    steps = 0
    for state, info, learned, labels, answer, matrices in run_both(options, n_classes=n_classes):
        assert info.epochs == len(learned.losses)
        np.testing.assert_allclose(info.losses, learned.losses, rtol=1e-5)
        steps += info.steps
        assert steps == state.step == learned.step
        assert deviation(parameters(state), learned.params) < TOLERANCE

        np.testing.assert_allclose(matrices, reference.confusion(learned.params), atol=TOLERANCE)
        aggregated, log_likelihood = reference.aggregate(learned, labels)
        best = np.sort(log_likelihood, axis=1)
        assert (best[:, -1] - best[:, -2]).min() > 1e-4, "all but a tie: take another seed"
        np.testing.assert_array_equal(answer.aggregated, aggregated)
        np.testing.assert_allclose(answer.probs, reference.softmax(log_likelihood), atol=1e-4)


def test_the_comparison_would_notice_a_small_change_of_the_algorithm():
    """Another γ, ζ, μ or order ends far outside the tolerance after one chunk.

    μ least of all: the bounds, not μ/√v, decide most steps.
    """
    labels = three_chunks(3, 2)[0]
    settings = reference.Settings(n_classes=3)
    rng = np.random.default_rng(0)
    alpha = {"w1": rng.normal(size=(N_WORKERS, 8)) / 3, "b1": np.zeros(8)}
    alpha |= {"w2": rng.normal(size=(8, 3)) / 3, "b2": np.zeros(3)}
    start = reference.start(alpha, reference.first_beta(labels, settings, "log_frequencies"))
    log_prior = reference.log_label_shares(labels, 3)

    def learned(chunk_index=0, **changes):
        changed = settings._replace(**changes)
        return reference.update(start, labels, log_prior, changed, SEED, chunk_index).params

    as_it_is = learned()
    assert deviation(start.params, as_it_is) > 1000 * TOLERANCE
    for changes in ({"decay": 0.891}, {"kl_weight": 0.101}, {"learning_rate": 1.1e-3}):
        assert deviation(learned(**changes), as_it_is) > 10 * TOLERANCE
    assert deviation(learned(chunk_index=1), as_it_is) > 10 * TOLERANCE
