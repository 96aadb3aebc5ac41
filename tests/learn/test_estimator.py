"""The door: names, shapes and types as the field knows them, and the rules of a stream."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from crowdkit.aggregation import DawidSkene
from crowdkit.aggregation import MajorityVote as CrowdKitVote
from sklearn.base import clone

import labelquorum as lq
from labelquorum.errors import LabelError, StateError
from labelquorum.evaluation import class_conditional_crowd
from labelquorum.ingest.readers import read_wide
from labelquorum.learn.model_file import read_snapshot

COLUMNS = ["task", "worker", "label"]
ESTIMATORS = [lq.BiLA, lq.MajorityVote]
both = pytest.mark.parametrize("kind", ESTIMATORS)


def frame(rows, **columns):
    return pd.DataFrame(rows, columns=COLUMNS).assign(**columns)


def votes(task, labels, workers="abcdefgh"):
    """One task, labelled by workers a, b, c, …"""
    return [(task, worker, label) for worker, label in zip(workers, labels, strict=False)]


@pytest.fixture(scope="module")
def chunks() -> list[pd.DataFrame]:
    """Three chunks of 16 tasks, each task with four labels by some of twelve workers."""
    crowd = class_conditional_crowd(48, 12, 3, 4, seed=5)
    labels = pd.DataFrame(
        {
            "task": [f"t{item:02}" for item in crowd.item],
            "worker": [f"w{worker:02}" for worker in crowd.worker],
            "label": np.array(["cat", "dog", "fox"])[crowd.label],
        }
    )
    return [part.reset_index(drop=True) for _, part in labels.groupby(crowd.item // 16)]


@pytest.fixture(scope="module")
def fitted(chunks):
    """A BiLA that has seen all chunks. Look, do not touch."""
    model = lq.BiLA()
    for chunk in chunks:
        model.partial_fit(chunk)
    return model


@pytest.fixture
def bits(tmp_path):
    """All a model has learned, as the bytes of its file."""

    def save(model):
        model.save(tmp_path / "model.lq")
        return (tmp_path / "model.lq").read_bytes()

    return save


# ── names and shapes ─────────────────────────────────────────────────────────────────────


def test_tables_have_crowd_kits_names(fitted, chunks):
    theirs = DawidSkene(n_iter=3).fit(chunks[-1])
    for name in ("labels_", "priors_"):
        one, other = getattr(fitted, name), getattr(theirs, name)
        assert (one.name, one.index.name) == (other.name, other.index.name)
    assert fitted.probas_.index.name == theirs.probas_.index.name
    assert fitted.probas_.columns.name == theirs.probas_.columns.name
    assert fitted.errors_.index.names == theirs.errors_.index.names
    skills = CrowdKitVote().fit(chunks[-1]).skills_
    assert (fitted.skills_.name, fitted.skills_.index.name) == (skills.name, skills.index.name)
    assert type(fitted.loss_history_) is type(theirs.loss_history_)


def test_errors_have_crowd_kits_layout(fitted, chunks):
    theirs = DawidSkene(n_iter=3).fit(chunks[-1]).errors_
    ours = fitted.errors_
    assert set(ours.columns) == set(theirs.columns)
    assert set(theirs.index) <= set(ours.index)
    # Rows are what a worker said, columns what was true: columns of each worker sum to one.
    for errors in (ours, theirs):
        assert np.allclose(errors.groupby("worker").sum(), 1, atol=1e-5)


def test_errors_are_the_confusion_matrices_in_another_layout(fitted):
    confusion, errors = fitted.confusion_, fitted.errors_
    assert confusion.shape == (12, 3, 3)
    np.testing.assert_allclose(confusion.sum(axis=2), 1, rtol=1e-5)
    for k, worker in enumerate(fitted.workers_):
        for z, said in enumerate(fitted.classes_):
            for c, truth in enumerate(fitted.classes_):
                assert errors.loc[(worker, said), truth] == confusion[k, c, z]


@both
def test_labels_and_probas_cover_the_tasks_of_the_chunk_in_order_of_appearance(kind, chunks):
    chunk = chunks[0].iloc[::-1]
    model = kind().partial_fit(chunk)
    assert model.labels_.index.tolist() == list(dict.fromkeys(chunk.task))
    assert model.labels_.index.tolist() == model.probas_.index.tolist()
    assert list(model.answers_.items()) == list(model.labels_.items())
    assert model.probas_.columns.tolist() == ["cat", "dog", "fox"]
    np.testing.assert_allclose(model.probas_.sum(axis=1), 1, rtol=1e-5)
    best = model.probas_.max(axis=1)
    chosen = [model.probas_.loc[task, label] for task, label in model.labels_.items()]
    np.testing.assert_allclose(chosen, best, atol=1e-6)


def test_worker_and_class_tables_agree_with_one_another(fitted):
    assert fitted.classes_.tolist() == ["cat", "dog", "fox"]
    assert fitted.workers_.tolist() == [f"w{k:02}" for k in range(12)]
    assert fitted.priors_.index.tolist() == ["cat", "dog", "fox"]
    assert fitted.priors_.sum() == pytest.approx(1)
    right = np.diagonal(fitted.confusion_, axis1=1, axis2=2) @ fitted.priors_.to_numpy()
    np.testing.assert_allclose(fitted.skills_, right)
    assert fitted.skills_.index.equals(fitted.workers_)


def test_there_is_one_loss_a_chunk(fitted):
    assert len(fitted.loss_history_) == 3
    assert np.isfinite(fitted.loss_history_).all()


@both
def test_partial_fit_returns_the_model(kind, chunks):
    model = kind()
    assert model.partial_fit(chunks[0]) is model
    assert model.fit(chunks[0]) is model


@both
def test_before_learning_there_is_nothing_to_see(kind):
    model = kind()
    assert model.labels_.empty and model.probas_.empty and model.answers_ == {}
    assert model.labels_.name == "agg_label"
    assert model.loss_history_ == []
    for look in (
        lambda: model.errors_,
        lambda: model.skills_,
        lambda: model.priors_,
        lambda: model.predict(frame(votes("t", "xy"))),
        lambda: model.report(),
        lambda: model.forget("a"),
    ):
        with pytest.raises(StateError, match="has learned nothing yet"):
            look()


@both
def test_an_empty_chunk_changes_nothing_and_answers_nothing(kind, chunks, bits):
    model = kind().partial_fit(chunks[0])
    before = bits(model)
    assert model.partial_fit(chunks[0][:0]).labels_.empty
    assert bits(model) == before
    assert kind().partial_fit(chunks[0][:0]).labels_.empty


# ── warm-up ──────────────────────────────────────────────────────────────────────────────


@both
def test_warm_up_answers_nothing_and_then_all_held_tasks(kind, chunks, bits):
    model = kind(warmup_items=33)
    for chunk in chunks[:2]:
        assert model.partial_fit(chunk).labels_.empty
        assert model.tally_.rows == len(chunk)
        with pytest.raises(StateError, match=r"\d+ labels are held for the warm-up"):
            model.predict(chunk)
    model.partial_fit(chunks[2])
    everything = pd.concat(chunks)
    assert model.labels_.index.tolist() == list(dict.fromkeys(everything.task))
    at_once = kind().partial_fit(everything)
    pd.testing.assert_frame_equal(model.probas_, at_once.probas_)
    assert model.tally_.rows == len(chunks[2])
    # From now on a chunk is answered as it comes.
    assert len(model.partial_fit(chunks[0]).labels_) == 16


def test_a_chunk_that_cannot_be_learned_is_refused_during_warm_up_already(bits):
    model = lq.MajorityVote(repeats="error", warmup_items=3)
    model.partial_fit(frame(votes(1, "xy")))
    before = bits(model)
    with pytest.raises(LabelError, match="has labelled task 2 already"):
        model.partial_fit(frame([(2, "a", "x"), (2, "a", "y")]))
    assert bits(model) == before
    # Nothing of it was held, so the stream can go on.
    assert model.partial_fit(frame([*votes(2, "xx"), *votes(3, "yy")])).labels_.size == 3


def test_a_third_class_is_refused_during_warm_up_already():
    model = lq.BiLA("network", generative="worker_ability", warmup_items=2)
    with pytest.raises(LabelError, match="knows at most 2 classes"):
        model.partial_fit(frame(votes(1, "xyz")))
    # Nothing of it was held, so the stream can go on.
    assert model.partial_fit(frame([*votes(2, "xx"), *votes(3, "yy")])).labels_.size == 2


def test_what_was_skipped_during_warm_up_is_counted_once_each():
    model = lq.MajorityVote(warmup_items=2, abstain="?")
    assert model.partial_fit(frame(votes(1, "x?"))).tally_.skipped == {"abstained": 1}
    assert model.partial_fit(frame(votes(2, "xx"))).labels_.size == 2


# ── predict ──────────────────────────────────────────────────────────────────────────────


@both
def test_predict_learns_nothing(kind, chunks, bits):
    model = kind().partial_fit(chunks[0])
    before, answered, tally = bits(model), model.labels_, model.tally_
    strangers = chunks[1].assign(worker="new " + chunks[1].worker, label="owl")
    for asked in (chunks[0], chunks[1], strangers):
        labels, probas = model.predict(asked), model.predict_proba(asked)
        assert labels.index.tolist() == probas.index.tolist() == list(dict.fromkeys(asked.task))
        assert (labels.name, labels.index.name) == ("agg_label", "task")
        np.testing.assert_allclose(probas.sum(axis=1), 1, rtol=1e-5)
    assert bits(model) == before
    assert model.labels_ is answered and model.tally_ is tally
    assert model.classes_.tolist() == ["cat", "dog", "fox"]


@both
def test_predict_uses_the_given_labels_alone(kind, chunks):
    remembering, forgetting = (
        kind().partial_fit(chunks[0]),
        kind(open_items=0).partial_fit(chunks[0]),
    )
    few = chunks[0].drop_duplicates("task")  # one label of each open task
    pd.testing.assert_frame_equal(remembering.predict_proba(few), forgetting.predict_proba(few))
    assert not remembering.predict_proba(few).equals(remembering.probas_)


def test_predict_gives_what_partial_fit_just_answered(chunks):
    model = lq.BiLA().partial_fit(chunks[0])
    pd.testing.assert_frame_equal(model.predict_proba(chunks[0]), model.probas_)


# ── ids ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tasks", "workers", "labels"),
    [
        ([1, 2], [10, 20, 30], [7, 9]),
        (["1", "2"], ["10", "20", "30"], ["7", "9"]),
        (["007", "7"], ["ann", "bob", "cat"], [True, False]),
        ([2**60, 2**60 + 1], [1, 2, 3], [-5, 10**12]),
        ([1, "1"], [1, "1", "x"], [1, "x"]),
        ([0.5, 2.0], [1.5, 2.5, 3.5], [0.25, 0.75]),
    ],
)
def test_ids_come_back_as_they_went_in(tasks, workers, labels, tmp_path):
    said = {tasks[0]: [0, 0, 1], tasks[1]: [1, 1, 1]}
    rows = {t: dict(zip(workers, (labels[z] for z in zs), strict=True)) for t, zs in said.items()}
    model = lq.BiLA().partial_fit(rows)
    model.save(tmp_path / "model.lq")
    for each in (model, lq.load(tmp_path / "model.lq").partial_fit({})):
        assert each.workers_.tolist() == workers
        assert set(each.classes_.tolist()) == set(labels)
        assert [type(c) for c in sorted(each.classes_.tolist(), key=labels.index)] == [
            type(label) for label in labels
        ]
    assert model.labels_.to_dict() == {tasks[0]: labels[0], tasks[1]: labels[1]}
    assert list(map(type, model.labels_.index.tolist())) == list(map(type, tasks))
    assert list(map(type, model.labels_.tolist())) == list(map(type, labels))
    assert set(model.errors_.index) == {(w, label) for w in workers for label in labels}


# ── inputs ───────────────────────────────────────────────────────────────────────────────


@both
def test_every_kind_of_table_gives_the_same_answer(kind, chunks, tmp_path):
    chunk = chunks[0]
    path = tmp_path / "labels.csv"
    chunk.to_csv(path, index=False)
    wide = chunk.pivot(index="task", columns="worker", values="label")
    forms = {
        "polars": pl.DataFrame({name: chunk[name].tolist() for name in COLUMNS}),
        "arrow": pa.table({name: chunk[name].tolist() for name in COLUMNS}),
        "dict": {
            task: dict(zip(part.worker, part.label, strict=True))
            for task, part in chunk.groupby("task", sort=False)
        },
        "wide": read_wide(wide),
        "path": path,
        "text path": str(path),
        "aliases": chunk.rename(
            columns=dict(zip(COLUMNS, ["item", "rater", "rating"], strict=True))
        ),
        "shuffled": chunk.sample(frac=1, random_state=1),
    }
    expected = kind().partial_fit(chunk).probas_
    for name, labels in forms.items():
        got = kind().partial_fit(labels).probas_.loc[expected.index]
        pd.testing.assert_frame_equal(got, expected, obj=name)


@both
def test_a_matrix_is_tasks_by_workers_with_holes(kind):
    matrix = np.array([[0, 0, 1], [1, -1, 1], [0, 1, 0]])
    rows = [(t, w, z) for (t, w), z in np.ndenumerate(matrix) if z >= 0]
    expected = kind().partial_fit(frame(rows))
    got = kind().partial_fit(matrix)
    pd.testing.assert_frame_equal(got.probas_, expected.probas_)
    assert got.workers_.tolist() == [0, 1, 2]
    with_nan = np.where(matrix < 0, np.nan, matrix)
    pd.testing.assert_frame_equal(kind().partial_fit(with_nan).probas_, expected.probas_)


def test_a_weight_counts():
    heavy = frame(votes("t", "xxy"), weight=[1, 1, 3])
    model = lq.MajorityVote().partial_fit(heavy)
    assert model.labels_["t"] == "y"
    assert model.probas_.loc["t", "y"] == pytest.approx(0.6)
    # 0 is as good as absent, 2 as good as said twice.
    plain = [*votes("t", "xy"), *votes("u", "yyx")]
    weighted = lq.BiLA(dependence=0).partial_fit(
        frame([*plain, ("t", "c", "x"), ("u", "d", "x")], weight=[1, 1, 1, 1, 1, 0, 2])
    )
    spoken = lq.BiLA(dependence=0, repeats="all").partial_fit(
        frame([*plain, *[("u", "d", "x")] * 2])
    )
    np.testing.assert_allclose(weighted.probas_, spoken.probas_, atol=1e-4)


def test_an_abstention_is_a_missing_label_and_counted():
    model = lq.MajorityVote(abstain="?").partial_fit(frame([*votes("t", "x?x"), *votes("u", "?")]))
    assert model.labels_.to_dict() == {"t": "x"}
    assert model.tally_.skipped == {"abstained": 2}
    assert model.classes_.tolist() == ["x"]


def test_bad_rows_are_an_error_or_skipped_and_counted(bits):
    labels = frame(votes("t", ["x", None, "y"]))
    with pytest.raises(LabelError, match=r"DataFrame row 1: the label is missing"):
        lq.MajorityVote().partial_fit(labels)
    model = lq.MajorityVote(on_bad="skip").partial_fit(labels)
    assert model.tally_.skipped == {"missing label": 1}
    assert model.tally_.rows == 2


# ── classes ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@both
def test_a_new_class_may_appear_at_any_time(kind, chunks):
    model = kind().partial_fit(chunks[0]).partial_fit(chunks[1].replace("dog", "bee"))
    assert model.classes_.tolist() == ["cat", "dog", "fox", "bee"]
    assert model.probas_.columns.tolist() == ["cat", "dog", "fox", "bee"]
    assert (model.labels_ == "bee").any()
    assert model.confusion_.shape[1:] == (4, 4)
    np.testing.assert_allclose(model.errors_.groupby("worker").sum(), 1, rtol=1e-5)


@pytest.mark.slow
@both
def test_a_fixed_list_of_classes_keeps_its_order_and_refuses_others(kind, chunks):
    model = kind(classes=["fox", "cat", "dog", "owl"]).partial_fit(chunks[0])
    assert model.classes_.tolist() == model.probas_.columns.tolist() == ["fox", "cat", "dog", "owl"]
    with pytest.raises(LabelError, match="label 'bee' is not one of the classes") as caught:
        model.partial_fit(frame(votes("t", ["bee"])))
    assert str(caught.value).startswith("DataFrame row 0: ")
    skipping = kind(classes=["cat", "dog"], on_bad="skip").partial_fit(chunks[0])
    assert skipping.tally_.skipped == {"unknown class": (chunks[0].label == "fox").sum()}


def test_classes_may_come_from_numpy(chunks, bits):
    classes = chunks[0].label.unique()
    model = lq.MajorityVote(classes=classes).partial_fit(chunks[0])
    assert set(map(type, model.classes_.tolist())) == {str}
    assert bits(model)
    assert repr(model).startswith("MajorityVote(classes=")
    numbers = lq.MajorityVote(classes=np.array([0, 1])).partial_fit(frame(votes("t", [0, 1, 1])))
    assert numbers.labels_["t"] == 1
    assert bits(numbers)


def test_worker_ability_refuses_a_third_class_with_a_sentence(bits):
    model = lq.BiLA("network", generative="worker_ability").partial_fit(frame(votes("t", "xxy")))
    before, tally = bits(model), model.tally_
    third = frame(votes("u", "z"))
    for refuse in (model.partial_fit, model.predict, model.predict_proba):
        with pytest.raises(LabelError, match=r"knows at most 2 classes. Got 3"):
            refuse(third)
    assert bits(model) == before
    assert model.tally_ == tally
    with pytest.raises(LabelError, match="knows at most 2 classes"):
        lq.BiLA("network", generative="worker_ability", classes=list("xyz")).partial_fit(third)


# ── fit, and scikit-learn's habits ───────────────────────────────────────────────────────


@both
def test_fit_forgets_everything_first(kind, chunks, bits):
    model = kind().partial_fit(chunks[0]).partial_fit(chunks[1])
    model.fit(chunks[2])
    assert bits(model) == bits(kind().fit(chunks[2]))
    assert model.labels_.index.tolist() == list(dict.fromkeys(chunks[2].task))


@both
def test_fit_takes_all_tasks_at_once(kind, chunks):
    everything = pd.concat(chunks)
    offline = kind(warmup_items=1000)  # which is for streams
    labels = offline.fit_predict(everything)
    assert labels.index.tolist() == list(dict.fromkeys(everything.task))
    pd.testing.assert_series_equal(labels, kind().partial_fit(everything).labels_)
    probas = kind().fit_predict_proba(everything)
    pd.testing.assert_frame_equal(probas, offline.probas_)


def test_a_fit_that_is_refused_leaves_the_model_as_it_was(bits):
    model = lq.MajorityVote(repeats="error").partial_fit(frame(votes("t", "xxy")))
    before = bits(model)
    with pytest.raises(LabelError):
        model.fit(frame([*votes("t", "x"), *votes("t", "y")]))
    assert bits(model) == before
    assert model.labels_["t"] == "x"


@both
def test_a_clone_has_the_settings_and_none_of_the_learning(kind, chunks):
    model = kind(seed=3, classes=["cat", "dog", "fox"], open_items=5).partial_fit(chunks[0])
    twin = clone(model)
    assert type(twin) is kind
    assert twin.get_params() == model.get_params()
    assert twin.labels_.empty
    assert model.labels_.size == 16


def test_settings_can_be_read_and_set(chunks):
    model = lq.BiLA(kl_weight=0.2)
    assert model.get_params()["kl_weight"] == 0.2
    assert model.get_params()["seed"] == 0
    assert model.set_params(seed=4, kl_weight=0.3) is model
    assert (model.seed, model.kl_weight) == (4, 0.3)
    with pytest.raises(StateError, match=r"BiLA has no setting 'kl_wait'. The nearest .*kl_weight"):
        model.set_params(kl_wait=1)
    with pytest.raises(StateError, match=r"BiLA has no setting 'clases'. The nearest .*classes"):
        lq.estimator("bila", clases=3)
    with pytest.raises(StateError, match="has a preset already"):
        lq.estimator("bila:recipe", preset="default")
    assert repr(model) == "BiLA(kl_weight=0.3, seed=4)"


@both
@pytest.mark.parametrize("seed", [-5, 2**31, 2**50, 2**70, np.int64(3)])
def test_any_whole_number_can_be_a_seed(kind, seed, bits, tmp_path):
    labels = frame([*votes("t", "xy"), *votes("u", "yx")])
    model = kind(seed=seed).partial_fit(labels)
    assert bits(model) == bits(kind(seed=seed).partial_fit(labels))
    assert lq.load(tmp_path / "model.lq").seed == seed


@both
def test_a_seed_that_is_no_whole_number_is_refused(kind):
    with pytest.raises(StateError, match="`seed` must be a whole number"):
        kind(seed=1.5).partial_fit(frame(votes("t", "xy")))


def test_setting_a_setting_forgets_what_was_learned_under_the_old_one(chunks):
    model = lq.MajorityVote().partial_fit(chunks[0])
    model.set_params(classes=["cat", "dog", "fox", "owl"])
    assert model.labels_.empty
    assert model.partial_fit(chunks[0]).probas_.shape == (16, 4)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"preset": "best"}, "`preset` of BiLA must be one of"),
        (
            {"preset": "network", "kl_weight": -1},
            "`kl_weight` of bila must be a number ≥ 0. Got -1",
        ),
        ({"preset": "network", "predict_by": "oracle"}, "`predict_by` of bila must be one of"),
        ({"generative": "glad"}, "`generative` of bila must be one of"),
        ({"class_prior": "flat"}, "`class_prior` of bila must be one of"),
        ({"repeats": "never"}, "`repeats` must be one of"),
        ({"on_bad": "shrug"}, "`on_bad` must be one of"),
        ({"classes": ["x", "x"]}, "`classes` must name at least one class, and each once"),
        ({"open_items": -1}, "`open_items` must be a whole number ≥ 0"),
    ],
)
def test_a_setting_out_of_range_is_refused_with_one_sentence(settings, sentence):
    with pytest.raises(StateError, match=sentence):
        lq.BiLA(**settings).partial_fit(frame(votes("t", "xy")))


# ── repeats, late labels, corrections ────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("repeats", "shares"),
    [
        ("last", [0, 1]),
        ("first", [0.5, 0.5]),
        ("majority", [0, 1]),  # a's tie falls to y, and counts for half a label
        ("all", [1 / 3, 2 / 3]),
    ],
)
@pytest.mark.filterwarnings("ignore:DataFrame. 1 of 3 labels do not count")
def test_repeats_hold_within_a_chunk_and_across_chunks(repeats, shares):
    first, second = [("t", "a", "x"), ("t", "b", "y")], [("t", "a", "y")]
    within = lq.MajorityVote(repeats=repeats).partial_fit(frame([*first, *second]))
    across = lq.MajorityVote(repeats=repeats).partial_fit(frame(first)).partial_fit(frame(second))
    for model in (within, across):
        np.testing.assert_allclose(model.probas_.loc["t"], shares, atol=1e-6)


@pytest.mark.parametrize(
    ("repeats", "corrected", "repeated"),
    [("last", 1, 0), ("first", 0, 1), ("majority", 1, 0), ("all", 0, 0)],
)
def test_what_became_of_a_repeat_is_counted(repeats, corrected, repeated):
    model = lq.MajorityVote(repeats=repeats).partial_fit(frame(votes("t", "xy")))
    tally = model.partial_fit(frame([("t", "a", "y")])).tally_
    assert (tally.corrected, tally.repeated, tally.late_items) == (corrected, repeated, 1)


def judges(n_items, own, seed=0):
    """Five judges with three votes on each task; a share of votes is their settled opinion."""
    rng = np.random.default_rng(seed)
    truth, shape = rng.integers(3, size=(n_items, 1, 1)), (n_items, 5, 3)

    def draw(shape):
        wrong = (truth + rng.integers(1, 3, size=shape)) % 3
        return np.where(rng.random(shape) < 0.62, truth, wrong)

    opinion = draw((n_items, 5, 1))
    label = np.where(rng.random(shape) < own, opinion, draw(shape))
    task, worker, _ = np.indices(shape)
    columns = {"task": task.ravel(), "worker": worker.ravel(), "label": label.ravel()}
    return pd.DataFrame(columns), truth.ravel()


@pytest.mark.parametrize("repeats", ["all", "majority"])
@pytest.mark.parametrize("own", [0, 0.6, 0.9])
def test_confidence_is_honest_whether_votes_repeat_an_opinion_or_not(repeats, own):
    labels, truth = judges(600, own)
    model = lq.BiLA(repeats=repeats).fit(labels)
    right = (model.labels_.to_numpy() == truth).mean()
    assert model.probas_.max(axis=1).mean() == pytest.approx(right, abs=0.07)


def test_votes_are_worth_more_than_the_last_of_them():
    labels, truth = judges(600, 0.6)
    last = labels.groupby(["task", "worker"], as_index=False).last()
    error = {"last": (lq.BiLA().fit(last).labels_.to_numpy() != truth).mean()}
    for repeats in ("majority", "all"):
        error[repeats] = (lq.BiLA(repeats=repeats).fit(labels).labels_.to_numpy() != truth).mean()
    assert error["all"] < error["majority"] < error["last"] - 0.03


@both
def test_votes_of_open_tasks_survive_a_stop(kind, tmp_path):
    labels = judges(40, 0.6)[0]
    first, rest = labels.iloc[::2], labels.iloc[1::2]
    model = kind(repeats="majority").partial_fit(first)
    model.save(tmp_path / "m.lq")
    again = lq.load(tmp_path / "m.lq").partial_fit(rest)
    pd.testing.assert_frame_equal(again.probas_, model.partial_fit(rest).probas_)
    held = again.model_.learned.open_items.get(0)
    assert held.votes[:, 0].tolist() == [3] * 5


def test_votes_that_are_dropped_are_warned_of_once():
    labels = frame([("t", "a", "x"), ("t", "a", "y"), ("t", "b", "x")])
    model = lq.MajorityVote()
    with pytest.warns(UserWarning, match="1 of 3 labels do not count.*repeats='majority'") as seen:
        model.partial_fit(labels).partial_fit(labels)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    for settings in ({"repeats": "first"}, {"repeats": "majority"}, {"repeats": "all"}):
        lq.MajorityVote(**settings).fit(labels)
    lq.MajorityVote().fit(labels.assign(timestamp=[1, 2, 3]))


def test_repeats_can_be_refused_within_and_across_chunks(bits):
    model = lq.MajorityVote(repeats="error").partial_fit(frame(votes("t", "xy")))
    before, tally = bits(model), model.tally_
    for labels in ([("t", "a", "x")], [("u", "a", "x"), ("u", "a", "x")]):
        with pytest.raises(LabelError, match="repeats='error' allows one label each"):
            model.partial_fit(frame(labels))
        assert bits(model) == before
        assert model.tally_ == tally


@both
def test_a_late_label_is_answered_from_all_the_evidence(kind):
    model = kind().partial_fit(frame([*votes("t", "xy"), *votes("u", "xxxx"), *votes("v", "yyyy")]))
    model.partial_fit(frame([("t", "c", "y"), ("t", "d", "y")]))
    assert model.labels_.to_dict() == {"t": "y"}
    all_of_t = frame(votes("t", "xyyy"))
    pd.testing.assert_frame_equal(model.probas_, model.predict_proba(all_of_t))
    assert model.tally_.late_items == 1


@both
def test_a_correction_replaces_what_it_corrects(kind):
    model = kind().partial_fit(frame([*votes("t", "xxy"), *votes("u", "xxx"), *votes("v", "yyy")]))
    model.partial_fit(frame([("t", "a", "y")]))
    pd.testing.assert_frame_equal(model.probas_, model.predict_proba(frame(votes("t", "yxy"))))
    assert model.tally_.corrected == 1
    assert model.report().items.loc["t", "num_annotations"] == 3


def test_a_corrected_label_counts_once_among_its_workers_labels():
    model = lq.MajorityVote().partial_fit(frame([*votes("t", "xxy"), *votes("u", "xxx")]))
    model.partial_fit(frame([("t", "c", "x")]))
    assert model.report().workers.num_examples_labeled.to_dict() == {"a": 2, "b": 2, "c": 2}


def test_the_same_label_again_changes_no_answer():
    model = lq.MajorityVote().partial_fit(frame(votes("t", "xxy")))
    before = model.probas_
    model.partial_fit(frame([("t", "a", "x")]))
    pd.testing.assert_frame_equal(model.probas_, before)
    assert (model.tally_.corrected, model.tally_.repeated) == (0, 1)


@both
def test_a_chunk_sent_twice_teaches_nothing(kind, chunks, bits):
    model = kind().partial_fit(chunks[0]).partial_fit(chunks[1])
    before, answered = bits(model), model.probas_
    assert model.partial_fit(chunks[1]).tally_.repeated == len(chunks[1])
    assert bits(model) == before
    pd.testing.assert_frame_equal(model.probas_, answered)


def test_a_closed_task_is_new_evidence_and_counted_as_returned():
    model = lq.MajorityVote(open_items=2).partial_fit(frame(votes("t", "xxx")))
    for task in ("u", "v"):
        assert model.partial_fit(frame(votes(task, "x"))).tally_.returned_items == 0
    model.partial_fit(frame([("t", "a", "y"), ("v", "b", "y")]))
    assert model.labels_["t"] == "y"  # its three labels are gone
    assert (model.tally_.returned_items, model.tally_.late_items) == (1, 1)


def test_with_no_open_tasks_every_label_is_let_go_at_once(tmp_path):
    model = lq.MajorityVote(open_items=0).partial_fit(frame(votes("t", "xxx")))
    model.partial_fit(frame([("t", "a", "y")]))
    assert model.labels_["t"] == "y"
    assert (model.tally_.returned_items, model.tally_.corrected) == (1, 0)
    model.save(tmp_path / "model.lq")
    kept = read_snapshot(tmp_path / "model.lq")
    assert kept.ids["open_items"] == []
    assert kept.arrays["ledger/label"].size == 0


def test_timestamps_order_the_repeats_of_a_chunk():
    labels = frame([("t", "a", "y"), ("t", "a", "x")], timestamp=["2024-05-02", "2024-05-01"])
    assert lq.MajorityVote().partial_fit(labels).labels_["t"] == "y"
    assert lq.MajorityVote(repeats="first").partial_fit(labels).labels_["t"] == "x"


# ── a refused chunk ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "bad",
    [
        frame([*votes("new", "xy"), ("t", "a", None)]),
        frame([*votes("new", "xy"), (None, "a", "x")]),
        frame([*votes("new", "xy"), ("new", "zoe", "owl")]),
        frame(votes("new", "xy"), weight=[1.0, -1.0]),
        frame([*votes("new", "xy"), ("new", "a", "y")], timestamp=[1, "two", 3]),
        frame(votes("new", "xy")).rename(columns={"label": "verdict"}),
        {"new": "x"},
        3.14,
    ],
    ids=["label", "task", "class", "weight", "timestamps", "column", "dict", "number"],
)
@both
def test_a_refused_chunk_changes_nothing(kind, bad, bits):
    model = kind(classes=["x", "y"]).partial_fit(frame([*votes("t", "xxy"), *votes("u", "yyx")]))
    before, answered, tally = bits(model), model.labels_, model.tally_
    with pytest.raises(LabelError):
        model.partial_fit(bad)
    assert bits(model) == before
    assert model.labels_ is answered
    assert model.tally_ == tally


# ── forgetting ───────────────────────────────────────────────────────────────────────────


@both
def test_a_forgotten_worker_leaves_no_trace_of_his_id_or_labels(kind, chunks, bits):
    secret = "ann-3f9a@example.org"
    chunk = chunks[0].replace({"worker": {"w03": secret}})
    model = kind().partial_fit(chunk)
    given = chunk[chunk.worker == secret]
    others = model.errors_.drop(secret, level="worker")
    assert secret.encode() in bits(model)
    counts = model.report().items.num_annotations

    assert model.forget(secret) is model
    assert secret.encode() not in bits(model)
    assert secret not in model.workers_ and secret not in model.skills_.index
    pd.testing.assert_frame_equal(model.errors_, others)
    assert secret not in model.report().workers.index
    assert (counts - model.report().items.num_annotations).sum() == len(given)
    with pytest.raises(LabelError, match="is not known"):
        model.forget(secret)

    # A worker who returns is new, and their old labels on open tasks do not come back.
    model.partial_fit(given[:1])
    assert model.workers_.tolist()[-1] == secret
    assert model.tally_.corrected == model.tally_.repeated == 0


def test_a_worker_can_be_forgotten_during_warm_up(bits):
    model = lq.MajorityVote(warmup_items=2).partial_fit(frame(votes("t", "xy", ["ann", "zebedee"])))
    model.forget("zebedee")
    assert b"zebedee" not in bits(model)
    model.partial_fit(frame(votes("u", "x", ["ann"])))
    assert model.labels_.to_dict() == {"t": "x", "u": "x"}
    assert model.workers_.tolist() == ["ann"]


# ── corrections and weights together ─────────────────────────────────────────────────────


def test_a_correction_takes_back_the_weight_the_old_label_had():
    rows = [(t, w, "ab"[t % 2]) for t in range(8) for w in range(3)]
    model = lq.BiLA("network").partial_fit(frame(rows))
    again = frame([(0, 0, "b")]).assign(weight=10.0)
    model.partial_fit(again)
    assert model.tally_.corrected == 1
    counts = model.model_.learned.state.label_counts
    np.testing.assert_allclose(counts, [11, 22])


def test_the_same_label_with_another_weight_is_a_correction():
    model = lq.BiLA("network").partial_fit(frame([(0, 0, "a"), (0, 1, "b")]))
    model.partial_fit(frame([(0, 0, "a")]).assign(weight=5.0))
    assert (model.tally_.corrected, model.tally_.repeated) == (1, 0)
    np.testing.assert_allclose(model.model_.learned.state.label_counts, [5, 1])


def test_a_weight_that_would_drown_all_others_is_refused(bits):
    model = lq.BiLA().partial_fit(frame([(0, 0, "a"), (0, 1, "b")]))
    before = bits(model)
    with pytest.raises(LabelError, match="weight"):
        model.partial_fit(frame([(1, 0, "a")]).assign(weight=1e39))
    assert bits(model) == before


def test_late_labels_do_not_count_their_task_again():
    model = lq.MajorityVote().partial_fit(frame([("t", 0, "a"), ("u", 0, "b")]))
    for worker in range(1, 6):
        model.partial_fit(frame([("t", worker, "a")]))
    np.testing.assert_allclose(model.priors_, [0.5, 0.5])


def test_a_setting_that_is_refused_changes_none():
    model = lq.BiLA()
    with pytest.raises(StateError, match="nonsense"):
        model.set_params(kl_weight=5, nonsense=1)
    assert model.get_params()["kl_weight"] is None


@pytest.mark.parametrize("classes", ["yes", {"a", "b"}, 2])
def test_classes_must_come_in_an_order(classes):
    with pytest.raises(StateError, match="`classes` must be a list"):
        lq.MajorityVote(classes=classes).partial_fit(frame([(0, 0, "a")]))


def test_a_saved_model_keeps_its_classes(tmp_path):
    lq.BiLA().partial_fit(frame([(0, 0, "no"), (0, 1, "yes")])).save(tmp_path / "model.lq")
    with pytest.raises(StateError, match="keeps its 'classes'"):
        lq.load(tmp_path / "model.lq", classes=["yes", "no"])


def test_what_the_warm_up_holds_can_be_answered_at_the_end():
    model = lq.BiLA(warmup_items=9).partial_fit(frame([(0, 0, "a"), (0, 1, "a"), (0, 2, "b")]))
    assert model.held_labels_ == 3
    assert model.answer_held().labels_.to_dict() == {0: "a"}
    assert model.held_labels_ == 0


def test_a_closed_task_that_comes_back_is_named():
    model = lq.MajorityVote(open_items=1).partial_fit(frame([(0, 0, "a"), (1, 0, "a")]))
    assert model.returned_.empty
    assert model.partial_fit(frame([(0, 1, "a"), (2, 0, "a")])).returned_.tolist() == [0]


@pytest.mark.parametrize(
    "settings", [{"open_items": 1.5}, {"open_items": "5"}, {"warmup_items": -1}]
)
def test_counts_must_be_whole_numbers(settings):
    with pytest.raises(StateError, match=r"must be a whole number ≥ 0\. Got"):
        lq.MajorityVote(**settings).partial_fit(frame([(0, 0, "a")]))


def test_dates_with_zones_order_repeats_by_the_moment():
    early = pd.Timestamp("2026-01-01 10:00+02:00")
    late = pd.Timestamp("2026-01-01 09:30+00:00")
    rows = frame([(0, 0, "new"), (0, 0, "old")]).assign(timestamp=[late, early])
    assert lq.MajorityVote().fit_predict(rows).to_dict() == {0: "new"}


# ── what learning did ────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("predict_by", ["likelihood", "posterior", "encoder"])
def test_the_labels_after_an_epoch_are_those_of_a_model_that_stops_there(chunks, predict_by):
    settings = {"tolerance": 0.0, "predict_by": predict_by, "minibatch_items": 6}
    model = lq.BiLA("network", epochs=3, record_epochs=True, **settings).fit(chunks[0])
    assert model.epoch_labels_.columns.tolist() == [1, 2, 3]
    for epoch in (1, 3):
        stopped = lq.BiLA("network", epochs=epoch, **settings).fit_predict(chunks[0])
        pd.testing.assert_series_equal(model.epoch_labels_[epoch], stopped, check_names=False)


def test_recording_epochs_changes_nothing_that_is_learned(chunks):
    plain, recording = lq.BiLA("network"), lq.BiLA("network", record_epochs=True)
    for chunk in chunks:
        plain.partial_fit(chunk)
        recording.partial_fit(chunk)
        pd.testing.assert_frame_equal(plain.probas_, recording.probas_)
        assert recording.epoch_labels_.shape == (16, recording.info_.epochs)
    assert plain.info_.epoch_labels is None


def test_labels_of_epochs_that_were_not_recorded_are_refused(chunks):
    with pytest.raises(StateError, match="record_epochs=True"):
        _ = lq.BiLA().fit(chunks[0]).epoch_labels_
    with pytest.raises(StateError, match="record_epochs=True"):
        _ = lq.BiLA("network", record_epochs=True).epoch_labels_


def test_a_task_sent_twice_has_no_labels_of_epochs_the_second_time():
    model = lq.BiLA("network", record_epochs=True).fit(
        frame(votes("t1", "aab") + votes("t2", "bba"))
    )
    model.partial_fit(frame(votes("t3", "bb") + votes("t1", "aab")))
    assert model.epoch_labels_.index.tolist() == ["t3"]
    assert model.labels_.index.tolist() == ["t3", "t1"]


@both
def test_what_learning_did_is_told_until_a_chunk_teaches_nothing(kind, chunks):
    model = kind()
    assert model.info_ is None
    assert model.partial_fit(chunks[0]).info_.n_labels == len(chunks[0])
    assert model.partial_fit(chunks[0][:0]).info_ is None


# ── labels that are no classes ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [float, str])
def test_many_fractional_labels_are_refused(kind):
    def scores(start, stop):
        return pd.DataFrame(
            {"task": range(start, stop), "worker": 0, "label": np.arange(start, stop) / 7}
        ).astype({"label": kind})

    model = lq.MajorityVote().partial_fit(scores(1, 50))  # 42 that are no whole numbers
    with pytest.raises(LabelError, match=r"DataFrame row 0: label .*51 different ones.*Bin them"):
        model.partial_fit(scores(50, 60))
    assert len(model.classes_) == 49
    everything = scores(1, 60)
    listed = lq.MajorityVote(classes=everything.label.tolist()).fit(everything)
    assert len(listed.classes_) == 59
    binned = everything.assign(label=pd.cut(everything.label.astype(float), 5).astype(str))
    assert len(lq.MajorityVote().fit(binned).classes_) == 5
    half_stars = everything.assign(label=np.arange(59) % 20 / 2)
    assert len(lq.MajorityVote().fit(half_stars).classes_) == 20
    assert len(lq.MajorityVote().fit(everything.assign(label=range(59))).classes_) == 59


# ── what stays known ─────────────────────────────────────────────────────────────────────


def test_fit_keeps_every_task_it_was_given(tmp_path):
    labels = frame(
        [(t, w, "xy"[(t + (w == "c") * (t % 3 == 0)) % 2]) for t in range(40) for w in "abc"]
    )
    model = lq.MajorityVote(open_items=10).fit(labels)
    assert len(model.report().items) == 40
    assert model.report().closed_items == 0
    assert len(model.pending(1)) == len(model.expected_gain(tasks=model.pending(1).index)) > 10
    assert model.explain(0).label == "x"
    model.save(tmp_path / "m.lq")
    again = lq.load(tmp_path / "m.lq").partial_fit(frame([(99, "a", "x")]))
    assert len(again.report().items) == 40  # as many as fit was given, and no more
    assert again.report().closed_items == 1
    assert len(lq.MajorityVote(open_items=0).fit(labels).model_.learned.open_items) == 0


def test_a_stream_keeps_its_bound_and_reports_what_is_left_out():
    model = lq.MajorityVote(open_items=10)
    for start in range(0, 40, 8):
        model.partial_fit(
            frame([(t, w, "xy"[t % 2]) for t in range(start, start + 8) for w in "ab"])
        )
    assert len(model.report().items) == 10
    assert model.report().closed_items == 30


def test_a_loaded_model_says_where_its_answers_are(tmp_path):
    model = lq.MajorityVote().partial_fit(frame([("t", "a", "x"), ("t", "b", "x")]))
    model.save(tmp_path / "m.lq")
    again = lq.load(tmp_path / "m.lq")
    for name in ("labels_", "probas_"):
        with pytest.raises(StateError, match=r"does not keep the last chunk's answers. See report"):
            getattr(again, name)
    assert again.report().items["consensus_label"].to_dict() == {"t": "x"}
    assert again.partial_fit(frame([("u", "a", "y")])).labels_.to_dict() == {"u": "y"}


@pytest.mark.parametrize("method", ["bila", "streaming_vb", "stepwise_em", "sbic"])
def test_a_class_that_is_alone_at_first_does_not_stay_certain(method):
    model = lq.estimator(method).partial_fit(frame([("t", "a", "x"), ("u", "a", "x")]))
    assert model.report().items.loc["t", "consensus_quality_score"] == 1
    model.partial_fit(frame([(n, w, "xy"[n % 2]) for n in range(10) for w in "abc"]))
    assert model.report().items.loc["t", "consensus_quality_score"] < 1
    assert "t" in model.pending(1).index
    assert model.explain("t").runner_up == "y"
    assert list(model.report().items.index)[:2] == ["t", "u"]
    late = model.partial_fit(frame([("t", w, "y") for w in "bcd"]))
    assert late.labels_["t"] == "y"
