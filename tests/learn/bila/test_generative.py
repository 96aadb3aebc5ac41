"""p: how each starts, what it refuses, and one of your own in a dozen lines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learn.bila import reference

from labelquorum.errors import LabelError, StateError
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.evaluation.simulate.oracle import oracle_error
from labelquorum.ingest.chunks import make_chunk
from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.bila import bila
from labelquorum.learn.bila.generative import (
    GENERATIVE_MODELS,
    GenerativeModel,
    Newcomers,
    Params,
    confusion_matrix,
    worker_ability,
)
from labelquorum.learn.bila.minibatch import sum_by_item
from labelquorum.learn.bila.presets import settings_of

# --- one of your own -----------------------------------------------------------------------------


def one_coin():
    """Worker k is right with probability σ(coin + coin_k), the other classes share the rest."""

    def init(newcomers):
        return Params(
            {"coin": jnp.ones(newcomers.n_classes)}, {"own": 0.0 * newcomers.votes[:, 0, 0]}
        )

    def confusion(params):  # (K, C, C)
        coin = params.shared["coin"]
        right = jax.nn.sigmoid(coin + params.per_worker["own"][:, None])[:, :, None]
        return jnp.where(jnp.eye(len(coin)) > 0, right, (1 - right) / (len(coin) - 1))

    def log_likelihood(params, batch):  # (M, C)
        return sum_by_item(jnp.log(confusion(params))[batch.worker, :, batch.label], batch)

    return GenerativeModel("one_coin", init, log_likelihood, confusion)


def test_a_generative_model_of_your_own_plugs_in_and_learns():
    crowd = class_conditional_crowd(
        480, 12, 3, labels_per_item=5, skill=(0.35, 0.95), concentration=1000, seed=5
    )
    method, state, errors, votes = (
        bila(**settings_of("network", generative=one_coin(), learning_rate=0.05)),
        None,
        [],
        [],
    )
    for start in range(0, 480, 48):
        rows = (crowd.item >= start) & (crowd.item < start + 48)
        item, worker, label = crowd.item[rows] - start, crowd.worker[rows], crowd.label[rows]
        chunk = make_chunk(item, worker, label, n_workers=12, n_classes=3)
        state = method.init(chunk, 0) if state is None else state
        state, _ = method.update(state, chunk)
        truth = crowd.truth[start : start + 48]
        errors.append((method.aggregate(state, chunk).aggregated != truth).mean())
        counts = np.zeros((48, 3))
        np.add.at(counts, (item, label), 1)
        votes.append((counts.argmax(axis=1) != truth).mean())
    assert np.mean(errors[5:]) < 0.8 * np.mean(votes[5:])
    assert np.mean(errors) < oracle_error(crowd) + 0.05
    # It tells good workers from bad, and what all share has moved too.
    skill = np.diagonal(crowd.confusion, axis1=1, axis2=2).mean(axis=1)
    learned = method.confusion(state, np.arange(12))[:, 0, 0]
    assert np.corrcoef(skill, learned)[0, 1] > 0.9
    assert (state.shared["params.generative.shared.coin"] != 1).all()
    assert state.rows.to_arrays()["params.generative.per_worker.own"].shape == (12,)


# --- how workers start ---------------------------------------------------------------------------


def newcomers(votes, crowd_votes=None):
    votes = jnp.asarray(votes, jnp.float32)
    keys = jax.random.split(jax.random.key(0), len(votes))
    crowd = jnp.zeros(votes.shape[1:]) if crowd_votes is None else jnp.asarray(crowd_votes)
    return Newcomers(votes, crowd, keys, keys[0], jnp.int32(len(votes)))


VOTES = np.array([[[8, 2, 0], [0, 0, 0], [1, 1, 2]], [[1, 0, 0], [0, 3, 0], [2, 2, 0]]])


def test_bare_frequencies_are_the_start_where_the_crowd_counts_for_nothing():
    model = confusion_matrix(init_strength=0.0)
    start = np.asarray(model.confusion(model.init(newcomers(VOTES))))
    # Zero cells start at 1/1000, before the row is normalised; an empty row at accuracy 0.7.
    np.testing.assert_allclose(start[0, 0], np.array([0.8, 0.2, 0.001]) / 1.001, rtol=1e-5)
    np.testing.assert_allclose(start[0, 1], [0.15, 0.7, 0.15], rtol=1e-5)
    np.testing.assert_allclose(start[0, 2], [0.25, 0.25, 0.5], rtol=1e-5)


def test_frequencies_as_logits_are_the_authors_nearly_flat_start():
    model = confusion_matrix("frequencies", init_strength=0.0)
    params = model.init(newcomers(VOTES))
    logits = params.per_worker["confusion_logits"]
    np.testing.assert_allclose(logits[0, 0], [0.8, 0.2, 0], atol=1e-6)
    np.testing.assert_array_equal(logits[0, 1], 0)
    start = np.asarray(model.confusion(params))
    np.testing.assert_allclose(start, reference.softmax(np.asarray(logits)), atol=1e-6)
    assert start.max() < 0.6


def test_the_crowds_average_counts_as_so_many_labels():
    crowd = np.array([[90, 0, 0], [0, 40, 50], [0, 0, 0]])
    model = confusion_matrix(init_strength=4.0)
    start = np.asarray(model.confusion(model.init(newcomers(VOTES, crowd))))
    # The crowd's row: 90 labels and ten of the guess (0.7, 0.15, 0.15).
    average = np.array([97, 1.5, 1.5]) / 100
    np.testing.assert_allclose(start[0, 0], (np.array([8, 2, 0]) + 4 * average) / 14, rtol=1e-5)
    np.testing.assert_allclose(start[0, 1], np.array([1.5, 47, 51.5]) / 100, rtol=1e-5)


@pytest.mark.parametrize("init_from", ["log_frequencies", "frequencies"])
def test_smoothing_is_added_to_every_count_and_there_is_no_floor_then(init_from):
    model = confusion_matrix(init_from, init_strength=0.0, init_smoothing=1.0)
    votes = np.array([[[8, 2, 0], [0, 0, 0], [1997, 0, 0]]])
    logits = np.asarray(model.init(newcomers(votes)).per_worker["confusion_logits"])
    smoothed = np.array([[9 / 13, 3 / 13, 1 / 13], [1 / 3] * 3, [1998 / 2000, 1 / 2000, 1 / 2000]])
    expected = smoothed if init_from == "frequencies" else np.log(smoothed)
    np.testing.assert_allclose(logits[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("init_from", ["log_frequencies", "frequencies"])
def test_flat_rows_are_for_workers_who_are_not_of_the_initial_set(init_from):
    options = {"init_from": init_from, "init_strength": 2.0}
    flat, votes = (confusion_matrix(**options, newcomer_rows=rows) for rows in ("flat", "votes"))
    of_the_first_chunk = newcomers(VOTES, np.full((3, 3), 5.0))
    later = of_the_first_chunk._replace(initial=False)
    np.testing.assert_allclose(flat.confusion(flat.init(later)), 1 / 3, rtol=1e-6)
    # Their logits are on the scale of the others', which is what a new class is added to.
    logits = flat.init(later).per_worker["confusion_logits"]
    np.testing.assert_allclose(logits, 0 if init_from == "frequencies" else np.log(1 / 3))
    for model, start in ((flat, of_the_first_chunk), (votes, later)):
        np.testing.assert_array_equal(
            model.confusion(model.init(start)),
            votes.confusion(votes.init(of_the_first_chunk)),
        )


def test_an_ability_is_smoothed_and_flat_at_one_half():
    votes = np.array([[[8, 2], [0, 0]]])
    smoothed = worker_ability(init_strength=0.0, init_smoothing=1.0)
    ability = np.asarray(smoothed.init(newcomers(votes)).per_worker["ability_logits"])
    np.testing.assert_allclose(ability, [[np.log(9 / 3), 0]], atol=1e-6)
    flat = worker_ability(newcomer_rows="flat")
    later = flat.init(newcomers(votes)._replace(initial=False))
    np.testing.assert_allclose(later.per_worker["ability_logits"], 0, atol=1e-6)


def test_an_ability_starts_at_the_log_odds_of_agreeing_with_the_majority():
    model = worker_ability(init_strength=0.0)
    votes = np.array([[[8, 2], [0, 0]], [[5, 0], [3, 1]]])
    ability = np.asarray(model.init(newcomers(votes)).per_worker["ability_logits"])
    odds = np.log(np.array([[0.8 / 0.2, 0.7 / 0.3], [0.999 / 0.001, 0.25 / 0.75]]))
    np.testing.assert_allclose(ability, odds, rtol=1e-4)


@pytest.mark.parametrize("name", GENERATIVE_MODELS)
@pytest.mark.parametrize("n_classes", [1, 2])
def test_the_rows_of_every_confusion_matrix_sum_to_one(name, n_classes):
    model = GENERATIVE_MODELS[name]()
    params = model.init(newcomers(np.ones((4, n_classes, n_classes))))
    matrices = np.asarray(model.confusion(params))
    assert matrices.shape == (4, n_classes, n_classes)
    np.testing.assert_allclose(matrices.sum(axis=2), 1, rtol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "confusion_matrix",
        "worker_ability",
    ],
)
def test_the_confusion_matrix_of_a_sure_worker_keeps_its_small_numbers(name):
    """log_evidence is the log of `confusion`, so it must agree with `log_likelihood`."""
    model = GENERATIVE_MODELS[name]()
    params = model.init(newcomers(np.zeros((2, 2, 2))))
    sure = {"confusion_logits": jnp.array([[[9.0, -9.0], [-9.0, 9.0]]] * 2)}
    sure["ability_logits"] = jnp.full((2, 2), 18.0)  # the same matrix
    params = params._replace(per_worker={key: sure[key] for key in params.per_worker})
    wrong = np.asarray(model.confusion(params))[0, 0, 1]
    assert wrong == pytest.approx(1 / (1 + np.exp(18.0)), rel=1e-5)


# --- what is refused -----------------------------------------------------------------------------

TOO_MANY = (
    r"^The generative model 'worker_ability' knows at most 2 classes\. Got 3\. "
    r"Use generative='confusion_matrix'\.$"
)


@pytest.mark.slow
def test_worker_ability_refuses_more_than_two_classes_wherever_they_appear():
    three = make_chunk([0, 0, 1], [0, 1, 0], [0, 1, 2])
    two = make_chunk([0, 0, 1], [0, 1, 0], [0, 1, 1])
    method = bila(**settings_of("network", generative="worker_ability"))
    with pytest.raises(LabelError, match=TOO_MANY):
        method.init(three, 0)
    state, _ = method.update(method.init(two, 0), two)
    with pytest.raises(LabelError, match=TOO_MANY):
        method.update(state, three)
    with pytest.raises(LabelError, match=TOO_MANY):
        method.aggregate(state, three)
    with pytest.raises(LabelError, match=TOO_MANY):
        bila(LabelSpace(("a", "b", "c")), **settings_of("network", generative="worker_ability"))
    # And the state is as good as before.
    assert method.aggregate(state, two).aggregated.shape == (2,)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (
            lambda: confusion_matrix(init_from="logs"),
            r"`init_from` of confusion_matrix must be 'log_frequencies' or 'frequencies'\. "
            r"Got 'logs'\.",
        ),
        (
            lambda: confusion_matrix(init_strength=-1),
            r"`init_strength` of confusion_matrix must be a number ≥ 0\. Got -1\.",
        ),
        (
            lambda: confusion_matrix(init_smoothing=-0.5),
            r"`init_smoothing` of confusion_matrix must be a number ≥ 0\. Got -0\.5\.",
        ),
        (
            lambda: confusion_matrix(newcomer_rows="even"),
            r"`newcomer_rows` of confusion_matrix must be one of \['votes', 'flat'\]\. "
            r"Got 'even'\.",
        ),
        (
            lambda: bila(init_smoothing=-1),
            r"`init_smoothing` of bila must be a number ≥ 0\. Got -1\.",
        ),
        (
            lambda: bila(newcomer_rows="even"),
            r"`newcomer_rows` of bila must be one of \['votes', 'flat'\]\. Got 'even'\.",
        ),
        (
            lambda: bila(generative="glad"),
            r"`generative` of bila must be one of "
            r"\['two_accounts', 'hierarchical', 'one_coin', 'confusion_matrix', "
            r"'worker_ability'\]\. "
            r"Got 'glad'\.",
        ),
    ],
    ids=lambda value: value.split("`")[1] if isinstance(value, str) else "",
)
def test_an_argument_out_of_range_is_refused_in_one_sentence(build, sentence):
    with pytest.raises(StateError, match=f"^{sentence}$"):
        build()


@pytest.mark.parametrize(
    "options",
    [
        {"init_strength": -1},
        {"init_accuracy": 1.5},
        {"init_smoothing": float("nan")},
        {"newcomer_rows": "crowd"},
    ],
    ids=str,
)
def test_worker_ability_refuses_arguments_out_of_range(options):
    with pytest.raises(StateError, match=r"of worker_ability must"):
        worker_ability(**options)
