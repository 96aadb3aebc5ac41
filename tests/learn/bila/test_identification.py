"""Identification: juries that err together are doubted, sound ones and ordinary crowds are not."""

import warnings

import numpy as np
import pandas as pd
import pytest
from juries import MISLED_SEED, SOUND_SEED, jury_rows

import labelquorum as lq
from labelquorum.evaluation import class_conditional_crowd, label_table
from labelquorum.learn.bila.engines import ENGINE, matrix_engine
from labelquorum.learn.bila.identification import (
    GAMMAS,
    HALF_LIFE,
    MAX_EXPECTED_ERROR,
    MAX_PAST,
    MIN_TRUTHS,
    NO_ANSWERS,
    answer_sums,
    doubt_of,
    expected_errors,
    merged_answers,
    vote_log_odds,
    with_answers,
)
from labelquorum.learn.model_file import state_arrays, state_from_arrays

NOTHING = pd.DataFrame({"task": [], "worker": [], "label": []})


def fitted(rows, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lq.BiLA(**settings).fit(rows)


def votes(rows):
    return lq.MajorityVote().fit(rows).labels_


@pytest.fixture(scope="module")
def misled():
    return jury_rows(MISLED_SEED, sound=False)[0]


def test_a_misled_jury_is_doubted_and_answered_by_its_vote(misled):
    with pytest.warns(UserWarning, match="in doubt which answers are right"):
        model = lq.BiLA().fit(misled)
    doubt = model.doubt()
    assert doubt.in_doubt and doubt.expected_error > MAX_EXPECTED_ERROR
    assert (model.labels_ == votes(misled)).all()
    assert model.probas_.max(axis=1).mean() < 0.75
    assert model.report().doubt == doubt.says != ""


def test_without_the_guard_the_same_jury_is_answered_by_the_worker_model(misled):
    model = fitted(misled, dependence=0.0)
    assert not model.doubt().in_doubt
    assert (model.labels_ != votes(misled)).any()


def test_the_warning_comes_once(misled):
    model = lq.BiLA()
    tasks = list(dict.fromkeys(task for task, *_ in misled))
    half = set(tasks[: len(tasks) // 2])
    with pytest.warns(UserWarning, match="in doubt"):
        model.partial_fit([row for row in misled if row[0] in half])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit([row for row in misled if row[0] not in half])
    assert model.doubt().in_doubt


def test_a_sound_jury_and_an_ordinary_crowd_are_not_doubted():
    sound = fitted(jury_rows(SOUND_SEED, sound=True)[0])
    assert sound.doubt().tasks > 0 and not sound.doubt().in_doubt
    crowd = class_conditional_crowd(200, 20, 3, labels_per_item=5, skill=(0.3, 0.5), seed=0)
    few = fitted(label_table(crowd))
    assert few.doubt().tasks == 0 and not few.doubt().in_doubt and few.report().doubt == ""
    assert few.model_.learned.state.expected_errors == {}


@pytest.mark.slow
def test_most_misled_juries_are_doubted_and_few_sound_ones():
    wrong, doubted, alarms = 0, 0, 0
    for seed in range(2000, 2040):
        rows, truth = jury_rows(seed, sound=False)
        unguarded = fitted(rows, dependence=0.0).labels_
        if np.mean([truth[task] != label for task, label in unguarded.items()]) >= 0.35:
            wrong += 1
            doubted += fitted(rows).doubt().in_doubt
        alarms += fitted(jury_rows(seed, sound=True)[0]).doubt().in_doubt
    assert wrong >= 20
    assert doubted >= 0.85 * wrong
    assert alarms <= 4


def test_enough_true_labels_lift_the_doubt():
    rows, truth = jury_rows(MISLED_SEED, sound=False)
    some = dict(list(truth.items())[:MIN_TRUTHS])
    few = dict(list(some.items())[:-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert lq.BiLA().fit(rows, true_labels=few).doubt().in_doubt
        assert not lq.BiLA().fit(rows, true_labels=some).doubt().in_doubt
        # The same whether truths come with the labels or later.
        late = lq.BiLA(open_items=1000).fit(rows)
        late.partial_fit(NOTHING, true_labels=some)
    assert not late.doubt().in_doubt
    sums = late.model_.learned.state.expected_errors["rich"]
    assert sums[0] == MIN_TRUTHS and sums[1] == len(truth) - MIN_TRUTHS


def test_shards_merge_to_what_one_stream_counted(misled):
    tasks = list(dict.fromkeys(task for task, *_ in misled))
    half = set(tasks[: len(tasks) // 2])
    parts = [fitted([r for r in misled if (r[0] in half) == first]) for first in (True, False)]
    merged = lq.merge(*parts)
    for name, sums in merged.model_.learned.state.expected_errors.items():
        each = [part.model_.learned.state.expected_errors[name] for part in parts]
        np.testing.assert_allclose(sums, each[0] + each[1], rtol=1e-12)
    assert merged.doubt().tasks == len(tasks)


def test_a_saved_model_keeps_the_doubt_and_an_old_one_has_none(misled, tmp_path):
    model = fitted(misled)
    model.save(tmp_path / "jury.lq")
    assert lq.load(tmp_path / "jury.lq").doubt() == model.doubt()
    state = model.model_.learned.state
    arrays = {n: a for n, a in state_arrays(state).items() if "expected_errors" not in n}
    assert state_from_arrays(type(state), arrays).expected_errors == {}


def test_labels_that_come_one_by_one_do_not_count_a_task_twice(misled):
    model = fitted(misled, open_items=1000)
    before = model.model_.learned.state.expected_errors["rich"]
    task, worker, _ = misled[0]
    model.retract(task, worker)
    after = model.model_.learned.state.expected_errors["rich"]
    assert after[1] == before[1] and after[2] == before[2] + 1
    assert after[3] == pytest.approx(min(before[3], MAX_PAST) * 0.5 ** (1 / HALF_LIFE) + 1)
    np.testing.assert_allclose(after[4:] / after[3], before[4:] / before[3], atol=0.02)


def test_many_sure_labels_are_not_taken_for_a_truth_that_was_given():
    """Of 45 good workers, q rounds to 0 and 1 in float32."""
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 2, 60)
    said = truth[:, None] ^ (rng.random((60, 45)) < 0.03)
    rows = [(task, f"w{k}", int(said[task, k])) for task in range(60) for k in range(45)]
    model = lq.BiLA(open_items=1000).fit(rows)
    for late in range(3):
        model.partial_fit([(task, f"late{late}", int(truth[task])) for task in range(60)])
    assert model.doubt().tasks == 60


def test_a_stream_that_began_with_one_large_chunk_is_doubted_as_soon():
    rows = {True: [], False: []}
    for seed in range(4):
        for sound, first in ((True, SOUND_SEED), (False, MISLED_SEED)):
            part = jury_rows(first + seed, sound)[0]
            rows[sound] += [(f"{sound} {seed} {task}", *rest) for task, *rest in part]
    model = lq.BiLA().fit(rows[True])
    assert not model.doubt().in_doubt
    misled = list(dict.fromkeys(row[0] for row in rows[False]))
    chunk = [row for row in rows[False] if row[0] in misled[:100]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.partial_fit(chunk)
    assert model.doubt().in_doubt


def test_a_stream_whose_tasks_begin_to_mislead_is_doubted_within_two_chunks():
    sound, misled = (
        jury_rows(seed, sound)[0] for seed, sound in ((SOUND_SEED, True), (MISLED_SEED, False))
    )
    model = lq.BiLA()
    doubted = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows, name in ((sound, "sound"), (misled, "misled")):
            tasks = list(dict.fromkeys(task for task, *_ in rows))
            for start in range(0, 100, 50):
                chosen = set(tasks[start : start + 50])
                part = [(f"{name} {t}", w, label) for t, w, label in rows if t in chosen]
                model.partial_fit(part)
                doubted.append(model.doubt().in_doubt)
    assert doubted == [False, False, False, True]


def test_c_and_numpy_have_the_same_doubt(misled, monkeypatch):
    compiled = fitted(misled).doubt()
    monkeypatch.setenv(ENGINE, "numpy")
    matrix_engine.cache_clear()
    assert fitted(misled).doubt().expected_error == pytest.approx(compiled.expected_error, 1e-4)
    matrix_engine.cache_clear()


def test_deciding_tasks_are_those_on_which_the_readings_differ(misled):
    model = fitted(misled, open_items=1000)
    table = model.deciding_tasks(5)
    assert len(table) == 5 and table["difference"].is_monotonic_decreasing
    unguarded = fitted(misled, dependence=0.0).labels_
    assert (unguarded[table.index] == table["by_model"]).all()
    assert (table["by_model"] != table["by_vote"]).any()
    truths = dict.fromkeys(table.index, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.partial_fit(NOTHING, true_labels=truths)
    assert not set(truths) & set(model.deciding_tasks(5).index)


def test_expected_errors_count_guesses_as_one_and_sure_answers_as_none():
    scores, workers = np.array([[0.0, 0.0], [500.0, 0.0], [0.0, 0.0]]), np.array([10.0, 12.0, 9.0])
    votes = np.array([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]])
    errors = expected_errors(np.array([scores, 0 * scores]), np.where(workers < 10, 0, workers))
    np.testing.assert_allclose(errors, [[1] * 5, [2] * 5])  # of two models
    sums, other = answer_sums(errors, votes, workers, np.zeros(3, bool))
    assert sums[:5].tolist() == other[:5].tolist()
    assert sums[:4].tolist() == [0, 2, 2, 2]
    # Of ten workers, five on either side, 20 pairs of 45 agree: less than by chance.
    assert sums[4] == pytest.approx(2 * (20 / 45 - 0.5) + 1)
    np.testing.assert_allclose(sums[5:], 1, atol=1e-6)  # a guess and a sure answer


def test_a_doubt_takes_an_unsure_crowd_that_disagrees_and_enough_tasks_of_ten_workers():
    def sums(tasks, expected_error, skill):
        return np.array([0, tasks, tasks, *tasks * np.array([1, skill**2, *[expected_error] * 5])])

    assert doubt_of(sums(100, 0.5, 0.5), GAMMAS[2], 100).in_doubt
    assert not doubt_of(sums(100, 0.5, 0.6), GAMMAS[2], 100).in_doubt  # workers agree
    assert not doubt_of(sums(100, 0.4, 0.5), GAMMAS[2], 100).in_doubt  # a surer crowd
    assert not doubt_of(sums(40, 0.5, 0.5), GAMMAS[2], 40).in_doubt  # few tasks
    assert not doubt_of(sums(100, 0.5, 0.5), GAMMAS[2], 250).in_doubt  # most have fewer workers
    assert not doubt_of(NO_ANSWERS, 0.0, 0).in_doubt


def test_parts_that_went_on_from_a_base_fade_it_once():
    rng = np.random.default_rng(0)
    base, *more = (np.array([1, n, n, *n * rng.random(7)]) for n in (40, 25, 75))
    parts = [with_answers(base, one) for one in more]
    merged = merged_answers(parts, base)
    np.testing.assert_allclose(merged[:3], [3, 140, 140])
    # What is of the base has seen 100 answers pass, and what is of a part none.
    np.testing.assert_allclose(merged[3:], base[3:] / 4 + more[0][3:] + more[1][3:])
    np.testing.assert_allclose(merged_answers(parts[:1], base), parts[0])
    np.testing.assert_allclose(merged_answers(more, NO_ANSWERS), more[0] + more[1])


def test_a_crowd_below_chance_still_votes_for_what_it_says():
    assert vote_log_odds(0.1, 2) > 0
    assert vote_log_odds(3.0, 2) == pytest.approx(np.log(3))
