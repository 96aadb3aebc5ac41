"""Every estimator among scikit-learn's own: tags, clones, pipelines, scores, its checks."""

import pickle
import subprocess
import sys
import typing

import numpy as np
import pandas as pd
import pytest

import labelquorum as lq
from labelquorum.errors import LabelError, StateError
from labelquorum.ingest.vocabulary import Tally
from labelquorum.learn.bila.presets import PRESETS, Preset
from labelquorum.learn.bila.settings import SETTINGS
from labelquorum.learn.reports import Explanation, Report

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_html_repr
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted

LABELS = pd.DataFrame(
    [(f"q{i}", f"w{k}", "yes" if (i + (k == 3)) % 2 else "no") for i in range(8) for k in range(4)],
    columns=["task", "worker", "label"],
)
TRUTH = pd.Series({f"q{i}": "yes" if i % 2 else "no" for i in range(8)})

MEASURED = "its sparse X holds measurements, and each fractional label would be a class"
CANNOT_APPLY = {
    "check_fit_score_takes_y": "y is a keyword, another name of true_labels",
    "check_estimator_sparse_tag": MEASURED,
    "check_estimator_sparse_array": MEASURED,
    "check_estimator_sparse_matrix": MEASURED,
}


@pytest.mark.filterwarnings("ignore:Estimator BiLA does not inherit")  # scikit-learn is optional
def test_the_checks_of_scikit_learn_hold_but_for_those_that_cannot_apply():
    results = check_estimator(
        lq.BiLA(), on_fail=None, on_skip=None, expected_failed_checks=CANNOT_APPLY
    )
    by_status: dict[str, dict[str, object]] = {}
    for result in results:
        by_status.setdefault(result["status"], {})[result["check_name"]] = result["exception"]
    assert "failed" not in by_status, by_status["failed"]
    assert set(by_status["xfail"]) == set(CANNOT_APPLY)
    assert len(by_status["passed"]) >= 28


@pytest.mark.parametrize("name", ["bila", "majority_vote", "glad", "windowed:dawid_skene"])
def test_a_clone_has_the_settings_and_nothing_learned(name):
    model = lq.estimator(name, seed=3).fit(LABELS)
    check_is_fitted(model)
    other = clone(model)
    assert other.get_params() == model.get_params()
    with pytest.raises(NotFittedError, match="instance is not fitted yet"):
        check_is_fitted(other)
    with pytest.raises(NotFittedError, match="has learned nothing yet") as error:
        other.predict(LABELS)
    assert isinstance(error.value, StateError)


def test_a_pipeline_ends_in_a_model():
    drop = FunctionTransformer(lambda frame: frame[frame["worker"] != "w3"])
    pipe = Pipeline([("drop", drop), ("vote", lq.BiLA())])
    assert pipe.fit(LABELS).predict(LABELS).equals(TRUTH.rename_axis("task").rename("agg_label"))
    assert pipe.fit(LABELS, TRUTH).score(LABELS, TRUTH) == 1
    assert pipe.fit_predict(LABELS, TRUTH).to_dict() == TRUTH.to_dict()
    assert "BiLA" in estimator_html_repr(pipe)
    pipe.set_params(vote__seed=3)
    assert pipe.named_steps["vote"].seed == 3


def test_y_is_another_name_of_the_true_labels():
    wrong = TRUTH.map({"yes": "no", "no": "yes"})
    for truth in (wrong, wrong.to_dict(), wrong.to_numpy()):
        assert lq.BiLA().fit_predict(LABELS, y=truth).to_dict() == wrong.to_dict()
        assert lq.BiLA().fit_predict(LABELS, truth).to_dict() == wrong.to_dict()
    assert (
        lq.BiLA()
        .fit(LABELS, y=None)
        .partial_fit(LABELS, y=wrong)
        .labels_.equals(lq.BiLA().fit(LABELS).partial_fit(LABELS, wrong).labels_)
    )
    with pytest.raises(StateError, match="Give one of them"):
        lq.BiLA().fit(LABELS, wrong, y=wrong)
    with pytest.raises(LabelError, match="one truth for each of the 8 tasks"):
        lq.BiLA().fit(LABELS, y=np.array(["yes"]))


def test_the_score_is_the_share_of_right_answers():
    model = lq.MajorityVote().fit(LABELS)
    half = TRUTH.where(TRUTH.index < "q4", "no")
    assert model.score(LABELS, half) == model.score(LABELS, half.to_numpy()) == 0.75
    assert model.score(LABELS, y=TRUTH[:2]) == 1
    with pytest.raises(LabelError, match="none of these tasks has a true label"):
        model.score(LABELS)
    with pytest.raises(LabelError, match="not among these labels"):
        model.score(LABELS, {"q99": "no"})


def test_scikit_learn_is_not_imported_unasked():
    code = (
        "import sys, labelquorum as lq; lq.BiLA().fit({1: {2: 3}}); print('sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


# ── notebooks and types ──────────────────────────────────────────────────────────────────


def test_models_reports_and_explanations_are_shown_in_a_notebook():
    evil = "<script>alert(1)</script>"
    labels = LABELS.replace({"w1": evil, "q1": f"{evil}q", "yes": f"{evil}y"})
    model = lq.BiLA(abstain=evil)
    assert "nothing yet" in model._repr_html_()
    model.fit(labels)
    for shown in (model, model.report(), model.explain(f"{evil}q")):
        page = shown._repr_html_()
        assert "<table" in page and "&lt;script&gt;" in page and "<script" not in page
    assert pickle.loads(pickle.dumps(model))._repr_html_() == model._repr_html_()


def test_help_tells_every_setting_and_the_presets():
    text = lq.BiLA.__doc__
    for name in [*SETTINGS, *lq.BiLA().get_params()]:
        assert f"\n{name}\n    " in text, name
    assert typing.get_args(Preset) == tuple(PRESETS)
    hint = typing.get_type_hints(lq.BiLA.__init__)["preset"]
    assert hint == Preset


def test_results_are_typed():
    members = {name: vars(kind)[name] for kind in lq.BiLA.__mro__[:2] for name in vars(kind)}
    for name, member in members.items():
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or name == "get_params" or not hasattr(function, "__annotations__"):
            continue
        result = str(typing.get_type_hints(function).get("return"))
        assert "Any" not in result.replace("tuple[typing.Any, ...]", ""), name  # an array's shape
    for kind in (Report, Explanation, Tally):
        assert "Any" not in str(typing.get_type_hints(kind)), kind
    assert isinstance(lq.MajorityVote, type) and issubclass(lq.MajorityVote, lq.BiLA.__mro__[1])
