"""The stack: gold decides where workers are wrong together, and nothing where it says nothing."""

import pickle

import numpy as np
import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.evaluation import class_conditional_crowd
from labelquorum.ingest.chunks import id_key
from labelquorum.learn.bila import bila
from labelquorum.learn.bila.stacking import Stack


class Jury:
    """Judges of three models; two models are fooled together by most tasks, and one is good."""

    def __init__(self, n_tasks=200, n_judges=18, n_classes=2, seed=0):
        rng = np.random.default_rng(seed)
        self.truth = rng.integers(0, n_classes, n_tasks)
        model = np.arange(n_judges) % 3
        fooled = rng.random(n_tasks) < 0.7
        wrong = (self.truth + 1) % n_classes
        seems = np.stack([np.where(fooled, wrong, self.truth)] * 2 + [self.truth], axis=1)
        slips = rng.random((n_tasks, n_judges)) < 0.15
        said = np.where(slips, rng.integers(0, n_classes, slips.shape), seems[:, model])
        self.labels = pd.DataFrame(
            {
                "task": np.repeat(np.arange(n_tasks), n_judges),
                "worker": np.tile([f"j{k}" for k in range(n_judges)], n_tasks),
                "label": said.ravel(),
            }
        )
        names = [f"j{k}" for k in range(n_judges)]
        self.workers = pd.DataFrame({"worker": names, "model": [f"m{m}" for m in model]})

    def gold(self, n):
        return {task: int(self.truth[task]) for task in range(n)}

    def error(self, model, start=50):
        return float((model.labels_.loc[start:] != self.truth[start:]).mean())


@pytest.fixture(scope="module")
def jury():
    return Jury()


def frame(crowd):
    return pd.DataFrame({"task": crowd.item, "worker": crowd.worker, "label": crowd.label})


def stack_of(model):
    return Stack.read(model.model_.learned.state.stack)


def test_gold_and_no_longer_the_classes_named_sets_the_temperature(jury):
    """Without a stack, answers that name other classes than labels do are less sure."""
    method = bila()
    model = lq.BiLA().fit(jury.labels, true_labels=jury.gold(10))
    state = model.model_.learned.state
    name = method.counts.recipe.worker_models[state.speaks]
    shifted = state._replace(class_counts={name: state.label_shares * [1.5, 0.5]})
    few = np.array([2.0, 18.0])
    by_gold = method.temperature(shifted, few, few)
    np.testing.assert_array_equal(by_gold, method.temperature(state, few, few))
    assert (method.temperature(shifted._replace(stack={}), few, few) > 2 * by_gold).all()


def bits(model, folder):
    model.save(folder / "model.lq")
    return (folder / "model.lq").read_bytes()


# ── what gold decides ────────────────────────────────────────────────────────────────────


def test_gold_decides_where_a_jury_is_wrong_together(jury):
    alone = lq.BiLA().fit(jury.labels, workers=jury.workers)
    assert jury.error(alone) > 0.5
    for workers in (jury.workers, None):
        model = lq.BiLA().fit(jury.labels, true_labels=jury.gold(20), workers=workers)
        assert jury.error(model) < 0.1


def test_gold_decides_in_a_stream(jury):
    model = lq.BiLA()
    emitted = []
    for start in range(0, 200, 50):
        part = jury.labels[jury.labels["task"].between(start, start + 49)]
        gold = {task: int(jury.truth[task]) for task in range(start, start + 50, 5)}
        model.partial_fit(part, true_labels=gold, workers=jury.workers)
        emitted.append(model.labels_.drop(list(gold)))
    later = pd.concat(emitted[1:])
    assert (later != jury.truth[later.index]).mean() < 0.15


def test_gold_leaves_the_answers_of_an_ordinary_crowd_almost_alone():
    crowd = class_conditional_crowd(400, 30, 3, 5, seed=2)
    alone = lq.BiLA().fit(frame(crowd))
    gold = {task: int(crowd.truth[task]) for task in range(20)}
    model = lq.BiLA().fit(frame(crowd), true_labels=gold)
    rest = crowd.truth[20:]
    errors = [(one.labels_.loc[20:].to_numpy() != rest).mean() for one in (alone, model)]
    assert abs(errors[1] - errors[0]) < 0.02
    assert (alone.labels_.loc[20:] == model.labels_.loc[20:]).mean() > 0.95


def test_a_task_of_workers_without_gold_keeps_its_answer(jury):
    strangers = pd.DataFrame({"task": "new", "worker": ["x", "y", "z"], "label": [1, 1, 0]})
    model = lq.BiLA().fit(jury.labels, true_labels=jury.gold(20))
    aggregator, learned = model.model_.aggregator, model.model_.learned
    alone = learned.state._replace(stack={})
    chunk = learned.vocabulary.read(lq.read_labels(strangers)).chunk
    with_stack, without = (aggregator.aggregate(state, chunk) for state in (learned.state, alone))
    assert with_stack.aggregated.tolist() == without.aggregated.tolist()
    assert model.predict(strangers).tolist() == [1]


def test_gold_of_a_misled_crowd_does_not_turn_the_answers_of_strangers_over():
    """Nearly everybody is misled, each has seen about one gold task, and three others are good."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 600)
    seems = np.where(rng.random(600) < 0.8, 1 - truth, truth)
    rows = [
        (task, f"j{k}", int(seems[task] ^ (rng.random() < 0.15)))
        for task in range(600)
        for k in rng.choice(30, 5, replace=False)
    ]
    rows += [
        (task, f"s{k}", int(task % 2 ^ (rng.random() < 0.1)))
        for task in range(1000, 1200)
        for k in range(3)
    ]
    model = lq.BiLA().fit(rows, true_labels={task: int(truth[task]) for task in range(60)})
    assert stack_of(model).slope < 0
    answers = model.labels_.loc[1000:]
    assert (answers == lq.BiLA().fit(rows).labels_.loc[1000:]).all()


def test_scores_are_used():
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 2, 300)
    rows = [
        (task, f"j{k}", 1, float(3 + 2 * truth[task] + rng.normal(0, 1.0)))
        for task in range(300)
        for k in range(4)
    ]  # every judge says 1 of everything, and their scores tell
    labels = pd.DataFrame(rows, columns=["task", "worker", "label", "score"])
    gold = {task: int(truth[task]) for task in range(60)}
    with_scores = lq.BiLA().fit(labels, true_labels=gold)
    without = lq.BiLA().fit(labels.drop(columns="score"), true_labels=gold)
    errors = [float((one.labels_.loc[60:] != truth[60:]).mean()) for one in (with_scores, without)]
    assert errors[0] < 0.25 < 0.4 < errors[1]


def test_workers_of_a_model_share_what_gold_says_of_it(jury):
    model = lq.BiLA().fit(jury.labels, true_labels=jury.gold(20), workers=jury.workers)
    found = stack_of(model)
    assert len(found.groups) == 3 and np.abs(found.group_votes).max() > 0.01
    # one judge of the good model who never saw a gold task outweighs one of the others
    good, bad = (found.group_votes[found.groups == id_key(m)][0] for m in ("m2", "m0"))
    assert good[1, 1] - good[0, 1] > bad[1, 1] - bad[0, 1]


def test_selected_gold_leaves_slope_and_bias(jury):
    model = lq.BiLA(gold_sampling="selected")
    model.fit(jury.labels, true_labels=jury.gold(20), workers=jury.workers)
    found = stack_of(model)
    assert float(found.slope) == 1 and not found.bias.any()
    assert jury.error(model) < 0.15
    free = stack_of(lq.BiLA().fit(jury.labels, true_labels=jury.gold(20)))
    assert float(free.slope) != 1


# ── classes ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_gold_decides_with_any_number_of_classes(n_classes):
    jury = Jury(n_classes=n_classes)
    model = lq.BiLA().fit(jury.labels, true_labels=jury.gold(40))
    assert jury.error(model) < 0.15 < jury.error(lq.BiLA().fit(jury.labels))
    np.testing.assert_allclose(model.probas_.sum(axis=1), 1, atol=1e-5)


def test_gold_of_a_single_class_is_taken():
    labels = pd.DataFrame({"task": [1, 1, 2], "worker": ["a", "b", "a"], "label": "x"})
    model = lq.BiLA().partial_fit(labels, true_labels={1: "x"})
    assert model.labels_.tolist() == ["x", "x"]
    model.partial_fit({3: {"a": "y", "b": "x"}}, true_labels={3: "y"})
    assert model.labels_.tolist() == ["y"]


def test_classes_may_appear_after_the_fit(jury):
    model = lq.BiLA().partial_fit(jury.labels, true_labels=jury.gold(20))
    before = stack_of(model)
    new = pd.DataFrame({"task": "n", "worker": ["j0", "j1", "j2", "j3"], "label": [7, 7, 7, 0]})
    model.partial_fit(new)
    assert len(stack_of(model).bias) == len(before.bias) == 2
    assert model.probas_.shape == (1, 3) and np.isfinite(model.probas_.to_numpy()).all()
    model.partial_fit(new.assign(task="m"), true_labels={"m": 7})
    assert len(stack_of(model).bias) == 3  # 21 gold tasks are 5 % more
    assert model.labels_.tolist() == [7]


# ── a model with gold ────────────────────────────────────────────────────────────────────


@pytest.mark.filterwarnings("ignore:It is in doubt")
def test_a_model_that_was_saved_goes_on_to_the_bit(jury, tmp_path):
    parts = [jury.labels[jury.labels["task"] // 50 == n] for n in range(4)]
    gold = [{50 * n + i: int(jury.truth[50 * n + i]) for i in range(9)} for n in range(4)]
    through, resumed, pickled = lq.BiLA(), lq.BiLA(), lq.BiLA()
    for part, known in zip(parts, gold, strict=True):
        through.partial_fit(part, true_labels=known, workers=jury.workers)
        resumed.partial_fit(part, true_labels=known, workers=jury.workers)
        pickled.partial_fit(part, true_labels=known, workers=jury.workers)
        resumed.save(tmp_path / "resumed.lq")
        resumed = lq.load(tmp_path / "resumed.lq")
        pickled = pickle.loads(pickle.dumps(pickled))
    assert bits(through, tmp_path) == bits(resumed, tmp_path) == bits(pickled, tmp_path)


def test_merged_models_answer_as_one_that_saw_both(jury):
    halves = [jury.labels[jury.labels["task"] % 2 == side] for side in (0, 1)]
    gold = [{t: y for t, y in jury.gold(40).items() if t % 2 == side} for side in (0, 1)]
    parts = [
        lq.BiLA().partial_fit(half, true_labels=known)
        for half, known in zip(halves, gold, strict=True)
    ]
    merged = lq.merge(*parts)
    said = merged.predict(jury.labels)
    assert (said.loc[50:] != jury.truth[50:]).mean() < 0.1
    assert len(merged.model_.learned.state.stack["tasks"]) == 40


def test_a_stack_is_fitted_again_only_when_gold_has_grown(jury):
    model = lq.BiLA().partial_fit(jury.labels, true_labels=jury.gold(100))
    before = stack_of(model)
    for n, task in enumerate(range(100, 106)):
        model.partial_fit(jury.labels[:0], true_labels={task: int(jury.truth[task])})
        assert (int(stack_of(model).seen) == int(before.seen)) == (n < 4)  # 5 % of 100


def test_a_history_of_workers_goes_with_gold(jury):
    history = dict.fromkeys(jury.workers["worker"], (9, 10))
    model = lq.BiLA(history=history, classes=[0, 1]).fit(jury.labels, true_labels=jury.gold(20))
    assert jury.error(model) < 0.1


# ── why an answer ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n_classes", [2, 3])
def test_an_explanation_adds_up(n_classes):
    jury = Jury(n_classes=n_classes)
    model = lq.BiLA().fit(jury.labels, true_labels=jury.gold(30), workers=jury.workers)
    for task in (60, 61, 62):
        why = model.explain(task)
        parts = why.prior_log_odds + why.workers["log_odds"].sum()
        assert parts == pytest.approx(why.total_log_odds, abs=0.05)
        probs = model.probas_.loc[task]
        odds = np.log(probs[why.label] / probs[why.runner_up])
        assert why.total_log_odds / why.heat == pytest.approx(odds, rel=0.01, abs=0.01)
        prior = np.log(model.priors_[why.label] / model.priors_[why.runner_up])
        assert why.prior_log_odds == pytest.approx(prior, abs=0.05)


def test_a_judge_whom_gold_shows_to_be_fooled_speaks_against_what_they_say(jury):
    model = lq.BiLA().fit(jury.labels, true_labels=jury.gold(40), workers=jury.workers)
    fooled = next(
        t
        for t in range(50, 200)
        if (jury.labels["label"][jury.labels["task"] == t] != jury.truth[t]).mean() > 0.6
    )
    why = model.explain(fooled)
    assert why.label == jury.truth[fooled]
    against = why.workers[why.workers["label"] != why.label]
    assert (against["log_odds"] > 0).any()


def test_stopping_expected_gain_and_retract_go_with_gold(jury):
    model = lq.BiLA().fit(jury.labels, true_labels=jury.gold(30), workers=jury.workers)
    curve = model.stopping([0.6, 0.9, 1.0])
    assert curve["labels_used"].is_monotonic_increasing
    assert curve["labels_used"].iloc[-1] == 18 * 170  # the answers as they are
    expected = 1 - model.probas_.loc[30:].max(axis=1).mean()
    assert curve["expected_error"].iloc[-1] == pytest.approx(expected, abs=1e-3)
    gain = model.expected_gain(workers=["j0"], top=3)
    assert gain["gain"].isna().sum() == 0
    before = model.explain(60).workers
    model.retract(60, before.index[0])
    assert before.index[0] not in model.explain(60).workers.index
