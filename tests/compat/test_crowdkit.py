"""The drop-in classes give what Crowd-Kit gives: arguments, tables, values."""

import inspect
import sys
import warnings

import crowdkit.aggregation
import crowdkit.metrics.data
import crowdkit.metrics.workers
import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal, assert_series_equal

from labelquorum.compat import crowdkit as ours
from labelquorum.compat.crowdkit import (
    GLAD,
    KOS,
    MACE,
    MMSR,
    DawidSkene,
    GoldMajorityVote,
    MajorityVote,
    OneCoinDawidSkene,
    Wawa,
    ZeroBasedSkill,
)
from labelquorum.errors import LabelError, StateError
from labelquorum.evaluation import class_conditional_crowd
from labelquorum.learn.methods import _sparse_em

CLASSES = ["DawidSkene", "GLAD", "MACE", "MajorityVote", "OneCoinDawidSkene"]
SKILLED = ["GoldMajorityVote", "MMSR", "Wawa", "ZeroBasedSkill"]  # fit, then a vote by skills
CLOSE = {"rtol": 1e-7, "atol": 1e-9}


def table(n_items=90, n_workers=9, n_classes=3, labels_per_item=4, seed=3, **settings):
    crowd = class_conditional_crowd(
        n_items, n_workers, n_classes, labels_per_item, seed=seed, **settings
    )
    return pd.DataFrame({"task": crowd.item, "worker": crowd.worker, "label": crowd.label})


def shuffled(data):
    return data.sample(frac=1, random_state=1)


def in_words(data):
    return pd.DataFrame(
        {
            "task": "task " + data["task"].astype(str),
            "worker": "worker " + data["worker"].astype(str),
            "label": data["label"].map(dict(enumerate(["cat", "ant", "bee", "dog"]))),
        }
    )


def numbered(data):
    """Names that first appear in their own order."""
    return data.apply(lambda column: pd.factorize(column)[0])


TABLES = {
    "numbers in order": table(),
    "numbers in no order": shuffled(table()),
    "words": in_words(shuffled(table())),
    "truth and falsehood": shuffled(table(n_classes=2)).astype({"label": bool}),
    "more columns": in_words(table()).assign(time=0.5),
    "a worker with one label": pd.concat(
        [table(), pd.DataFrame({"task": [5], "worker": [99], "label": [1]})], ignore_index=True
    ),
}


def fit_both(name, data, *rest, settings=None, **named):
    theirs, mine = (
        getattr(module, name)(**(settings or {})) for module in (crowdkit.aggregation, ours)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # theirs, of pandas
        theirs.fit(data.copy(), *rest, **named)
    return mine.fit(data, *rest, **named), theirs


def assert_same(mine, theirs, *attributes):
    for attribute in attributes:
        one, other = getattr(mine, attribute), getattr(theirs, attribute)
        if isinstance(other, pd.DataFrame):
            assert_frame_equal(one, other, **CLOSE)
        elif isinstance(other, pd.Series):
            assert_series_equal(one, other, **CLOSE)
        else:
            np.testing.assert_allclose(one, other, **CLOSE)


# ── the same class ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [*CLASSES, *SKILLED, "KOS"])
def test_arguments_have_the_same_names_order_and_defaults(name):
    for method in ("__init__", "fit"):
        mine, theirs = (
            [
                (parameter.name, parameter.default)
                for parameter in inspect.signature(getattr(kind, method)).parameters.values()
            ]
            for kind in (getattr(ours, name), getattr(crowdkit.aggregation, name))
        )
        # Theirs also takes what it computes: matrices and mappings.
        assert mine == (theirs[:4] if name == "MMSR" else theirs)


@pytest.mark.parametrize("name", CLASSES)
def test_predicting_is_fitting_and_looking(name):
    data, kind = TABLES["words"], getattr(ours, name)
    model = kind()
    assert model.fit(data) is model
    assert_series_equal(kind().fit_predict(data), model.labels_)
    assert_frame_equal(kind().fit_predict_proba(data), model.probas_)
    assert model.labels_.name == "agg_label" and model.labels_.index.name == "task"
    assert set(model.labels_) <= {"cat", "ant", "bee"}
    assert repr(kind()).startswith(f"{name}(") and "_=" not in repr(model)


def test_the_users_table_is_left_alone():
    data = TABLES["words"]
    before = data.copy()
    for name in CLASSES:
        getattr(ours, name)().fit(data)
    assert_frame_equal(data, before)


# ── majority vote ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("data", TABLES.values(), ids=TABLES)
def test_votes_are_those_of_crowd_kit_ties_and_all(data):
    assert_same(*fit_both("MajorityVote", data), "probas_", "labels_", "skills_")


def test_a_label_sent_twice_counts_twice_but_makes_nobody_more_able():
    data = pd.concat([TABLES["words"], TABLES["words"].iloc[:40]], ignore_index=True)
    assert_same(*fit_both("MajorityVote", data), "probas_", "labels_", "skills_")


def test_skills_weigh_votes_as_in_crowd_kit():
    data = TABLES["words"]
    skills = pd.Series(0.1 + np.arange(9) / 9, index=[f"worker {k}" for k in range(9)])
    both = fit_both("MajorityVote", data, skills)
    assert_same(*both, "probas_", "labels_", "skills_")
    settings = {"on_missing_skill": "value", "default_skill": 0.3}
    both = fit_both("MajorityVote", data, skills.iloc[:4], settings=settings)
    assert_same(*both, "probas_", "labels_", "skills_")
    both = fit_both("MajorityVote", data, skills[2:], settings={"on_missing_skill": "ignore"})
    assert_same(*both, "probas_", "labels_", "skills_")


def test_missing_skills_are_refused_unless_told_otherwise():
    data, skills = TABLES["words"], pd.Series({"worker 0": 1.0})
    with pytest.raises(LabelError, match="labels are by workers without a skill"):
        MajorityVote().fit(data, skills)
    with pytest.raises(LabelError, match="Some tasks have labels only by workers without"):
        MajorityVote(on_missing_skill="ignore").fit(data, skills)
    for settings in ({"on_missing_skill": "value"}, {"default_skill": 0.5}):
        with pytest.raises(StateError, match="`default_skill` of MajorityVote goes with"):
            MajorityVote(**settings).fit(data, skills)
    with pytest.raises(StateError, match="`on_missing_skill` of MajorityVote must be"):
        MajorityVote(on_missing_skill="drop").fit(data, skills)


# ── Dawid–Skene ──────────────────────────────────────────────────────────────────────────

LEARNED = ("probas_", "labels_", "priors_", "errors_", "loss_history_")


@pytest.mark.parametrize("data", TABLES.values(), ids=TABLES)
def test_dawid_skene_is_that_of_crowd_kit(data):
    assert_same(*fit_both("DawidSkene", data), *LEARNED)


def test_dawid_skene_stops_where_crowd_kit_stops():
    data = table(150, 12, 4, 5, seed=8)
    for settings in ({"n_iter": 3}, {"tol": 1e-2}, {"n_iter": 40, "tol": 0.0}):
        mine, theirs = fit_both("DawidSkene", data, settings=settings)
        assert len(mine.loss_history_) == len(theirs.loss_history_)
        assert_same(mine, theirs, *LEARNED)


def test_many_labels_on_a_task_do_not_underflow():
    data = table(20, 400, 3, 300, skill=(0.2, 0.5), seed=2)
    assert_same(*fit_both("DawidSkene", data, settings={"n_iter": 10}), *LEARNED)


def test_many_classes_are_learned_as_in_crowd_kit(monkeypatch):
    data = table(60, 40, 30, 12, skill=(0.6, 0.9), seed=7)  # with twelve labels, few classes remain
    mine, theirs = fit_both("DawidSkene", data, settings={"n_iter": 12})
    assert_same(mine, theirs, *LEARNED)
    monkeypatch.setattr(_sparse_em, "MAX_LINKS", 0)
    dense = DawidSkene(12).fit(data)
    assert_frame_equal(mine.probas_, dense.probas_, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(mine.loss_history_, dense.loss_history_, rtol=1e-9)


@pytest.mark.parametrize("links", [0.1, 2.0])
@pytest.mark.parametrize("labels_per_item", [1, 3, 8])
def test_candidates_are_those_of_all_classes(labels_per_item, links, monkeypatch):
    data = table(80, 30, 12, labels_per_item, seed=labels_per_item)
    monkeypatch.setattr(_sparse_em, "MAX_LINKS", links)
    mine = DawidSkene().fit(data)
    monkeypatch.setattr(_sparse_em, "MAX_LINKS", 0)
    dense = DawidSkene().fit(data)
    assert_frame_equal(mine.probas_, dense.probas_, rtol=1e-9, atol=1e-9)
    assert_frame_equal(mine.errors_, dense.errors_, rtol=1e-7, atol=1e-9)


def test_true_labels_are_believed_as_in_crowd_kit():
    data = TABLES["words"]
    gold = pd.Series({"task 3": "dog", "task 4": "ant", "task 80": "bee", "elsewhere": "cat"})
    gold["task 3"] = "cat"
    mine, theirs = fit_both("DawidSkene", data, gold)
    assert_same(mine, theirs, *LEARNED)
    assert mine.labels_["task 4"] == "ant"
    assert_series_equal(DawidSkene().fit_predict(data, true_labels=gold), mine.labels_)


def test_a_true_label_nobody_gave_is_a_class():
    mine = DawidSkene().fit(TABLES["words"], pd.Series({"task 3": "dog", "task 5": None}))
    assert mine.labels_["task 3"] == "dog"
    assert mine.probas_.columns.tolist()[-1] == "dog" and mine.probas_.notna().all(axis=None)


def history(workers, classes, counts):
    index = pd.MultiIndex.from_product([workers, classes], names=["worker", "label"])
    matrix = np.full((len(classes), len(classes)), 1.0) + np.eye(len(classes)) * counts
    return pd.DataFrame(np.tile(matrix, (len(workers), 1)), index=index, columns=classes)


@pytest.mark.parametrize("n_iter", [1, 30])
def test_a_history_of_some_workers_is_added_as_in_crowd_kit(n_iter):
    data = TABLES["words"]
    settings = {"n_iter": n_iter, "initial_error_strategy": "addition"}
    given = history(["worker 1", "worker 4", "retired"], ["ant", "bee", "cat"], 20)
    given.loc["worker 1"] = 30 - given.loc["worker 1"].to_numpy()
    mine, theirs = fit_both("DawidSkene", data, initial_error=given, settings=settings)
    assert_same(mine, theirs, *LEARNED)
    plain = DawidSkene(n_iter).fit(data)
    if n_iter == 1:
        assert np.abs(mine.probas_ - plain.probas_).to_numpy().max() > 0.01


@pytest.mark.parametrize("scale", [1, 1 / 23])
def test_matrices_of_all_workers_are_assigned_as_in_crowd_kit(scale):
    data = TABLES["words"]
    given = history([f"worker {k}" for k in range(9)], ["ant", "bee", "cat"], 20) * scale
    settings = {"n_iter": 2, "initial_error_strategy": "assign"}
    both = fit_both("DawidSkene", data, initial_error=given.copy(), settings=settings)
    assert_same(*both, *LEARNED)
    # Without a strategy they are not looked at.
    unused = DawidSkene(2).fit(data, initial_error=given)
    assert_frame_equal(unused.probas_, DawidSkene(2).fit(data).probas_)


def test_labels_that_occur_only_in_the_history_keep_their_share():
    data = in_words(table(n_classes=2))
    given = history(["worker 0", "worker 1"], ["ant", "bee", "cat"], 5)
    settings = {"n_iter": 1, "initial_error_strategy": "addition"}
    mine, theirs = fit_both("DawidSkene", data, initial_error=given, settings=settings)
    assert_series_equal(mine.labels_, theirs.labels_)
    # Theirs has a column of NaN for the truth nobody named.
    assert_frame_equal(mine.probas_, theirs.probas_[mine.probas_.columns], **CLOSE)


def test_a_history_that_does_not_fit_is_refused_with_the_reason():
    data, given = TABLES["words"], history(["worker 0"], ["ant", "bee", "cat"], 5)
    with pytest.raises(LabelError, match="names worker and label"):
        DawidSkene(initial_error_strategy="addition").fit(data, None, given.rename_axis([None] * 2))
    with pytest.raises(LabelError, match="It lacks rows of 8 workers"):
        DawidSkene(initial_error_strategy="assign").fit(data, None, given)
    everybody = history([f"worker {k}" for k in range(9)], ["ant", "bee", "cat"], 0) / 9
    with pytest.raises(LabelError, match=r"should be 1\.0"):
        DawidSkene(initial_error_strategy="assign").fit(data, None, everybody)
    with pytest.raises(StateError, match='must be "assign" or "addition"'):
        DawidSkene(initial_error_strategy="replace").fit(data, None, given)


@pytest.mark.parametrize("data", TABLES.values(), ids=TABLES)
def test_one_coin_is_that_of_crowd_kit(data):
    both = fit_both("OneCoinDawidSkene", data, settings={"n_iter": 12})
    assert_same(*both, *LEARNED, "skills_")


@pytest.mark.parametrize("kind", [DawidSkene, OneCoinDawidSkene])
def test_an_empty_table_gives_empty_answers(kind):
    model = kind().fit(TABLES["words"].iloc[:0])
    assert model.labels_.empty and model.probas_.empty and model.errors_.empty
    assert model.priors_.empty and model.loss_history_ == []


# ── GLAD ─────────────────────────────────────────────────────────────────────────────────

FOUND = ("probas_", "labels_", "alphas_", "betas_", "priors_", "loss_history_")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["words", "numbers in order"])
def test_glad_is_that_of_crowd_kit(name):
    data = TABLES[name]
    some = data[data["task"].isin(data["task"].unique()[:30])]
    assert_same(*fit_both("GLAD", some), *FOUND)


def test_glad_takes_priors_as_crowd_kit_does():
    data = in_words(shuffled(table(20, 6, 3, 3)))
    workers, tasks = data["worker"].unique(), data["task"].unique()
    settings = {
        "n_iter": 2,
        "tol": -np.inf,
        "m_step_max_iter": 4,
        "labels_priors": pd.Series({"cat": 0.5, "dog": 0.1, "bee": 0.2, "ant": 0.2}),
        "alphas_priors_mean": pd.Series(np.linspace(0.5, 2, len(workers)), index=workers),
        "betas_priors_mean": pd.Series(0.5, index=tasks),
    }
    mine, theirs = fit_both("GLAD", data, settings=settings)
    assert len(mine.loss_history_) == 2 and "dog" in mine.probas_.columns
    assert_same(mine, theirs, *FOUND)
    with pytest.raises(LabelError, match=r"The labels \['bee'\] are not in `labels_priors`"):
        GLAD(labels_priors=pd.Series({"cat": 0.5, "ant": 0.5})).fit(data)
    with pytest.raises(LabelError, match="`alphas_priors_mean` of GLAD must name every worker"):
        GLAD(alphas_priors_mean=pd.Series({workers[0]: 1.0})).fit(data)


# ── MACE ─────────────────────────────────────────────────────────────────────────────────

WAYS = ("spamming_", "thetas_", "smoothing_", "probas_", "labels_")


@pytest.mark.parametrize("method", ["vb", "em"])
def test_mace_is_that_of_crowd_kit_where_names_appear_in_order(method):
    data = numbered(shuffled(table()))
    settings = {"method": method, "n_restarts": 2, "n_iter": 15, "random_state": 5, "alpha": 0.7}
    mine, theirs = fit_both("MACE", data, settings=settings)
    assert_same(mine, theirs, *WAYS)
    if method == "vb":
        assert_same(mine, theirs, "theta_priors_", "strategy_priors_")


def test_mace_restarts_are_those_of_crowd_kit():
    data = numbered(shuffled(table(n_items=40)))
    states = [np.random.RandomState(1) for _ in range(2)]
    mine = MACE(n_restarts=3, n_iter=6, random_state=states[0]).fit(data)
    theirs = crowdkit.aggregation.MACE(n_restarts=3, n_iter=6, random_state=states[1]).fit(data)
    assert_same(mine, theirs, *WAYS)


def test_names_do_not_matter_to_mace():
    # Crowd-Kit's answers change with the names, ours only by where the random start falls.
    data = shuffled(table(200, 12, 3, 6))
    plain, renamed = MACE().fit_predict(numbered(data)), MACE().fit_predict(in_words(data))
    classes = pd.unique(in_words(data)["label"])
    assert np.mean(classes[plain] == renamed.to_numpy()) >= 0.99


# ── bad tables ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", CLASSES)
def test_a_table_that_cannot_be_read_is_refused_with_the_reason(name):
    kind, data = getattr(ours, name), TABLES["words"]
    with pytest.raises(LabelError, match=r"It lacks \['worker'\]"):
        kind().fit(data.drop(columns="worker"))
    data = data.copy()
    data.iloc[[3, 7], 2] = None
    with pytest.raises(LabelError, match="2 rows have no label"):
        kind().fit(data)


@pytest.mark.parametrize("kind", [GLAD, MACE, MajorityVote])
def test_the_answer_to_nothing_is_nothing(kind):
    assert kind().fit(TABLES["words"].iloc[:0]).labels_.empty


# ── votes by skill, KOS and MMSR ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("data", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("name", SKILLED)
def test_skills_and_the_vote_by_them_are_those_of_crowd_kit(name, data):
    gold = [data.drop_duplicates("task").set_index("task")["label"]]
    rest = gold if name == "GoldMajorityVote" else []
    mine, theirs = fit_both(name, data, *rest)
    assert_series_equal(mine.skills_.sort_index(), theirs.skills_.sort_index(), rtol=1e-5)
    vote = crowdkit.aggregation.MajorityVote().fit(data, theirs.skills_)
    assert_series_equal(mine.predict(data), vote.labels_)
    assert_frame_equal(mine.predict_proba(data), vote.probas_, rtol=1e-5)


@pytest.mark.parametrize("n_iter", [1, 10, 100])
def test_kos_is_that_of_crowd_kit(n_iter):
    for data in (TABLES["truth and falsehood"], in_words(shuffled(table(n_classes=2)))):
        mine, theirs = fit_both("KOS", data, settings={"n_iter": n_iter})
        assert_series_equal(mine.labels_, theirs.labels_)


@pytest.mark.parametrize("kind", [KOS, MACE, MMSR])
def test_a_start_without_a_state_follows_the_seed_of_numpy(kind):
    def state_after(seed):
        np.random.seed(seed)  # noqa: NPY002
        before = np.random.get_state()[2]  # noqa: NPY002
        kind(n_iter=1, random_state=None).fit(table(n_items=6, n_classes=2, labels_per_item=3))
        return before, np.random.get_state()[2]  # noqa: NPY002

    before, after = state_after(1)
    assert after != before and state_after(1) == (before, after)


def test_kos_answers_a_task_nobody_tells_about_and_refuses_three_classes():
    lone = pd.DataFrame({"task": ["t", "u"], "worker": ["a", "b"], "label": ["yes", "no"]})
    assert KOS().fit_predict(lone).to_dict() == {"t": "yes", "u": "yes"}
    with pytest.raises(LabelError, match=r"two classes apart. Got 3: use DawidSkene"):
        KOS().fit(table())


def test_a_vote_by_skill_needs_skills_of_everybody():
    data = pd.DataFrame({"task": ["t", "t"], "worker": ["a", "b"], "label": [1, 0]})
    with pytest.raises(StateError, match="Call fit first"):
        Wawa().predict(data)
    model = GoldMajorityVote().fit(data[:1], pd.Series({"t": 1, "other": 0}))
    assert model.skills_.to_dict() == {"a": 1.0}
    with pytest.raises(LabelError, match="1 labels are by workers without a skill"):
        model.predict(data)
    several = pd.Series([1, 0], index=["t", "t"])
    assert GoldMajorityVote().fit(data, several).skills_.to_dict() == {"a": 1.0, "b": 1.0}


def test_mmsr_finds_an_adversary():
    crowd = table(n_items=300, n_workers=7, n_classes=2, labels_per_item=5, skill=(0.8, 0.9))
    adversary = crowd["worker"] == 3
    crowd.loc[adversary, "label"] = 1 - crowd.loc[adversary, "label"]
    skills = MMSR().fit(crowd).skills_
    assert skills[3] < -0.5 and (skills.drop(3) > 0.5).all()
    with pytest.raises(LabelError, match="two classes"):
        MMSR().fit(crowd.assign(label=0))


@pytest.mark.parametrize("kind", [Wawa, ZeroBasedSkill, MMSR])
def test_a_missing_column_is_a_key_error_with_a_sentence(kind):
    with pytest.raises(KeyError) as error:
        kind().fit_predict(pd.DataFrame({"task": [1], "label": [1]}))
    assert isinstance(error.value, LabelError)
    assert str(error.value).startswith("The table must have the columns") and "worker" in str(
        error.value
    )


# ── metrics ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["words", "more columns"])
def test_metrics_are_those_of_crowd_kit(name):
    data = TABLES[name]
    theirs = crowdkit.metrics.data
    skills = MajorityVote().fit(data).skills_
    assert ours.alpha_krippendorff(data) == pytest.approx(theirs.alpha_krippendorff(data))
    assert ours.uncertainty(data) == pytest.approx(theirs.uncertainty(data))
    for by in ("task", "worker"):
        mine, other = (
            module.uncertainty(data, skills, compute_by=by, aggregate=False)
            for module in (ours, theirs)
        )
        assert_series_equal(mine, other)
    if name == "words":
        pairs = ((m.consistency(data, by_task=True), m.consistency(data)) for m in (ours, theirs))
        (mine, mean), (other, other_mean) = pairs
        assert_series_equal(mine, other)
        assert mean == pytest.approx(other_mean)
    for by in (None, "worker"):
        mine, other = (
            module.accuracy_on_aggregates(data, by=by)
            for module in (ours, crowdkit.metrics.workers)
        )
        assert np.allclose(mine, other)


def test_alpha_takes_a_distance_of_labels():
    rows = [("X", 0), ("X", 0), ("Y", 4), ("Y", 4), ("Z", 0), ("Z", 1)]
    data = pd.DataFrame(rows, columns=["task", "label"]).assign(worker=["a", "b"] * 3)

    def gap(one, other):
        return abs(one - other) / 4

    theirs = crowdkit.metrics.data.alpha_krippendorff
    assert ours.alpha_krippendorff(data, gap) == pytest.approx(theirs(data, gap))
    assert ours.alpha_krippendorff(data) < ours.alpha_krippendorff(data, gap)
    with pytest.raises(LabelError, match="No task has two labels"):
        ours.alpha_krippendorff(data[::2])


def test_what_metrics_cannot_use_is_refused_as_crowd_kit_does():
    data = TABLES["words"]
    with pytest.raises(AssertionError, match="It lacks"):
        ours.uncertainty(data, pd.Series({"worker 1": 1.0}))
    with pytest.raises(KeyError, match="compute_by"):
        ours.uncertainty(data, compute_by="day")
    with pytest.raises(StateError, match="DawidSkene has no skills"):
        ours.consistency(data, aggregator=DawidSkene())


def test_what_needs_scipy_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)  # as if it were not installed
    answers = pd.DataFrame({"task": ["q", "q"], "worker": ["a", "b"], "label": ["x", "y"]})
    with pytest.raises(StateError, match=r"pip install 'labelquorum\[crowdkit\]'"):
        ours.uncertainty(answers)
