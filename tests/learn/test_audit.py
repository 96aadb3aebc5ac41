"""Certificates and expected errors of a model: by tasks that were drawn and not learned."""

import numpy as np
import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.errors import LabelError
from labelquorum.learn.analysis.certificate import Audit, certificate


@pytest.fixture(scope="module")
def crowd():
    """A model of 400 tasks, their truth, and 120 tasks drawn at random."""
    rng = np.random.default_rng(0)
    truth = {f"t{n}": "abc"[rng.integers(3)] for n in range(400)}
    rows = [
        (task, f"w{k}", true if rng.random() < 0.75 else "abc"[rng.integers(3)])
        for task, true in truth.items()
        for k in range(4)
    ]
    drawn = [f"t{n}" for n in rng.permutation(400)[:120]]
    return lq.BiLA().fit(rows), truth, {task: truth[task] for task in drawn}, rows


def test_a_certificate_names_the_tasks_a_person_must_still_see(crowd):
    model, truth, audit, _ = crowd
    found = model.certify(error=0.05, audit=audit)
    assert found.certified and found.accepted + found.gold + len(found.todo) == 400
    assert not set(found.todo) & set(audit)
    accepted = set(truth) - set(audit) - set(found.todo)
    assert sum(model.labels_[task] != truth[task] for task in accepted) <= 0.05 * 400
    sure = model.probas_.max(axis=1)
    assert sure[list(accepted)].min() == pytest.approx(found.threshold)
    assert "answers may stand" in str(found)


def test_an_audit_may_be_a_dict_a_series_or_a_table_in_the_order_drawn(crowd):
    model, _, audit, _ = crowd
    series = pd.Series(audit)
    table = pd.DataFrame({"task": list(audit), "label": list(audit.values())})
    found = [model.certify(0.05, audit=one) for one in (audit, series, table)]
    assert found[0] == found[1] == found[2]
    probas = model.probas_.sort_index()  # ids decide between equal confidences
    place = {task: n for n, task in enumerate(probas.index)}
    sure = probas.max(axis=1).to_numpy().astype(float)
    wrong = [model.labels_[task] != truth for task, truth in audit.items()]
    direct = certificate(
        sure, Audit(np.array([place[task] for task in audit]), np.array(wrong)), 0.05
    )
    assert direct.accepted == found[0].accepted


def test_without_an_audit_there_is_no_certificate_and_the_error_is_the_models_own(crowd):
    model, *_ = crowd
    found = model.certify()
    assert not found.certified and found.gold_needed > 100
    own = model.expected_error()
    assert own.method == "model"
    assert own.estimate == pytest.approx(1 - model.probas_.max(axis=1).mean(), abs=1e-6)


def test_the_expected_error_of_a_selection_uses_the_gold_in_it(crowd):
    model, truth, audit, _ = crowd
    tasks = list(truth)[:200]
    found = model.expected_error(tasks, audit=audit)
    assert found.tasks == 200 and found.n_gold == len(set(audit) & set(tasks))
    wrong = np.mean([model.labels_[task] != truth[task] for task in tasks])
    assert found.low <= wrong <= found.high
    assert model.expected_error(audit=audit).n_gold == 120


def test_gold_that_was_learned_is_left_out_and_refused_as_an_audit(crowd):
    _, truth, audit, rows = crowd
    learned = dict(list(audit.items())[:10])
    model = lq.BiLA().fit(rows, true_labels=learned)
    assert model.expected_error().tasks == 390
    with pytest.raises(LabelError, match="has learned the truth of task"):
        model.certify(audit=audit)
    rest = {task: truth[task] for task in audit if task not in learned}
    assert model.certify(0.05, audit=rest).tasks == 390


@pytest.mark.parametrize(
    ("audit", "sentence"),
    [
        ({"elsewhere": "a"}, "task 'elsewhere' is none of the 400 answered tasks"),
        (["t1", "t2"], "audit must be a dict"),
        (pd.DataFrame({"task": ["t1", "t1"], "label": ["a", "b"]}), "drawn twice"),
    ],
)
def test_a_bad_audit_is_refused_in_a_sentence(crowd, audit, sentence):
    with pytest.raises(LabelError, match=sentence):
        crowd[0].certify(audit=audit)


def test_a_truth_that_is_a_text_where_answers_are_numbers_is_refused():
    model = lq.BiLA().fit([("t1", "w", 1), ("t1", "v", 1), ("t2", "w", 0), ("t2", "v", 0)])
    with pytest.raises(LabelError, match="a number and a text are two labels"):
        model.certify(audit={"t1": "1"})


def test_an_unknown_task_of_a_selection_is_refused(crowd):
    with pytest.raises(LabelError, match="Task 'nowhere' is not open"):
        crowd[0].expected_error(["nowhere"])
