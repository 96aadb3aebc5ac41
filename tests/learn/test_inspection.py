"""What people act on: intervals that cover, explanations, tasks that want a label, and whose."""

from functools import cache

import numpy as np
import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.errors import LabelError, StateError
from labelquorum.evaluation import chunks, class_conditional_crowd, label_table, one_coin_crowd
from labelquorum.evaluation.simulate.crowds import draw_labels
from labelquorum.ingest.chunks import cut_chunks
from labelquorum.ingest.labels import LabelTable
from labelquorum.learn.estimators import method_names

NAMES = np.array(["cat", "dog", "fox", "owl"])


def learned(crowd, chunk_items=50, **settings):
    model = lq.BiLA(**settings)
    for part in chunks(crowd, chunk_items):
        model.partial_fit(LabelTable(*(column.tolist() for column in part)))
    return model


def rows_of(crowd):
    return pd.DataFrame(
        {
            "task": [f"t{item:03}" for item in crowd.item],
            "worker": [f"w{worker:02}" for worker in crowd.worker],
            "label": NAMES[crowd.label],
        }
    )


@pytest.fixture(scope="module")
def crowd():
    return class_conditional_crowd(240, 20, 3, 4, seed=3)


@pytest.fixture(scope="module")
def model(crowd):
    """A model with text for ids, its 240 tasks open. Look, do not touch."""
    return lq.BiLA("recipe").partial_fit(rows_of(crowd))


@pytest.fixture
def mine(model, tmp_path):
    """The same, to touch."""
    model.save(tmp_path / "mine.lq")
    return lq.load(tmp_path / "mine.lq")


# ── intervals cover ──────────────────────────────────────────────────────────────────────

CROWDS = {
    "one-coin, 2 classes, 5 labels per item": lambda seed: one_coin_crowd(
        1800, 150, 2, 5, seed=seed
    ),
    "one-coin, 4 classes, 3 labels per item": lambda seed: one_coin_crowd(
        3000, 150, 4, 3, seed=seed
    ),
    "2 classes, 3 labels per item": lambda seed: class_conditional_crowd(
        3000, 150, 2, 3, seed=seed
    ),
    "3 classes, 10 labels per item": lambda seed: class_conditional_crowd(
        900, 150, 3, 10, seed=seed
    ),
    "5 classes, 5 labels per item": lambda seed: class_conditional_crowd(
        3000, 150, 5, 5, seed=seed
    ),
    "unequal classes, 10 labels per item": lambda seed: class_conditional_crowd(
        900, 150, 3, 10, class_prior=(0.6, 0.3, 0.1), seed=seed
    ),
}


@cache
def learned_from(make, seed, **settings):
    """A crowd and a model of it; what it is asked for later changes nothing in it."""
    crowd = make(seed)
    return crowd, learned(crowd, classes=list(range(len(crowd.class_prior))), **settings)


def coverage(make, level, **settings):
    skill_covered, entry_covered = [], []
    for seed in (0, 1):
        crowd, model = learned_from(make, seed, **settings)
        truth = crowd.confusion[model.workers_]
        right = np.diagonal(truth, axis1=1, axis2=2) @ crowd.class_prior
        skills, entries = model.skill_intervals(level), model.confusion_intervals(level)
        skill_covered.append((skills["low"] <= right) & (right <= skills["high"]))
        entry_covered.append((entries["low"] <= truth.ravel()) & (truth.ravel() <= entries["high"]))
    return np.mean(skill_covered), np.mean(entry_covered)


@pytest.mark.coverage
@pytest.mark.parametrize("name", CROWDS)
def test_95_percent_intervals_cover_95_percent_of_300_workers(name):
    skill, entry = coverage(CROWDS[name], 0.95)
    assert 0.90 <= skill <= 0.99
    assert 0.90 <= entry <= 0.99


@pytest.mark.coverage
@pytest.mark.parametrize("name", list(CROWDS)[:4])
def test_80_percent_intervals_cover_80_percent_of_300_workers(name):
    skill, entry = coverage(CROWDS[name], 0.8)
    assert 0.72 <= skill <= 0.88
    assert 0.72 <= entry <= 0.90


@pytest.mark.coverage
@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_account_of_one_accuracy_a_worker_covers_where_workers_have_one(n_classes):
    def make(seed):
        return one_coin_crowd(1800, 150, n_classes, 5, seed=seed)

    skill, entry = coverage(make, 0.95, generative="one_coin")
    assert 0.90 <= skill <= 0.99
    assert 0.90 <= entry <= 0.995


# ── what intervals are like ──────────────────────────────────────────────────────────────


def test_intervals_are_tables_around_what_the_model_says(model):
    skills = model.skill_intervals()
    assert list(skills.columns) == ["skill", "low", "high", "labels"]
    pd.testing.assert_series_equal(skills["skill"], model.skills_, rtol=1e-5, check_dtype=False)
    assert (skills["low"] <= skills["skill"]).all() and (skills["skill"] <= skills["high"]).all()
    assert skills["labels"].sum() == 960
    entries = model.confusion_intervals()
    assert entries.index.names == ["worker", "truth", "label"]
    assert list(entries.columns) == ["prob", "low", "high"]
    np.testing.assert_allclose(entries["prob"], model.confusion_.ravel())
    assert ((entries["low"] <= entries["prob"]) & (entries["prob"] <= entries["high"])).all()
    assert ((entries["low"] >= 0) & (entries["high"] <= 1)).all()


def test_a_higher_level_is_wider_and_more_labels_are_narrower(model):
    narrow, wide = (model.skill_intervals(level) for level in (0.5, 0.99))
    assert (wide["low"] < narrow["low"]).all() and (wide["high"] > narrow["high"]).all()
    long = learned(class_conditional_crowd(2400, 20, 3, 4, seed=3)).skill_intervals(0.99)
    assert (long["high"] - long["low"]).mean() < (wide["high"] - wide["low"]).mean() / 2


def test_some_workers_can_be_asked_about_and_have_the_same_bounds(model):
    some = model.skill_intervals(workers=["w07", "w01"])
    assert some.index.tolist() == ["w07", "w01"]
    pd.testing.assert_frame_equal(some, model.skill_intervals().loc[["w07", "w01"]], rtol=1e-4)
    assert len(model.confusion_intervals(workers=["w07"])) == 9
    with pytest.raises(LabelError, match="'eve' is not known"):
        model.skill_intervals(workers=["eve"])


def test_a_saved_model_says_the_same(model, mine):
    pd.testing.assert_frame_equal(mine.skill_intervals(), model.skill_intervals())
    pd.testing.assert_frame_equal(mine.confusion_intervals(0.8), model.confusion_intervals(0.8))
    pd.testing.assert_frame_equal(mine.pending(), model.pending())
    pd.testing.assert_frame_equal(mine.expected_gain(), model.expected_gain())
    assert str(mine.explain("t007")) == str(model.explain("t007"))


@pytest.mark.slow
def test_labels_that_came_together_are_known_better_than_labels_one_by_one():
    crowd = one_coin_crowd(1000, 20, 2, 3, seed=0)
    width = [
        (table["high"] - table["low"]).mean()
        for table in (learned(crowd, size).skill_intervals() for size in (1000, 20))
    ]
    assert width[0] < 0.9 * width[1]


def test_a_forgotten_worker_has_no_interval_and_a_worker_with_a_history_has(mine):
    mine.forget("w03")
    assert "w03" not in mine.skill_intervals().index
    known = {"ann": (90, 100), "bob": (55, 100)}
    table = lq.BiLA("recipe", history=known, classes=["no", "yes"]).skill_intervals()
    assert table.loc["ann", "low"] > table.loc["bob", "high"]
    assert table["labels"].tolist() == [0, 0]


def test_a_method_without_a_posterior_says_what_has_one(crowd):
    vote = lq.MajorityVote().partial_fit(rows_of(crowd))
    for ask in (vote.skill_intervals, vote.confusion_intervals):
        with pytest.raises(StateError, match=r"has no intervals.*Use BiLA\(\)"):
            ask()


@pytest.mark.parametrize("level", [0, 1, 95])
def test_a_level_that_is_none_is_refused(model, level):
    with pytest.raises(StateError, match="`level` must be a number between 0 and 1"):
        model.skill_intervals(level)


@pytest.mark.parametrize("prefix", ["windowed", "refit"])
def test_wrapped_models_have_intervals_of_their_one_chunk(crowd, model, prefix):
    wrapped = lq.estimator(f"{prefix}:bila:recipe").partial_fit(rows_of(crowd))
    pd.testing.assert_frame_equal(wrapped.skill_intervals(), model.skill_intervals(), rtol=1e-4)


def test_before_anything_was_learned_there_is_nothing_to_show():
    for ask in ("skill_intervals", "confusion_intervals", "pending", "expected_gain"):
        with pytest.raises(StateError, match="learned nothing yet"):
            getattr(lq.BiLA("recipe"), ask)()
    with pytest.raises(StateError, match="learned nothing yet"):
        lq.BiLA("recipe").explain("t1")


# ── explanations ─────────────────────────────────────────────────────────────────────────


def test_log_odds_add_up_to_the_confidence_that_was_told(model, crowd):
    for task in list(model.labels_.index[:40]):
        reply = model.explain(task)
        assert reply.label == model.labels_[task]
        probs = model.probas_.loc[task]
        assert reply.confidence == pytest.approx(probs[reply.label])
        assert reply.runner_up == probs.drop(reply.label).idxmax()
        total = reply.prior_log_odds + reply.workers["log_odds"].sum()
        assert reply.total_log_odds == pytest.approx(total)
        assert reply.heat == pytest.approx(1.6)  # four labels
        ratio = np.log(probs[reply.label] / probs[reply.runner_up])
        assert reply.total_log_odds / reply.heat == pytest.approx(ratio, abs=1e-4)
        prior = np.log(model.priors_[reply.label] / model.priors_[reply.runner_up])
        assert reply.prior_log_odds == pytest.approx(prior, abs=1e-3)
        columns = reply.evidence[reply.label] - reply.evidence[reply.runner_up]
        np.testing.assert_allclose(columns, reply.workers["log_odds"], rtol=1e-4, atol=1e-4)


def test_without_the_named_workers_the_answer_is_another(model, crowd):
    rows, flipped = rows_of(crowd), 0
    for task in model.pending(0.9).index[:60]:
        reply = model.explain(task)
        if not reply.flips:
            continue
        flipped += 1
        of_task = rows[rows["task"] == task]
        left = of_task[~of_task["worker"].isin(reply.flips)]
        assert model.predict(left).loc[task] != reply.label
        fewer = of_task[~of_task["worker"].isin(reply.flips[:-1])]
        assert model.predict(fewer).loc[task] == reply.label
    assert flipped > 40


def test_so_many_labels_of_average_workers_flip_an_answer(model, crowd):
    rows, right = rows_of(crowd), 0
    for task in model.labels_.index[:40]:
        reply = model.explain(task)
        number, more = 0, rows[rows["task"] == task]
        while model.predict(more).loc[task] == reply.label:
            number += 1  # of a worker of whom nothing is known but the crowd
            said = {"task": [task], "worker": f"new{number}", "label": reply.runner_up}
            more = pd.concat([more, pd.DataFrame(said)])
        right += number == reply.further_labels
        assert abs(number - reply.further_labels) <= 1
    assert right > 30


def test_an_explanation_is_a_sentence():
    rows = [("q", "ann", "cat"), ("q", "bob", "cat"), ("q", "eve", "dog")]
    others = [(f"o{n}", w, "dog" if n % 2 else "cat") for n in range(40) for w in ("ann", "bob")]
    frame = pd.DataFrame([*rows, *others], columns=["task", "worker", "label"])
    reply = str(lq.BiLA("recipe").partial_fit(frame).explain("q"))
    assert reply.startswith("q: 'cat' with 0.")
    assert "ann (+" in reply and "bob (+" in reply
    assert "outweigh eve (−" in reply
    assert "Without ann and bob it would change" in reply
    assert reply.endswith("more average workers said 'dog'.")


def test_the_class_prior_is_no_person():
    rows = [(f"o{n}", w, "cat" if n % 8 else "dog") for n in range(80) for w in ("ann", "bob")]
    rows += [("q", "ann", "cat"), ("r", "ann", "dog")]
    model = lq.BiLA("recipe").partial_fit(pd.DataFrame(rows, columns=["task", "worker", "label"]))
    likely, unlikely = model.explain("q"), model.explain("r")
    assert likely.prior_log_odds > 0 > unlikely.prior_log_odds
    assert " because ann (+" in str(likely) and ") says so. 'cat' is more frequent" in str(likely)
    assert " because ann (+" in str(unlikely) and ") says so. 'cat' is more frequent" in str(
        unlikely
    )
    assert "than 'dog' (−" in str(unlikely)
    against = likely._replace(workers=likely.workers.assign(log_odds=-0.2))
    assert "although ann by saying 'cat' (−0.2) says otherwise. 'cat' is more" in str(against)


def test_a_judge_is_named_once_however_often_they_vote():
    said = {"ann": "xxy", "bob": "yyy", "eve": "xxx"}
    rows = [("q", judge, vote) for judge, votes in said.items() for vote in votes]
    rows += [(n, judge, "xy"[n % 2]) for n in range(20) for judge in said for _ in range(3)]
    frame = pd.DataFrame(rows, columns=["task", "worker", "label"])
    model = lq.BiLA(repeats="all").fit(frame)
    reply = model.explain("q")
    assert sorted(reply.workers.index) == ["ann", "bob", "eve"]
    assert reply.workers["weight"].tolist() == [3, 3, 3]
    assert reply.workers.loc["ann", "label"] == "x"
    assert str(reply).count("eve (+") == 1
    total = reply.workers["log_odds"].sum() + reply.prior_log_odds
    assert reply.total_log_odds == pytest.approx(total, abs=1e-3)
    shared = model.collusion()["shared"]
    assert shared.tolist() == [21] * 3  # tasks, not the nine pairs of votes on each


def test_a_task_whose_truth_was_given_says_so(mine):
    task = "t000"
    mine.partial_fit(
        pd.DataFrame([(task, "yan", "cat")], columns=["task", "worker", "label"]),
        true_labels={task: "fox"},
    )
    reply = mine.explain(task)
    assert reply.truth_given and reply.label == "fox" and reply.flips == []
    assert str(reply) == f"{task}: 'fox', because its truth was given."
    assert task not in mine.pending(1).index
    assert task not in mine.expected_gain().index


def test_a_task_that_is_not_open_says_what_to_do(model):
    with pytest.raises(LabelError, match=r"'nope' is not open.*set open_items= higher"):
        model.explain("nope")
    with pytest.raises(LabelError, match="'nope' is not open"):
        model.expected_gain(tasks=["t001", "nope"])


@pytest.mark.slow
def test_classes_and_workers_that_came_or_went_since_are_no_trouble(mine):
    before = mine.explain("t005")
    worker = before.workers.index[0]
    mine.partial_fit(
        pd.DataFrame([("new", w, "yak") for w in ("a", "b")], columns=["task", "worker", "label"])
    )
    mine.forget(worker)
    reply = mine.explain("t005")
    assert reply.label == before.label and reply.confidence == before.confidence
    assert worker not in reply.workers.index
    assert list(reply.evidence.columns) == ["cat", "dog", "fox"]
    gain = mine.expected_gain()
    assert gain["gain"].notna().all() and worker not in set(gain["best_worker"])
    assert "new" in gain.index and len(mine.confusion_intervals(workers=["a"])) == 16


SLOW = ("bila:www2021", "bila:authors", "bila:network")
THREE_CLASSES = [name for name in method_names() if name not in ("sbic", *SLOW)]


@pytest.mark.parametrize("name", [*THREE_CLASSES, "refit:mace"])
def test_every_method_is_explained(crowd, name):
    model = lq.estimator(name).partial_fit(rows_of(crowd))
    pending = model.pending(1)
    assert len(pending) == (model.probas_.max(axis=1) < 1).sum()
    reply = model.explain("t001")
    assert reply.label == model.labels_["t001"]
    assert np.isfinite(reply.workers["log_odds"]).all()
    assert np.isfinite(reply.prior_log_odds) or np.isnan(reply.prior_log_odds)
    assert str(reply).startswith("t001: ")
    assert (model.expected_gain()["gain"] >= 0).all()


@pytest.mark.slow
def test_it_is_told_of_which_methods_the_prior_cannot_be_told(crowd):
    def prior(name):
        return lq.estimator(name).partial_fit(rows_of(crowd)).explain("t001").prior_log_odds

    for name in ("dawid_skene", "one_coin", "streaming_vb", "bila", "bila:recipe", "bila:network"):
        assert np.isfinite(prior(name)), name
    for name in ("majority_vote", "glad", "bwa"):
        assert np.isnan(prior(name)), name


# ── tasks that want a label ──────────────────────────────────────────────────────────────


def test_pending_tasks_are_those_below_the_threshold_the_least_confident_first(model):
    table = model.pending(0.9)
    confidence = model.probas_.max(axis=1)
    assert set(table.index) == set(confidence.index[confidence < 0.9])
    assert list(table.columns) == ["label", "confidence", "labels"]
    assert table["confidence"].is_monotonic_increasing
    assert (table["labels"] == 4).all()
    pd.testing.assert_series_equal(table["label"], model.labels_[table.index], check_names=False)
    assert model.pending(0).empty


def test_ids_keep_their_type(crowd):
    model = learned(crowd)
    assert model.pending().index.dtype == np.int64
    assert model.skill_intervals().index.dtype == np.int64
    table = model.expected_gain(workers=[3, 5])
    assert table.index.get_level_values("worker").dtype == np.int64
    assert model.explain(7).task == 7


def test_gains_are_sorted_and_nobody_is_asked_twice(model, crowd):
    table = model.expected_gain()
    columns = ["gain", "confidence", "expected_confidence", "best_worker", "best_gain"]
    assert list(table.columns) == columns
    assert table["gain"].is_monotonic_decreasing
    assert (table["best_gain"] >= table["gain"] - 1e-9).all()
    np.testing.assert_allclose(table["expected_confidence"], table["confidence"] + table["gain"])
    labelled = set(rows_of(crowd)[["task", "worker"]].itertuples(index=False, name=None))
    assert not labelled & set(table["best_worker"].items())
    pairs = model.expected_gain(workers=["w01", "w02", "w03"])
    assert not labelled & set(pairs.index)
    assert len(pairs) == 3 * 240 - sum(worker in ("w01", "w02", "w03") for _, worker in labelled)
    assert len(model.expected_gain(top=7)) == len(model.expected_gain(workers=["w01"], top=7)) == 7
    best = table["best_worker"].iloc[0]
    alone = model.expected_gain(tasks=[table.index[0]], workers=[best])
    assert alone["gain"].iloc[0] == pytest.approx(table["best_gain"].iloc[0])


def test_by_a_better_worker_more_is_gained(model):
    skills = model.skills_.sort_values()
    pairs = model.expected_gain(workers=[skills.index[0], skills.index[-1]])["gain"]
    means = pairs.groupby("worker").mean()
    assert means[skills.index[-1]] > 2 * means[skills.index[0]]


def more_labels(rng, crowd, tasks, had):
    """A label on each of these tasks by a worker who has given none."""
    n_workers = len(crowd.confusion)
    worker = [int(rng.choice(list(set(range(n_workers)) - had[task]))) for task in tasks]
    for task, k in zip(tasks, worker, strict=True):
        had[task].add(k)
    label = draw_labels(rng, crowd.confusion, np.array(worker), crowd.truth[tasks])
    return LabelTable(list(tasks), worker, label.tolist())


def who_labelled(crowd):
    had = [set() for _ in crowd.truth]
    for item, worker in zip(crowd.item.tolist(), crowd.worker.tolist(), strict=True):
        had[item].add(worker)
    return had


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 4])
def test_expected_gains_come_true(n_classes):
    # Labels of this crowd are independent, so that nothing is to be discounted.
    crowd = one_coin_crowd(3000, 25, n_classes, 3, seed=1)
    model = lq.BiLA("recipe", dependence=0).partial_fit(label_table(crowd, text_ids=False))
    before = model.labels_.loc[range(3000)] == crowd.truth
    expected = model.expected_gain()["gain"].mean()
    rng = np.random.default_rng(0)
    model.partial_fit(more_labels(rng, crowd, range(3000), who_labelled(crowd)))
    rise = (model.labels_.loc[range(3000)] == crowd.truth).astype(float) - before
    error = rise.std() / np.sqrt(len(rise))
    assert abs(rise.mean() - expected) < 2.5 * error
    assert expected > 4 * error


@pytest.mark.slow
def test_asking_by_gain_beats_asking_at_random():
    def error(by_gain, seed):
        crowd = one_coin_crowd(400, 25, 3, 2, seed=seed)
        model, rng = lq.BiLA("recipe"), np.random.default_rng(seed)
        model.partial_fit(label_table(crowd, text_ids=False))
        had = who_labelled(crowd)
        for _ in range(5):
            order = model.expected_gain(top=40).index if by_gain else rng.permutation(400)[:40]
            model.partial_fit(more_labels(rng, crowd, order.tolist(), had))
        return (model.report().items["consensus_label"].loc[range(400)] != crowd.truth).mean()

    seeds = range(4)
    by_gain, at_random = (np.mean([error(how, seed) for seed in seeds]) for how in (True, False))
    assert by_gain < at_random - 0.02


# ── what cannot be asked ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda model: model.pending(95), "`threshold` must be a number between 0 and 1. Got 95"),
        (lambda model: model.pending(float("nan")), "`threshold` must be a number between"),
        (lambda model: model.skill_intervals("0.95"), "`level` must be a number between 0 and 1"),
        (lambda model: model.skill_intervals(workers="ann"), "`workers` must be a list of ids"),
        (lambda model: model.expected_gain(tasks=1), "`tasks` must be a list of ids, even of one"),
        (lambda model: model.expected_gain(top=-1), "`top` must be a whole number ≥ 0, or None"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(ask, sentence):
    model = lq.BiLA().fit({"q": {"ann": "y", "bob": "n"}})
    with pytest.raises(StateError, match=sentence):
        ask(model)


def test_where_all_have_labelled_a_task_somebody_new_is_expected_to_be_like_them():
    crowd = one_coin_crowd(60, 3, 2, 3, seed=1)
    gain = lq.BiLA(dependence=0.0).fit(label_table(crowd)).expected_gain()
    assert gain["gain"].notna().all() and gain["gain"].max() > 0
    assert gain["best_worker"].isna().all()


def test_an_old_answer_is_explained_as_it_was_given_and_not_as_it_would_be_today():
    crowd = one_coin_crowd(600, 20, 2, 5, class_prior=(0.9, 0.1), seed=0)
    model, reply = lq.BiLA(), {}
    for chunk in cut_chunks([label_table(crowd)], chunk_items=50):
        model.partial_fit(chunk)
        reply = reply or {task: model.explain(task) for task in model.labels_.index[:20]}
    for task, before in reply.items():
        now = model.explain(task)
        assert (now.heat, now.flips) == (before.heat, before.flips)
        assert now.prior_log_odds == pytest.approx(before.prior_log_odds)


@pytest.mark.slow
def test_a_merged_model_is_no_better_known_after_one_label_more():
    crowd = one_coin_crowd(200, 10, 2, 4, seed=2)
    shards = [lq.BiLA().partial_fit(chunk) for chunk in cut_chunks([label_table(crowd)], 100)]
    merged = lq.merge(*shards)
    before = merged.skill_intervals()
    merged.partial_fit({"new": {before.index[0]: 1}})
    after = merged.skill_intervals()
    width = [(table["high"] - table["low"]).mean() for table in (before, after)]
    assert width[1] == pytest.approx(width[0], rel=0.1)


def test_a_label_that_speaks_for_the_other_side_is_told_with_what_was_said():
    rows = {f"t{i}": dict.fromkeys("pq", "ab"[i % 2]) | {"liar": "ba"[i % 2]} for i in range(60)}
    reply = str(lq.BiLA().fit(rows).explain("t1"))
    assert "liar by saying 'a' (+" in reply and "p (+" in reply
