"""The engine against an independent NumPy version of Algorithm 1 (`reference.py`)."""

import numpy as np
import pytest
from learn import reference

from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.bila import PRESETS, bila
from labelquorum.trial.crowds import class_conditional_crowd

SEED = 11
N_WORKERS = 7
CHUNK_ITEMS = (130, 37, 75)  # three minibatches, less than one, two
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


def run_both(options, *, n_classes, seed=0):
    """Yield after each chunk: engine state and info, the reference, both answers, the margin."""
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
        aggregated, log_likelihood = reference.aggregate(learned, labels)
        best = np.sort(log_likelihood, axis=1)
        margin = (best[:, -1] - best[:, -2]).min()
        yield state, info, learned, method.aggregate(state, chunk), aggregated, margin


CASES = {
    "paper-confusion_matrix": ("www2021", {"generative": "confusion_matrix"}, 3),
    "paper-worker_ability": ("www2021", {"generative": "worker_ability"}, 2),
    "paper-one_hot-confusion_matrix": (
        "www2021",
        {"labels_as": "one_hot", "generative": "confusion_matrix"},
        3,
    ),
    "paper-one_hot-worker_ability": (
        "www2021",
        {"labels_as": "one_hot", "generative": "worker_ability"},
        2,
    ),
    "paper-one_hot-linear": ("www2021", {"labels_as": "one_hot", "hidden_sizes": ()}, 4),
    "paper-three_layers": ("www2021", {"hidden_sizes": (9, 6, 5), "kl_weight": 0.7}, 3),
    "authors-confusion_matrix": ("authors", {"generative": "confusion_matrix"}, 3),
    "authors-worker_ability": ("authors", {"generative": "worker_ability"}, 2),
    "authors-one_hot": ("authors", {"labels_as": "one_hot", "learning_rate": 1e-3}, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_three_chunks_give_the_parameters_and_labels_of_algorithm_1(case):
    preset, changes, n_classes = CASES[case]
    options = {**PRESETS[preset], **changes}
    steps = 0
    for state, info, learned, answer, aggregated, margin in run_both(options, n_classes=n_classes):
        assert info.epochs == len(learned.losses)
        np.testing.assert_allclose(info.losses, learned.losses, rtol=1e-5)
        steps += info.steps
        assert steps == state.step == learned.step
        assert deviation(parameters(state), learned.params) < TOLERANCE
        assert margin > 1e-4, "choose another seed: an item is all but tied"
        np.testing.assert_array_equal(answer.aggregated, aggregated)


def test_the_parameters_that_agree_have_moved():
    """Were nothing learned, the comparison above would hold for any optimiser."""
    options = {**PRESETS["www2021"], "generative": "confusion_matrix"}
    states = [state for state, *_ in run_both(options, n_classes=3)]
    for before, after in zip(states, states[1:], strict=False):
        assert deviation(parameters(before), parameters(after)) > 100 * TOLERANCE


def test_the_comparison_would_notice_another_optimiser():
    """The same data under a γ that differs by 1 % end up far outside the tolerance."""
    first = bila(**PRESETS["www2021"])
    second = bila(**PRESETS["www2021"], decay=0.891)
    chunk = as_chunk(three_chunks(3, 0)[0], 3)
    one, _ = first.update(first.init(chunk, SEED), chunk)
    other, _ = second.update(second.init(chunk, SEED), chunk)
    assert deviation(parameters(one), parameters(other)) > 10 * TOLERANCE


def test_the_rows_of_the_confusion_matrices_follow_the_parameters():
    for generative, n_classes in (("confusion_matrix", 3), ("worker_ability", 2)):
        method = bila(generative=generative, epochs=3)
        chunk = as_chunk(three_chunks(n_classes, 1)[0], n_classes)
        state, _ = method.update(method.init(chunk, SEED), chunk)
        theta = {name: value.astype(np.float64) for name, value in parameters(state).items()}
        np.testing.assert_allclose(
            method.confusion(state, np.arange(N_WORKERS)), reference.confusion(theta), atol=1e-6
        )
