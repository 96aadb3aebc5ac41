"""The methods behind the door, one class each."""

import inspect
import os
from collections.abc import Hashable, Sequence
from typing import Any

from labelquorum.errors import StateError
from labelquorum.ingest.events import OnBad, Repeats
from labelquorum.learn.bila import PRESETS, bila
from labelquorum.learn.door import Estimator
from labelquorum.learn.encoder import Encoder
from labelquorum.learn.generative import GenerativeModel
from labelquorum.learn.snapshot import read_snapshot

__all__ = ["ESTIMATORS", "BiLA", "MajorityVote", "load"]


class BiLA(Estimator):
    """Online label aggregation: consensus now, and a model of every worker.

    Parameters
    ----------
    preset
        "default", "www2021" (Algorithm 1 to the letter) or "authors" (as the released code
        behaves). What follows overrides the preset; see `labelquorum.learn.bila.bila`.
    seed
        Everything random follows from it.
    classes
        The fixed list of classes; None lets them appear.
    repeats, on_bad, abstain
        The rules for rows; see `LabelSpace`.
    open_items
        How many recent tasks stay open for late labels and corrections; 0 discards at once.
    warmup_items
        Hold chunks until this many tasks are there, then answer them together.

    Examples
    --------
    >>> import pandas as pd
    >>> chunk = pd.DataFrame({
    ...     "task": ["t1", "t1", "t1", "t2", "t2", "t2"],
    ...     "worker": ["ann", "bob", "cat", "ann", "bob", "cat"],
    ...     "label": ["yes", "yes", "no", "no", "no", "no"],
    ... })
    >>> BiLA().partial_fit(chunk).labels_.to_dict()
    {'t1': 'yes', 't2': 'no'}

    A simulated crowd, chunk by chunk:

    >>> from labelquorum.ingest.chunks import cut_chunks
    >>> from labelquorum.trial import class_conditional_crowd, error_rate, label_table
    >>> crowd = class_conditional_crowd(1000, 30, 3, labels_per_item=5, seed=0)
    >>> model, answers = BiLA(), []
    >>> for chunk in cut_chunks([label_table(crowd, text_ids=False)], chunk_items=50):
    ...     answers.extend(model.partial_fit(chunk).labels_)
    >>> vote = MajorityVote().fit_predict(label_table(crowd, text_ids=False))
    >>> print(f"BiLA {error_rate(answers, crowd.truth):.1%}, "
    ...       f"majority vote {error_rate(vote, crowd.truth):.1%}")
    BiLA 14.1%, majority vote 16.8%
    """

    method = "bila"

    def __init__(
        self,
        preset: str = "default",
        *,
        generative: str | GenerativeModel | None = None,
        encoder: str | Encoder | None = None,
        hidden_sizes: Sequence[int] | None = None,
        labels_as: str | None = None,
        init_from: str | None = None,
        init_strength: float | None = None,
        kl_weight: float | None = None,
        class_prior: str | None = None,
        optimizer: str | None = None,
        learning_rate: float | None = None,
        decay: float | None = None,
        minibatch_items: int | None = None,
        epochs: int | None = None,
        tolerance: float | None = None,
        predict_by: str | None = None,
        seed: int = 0,
        classes: Sequence[Hashable] | None = None,
        repeats: Repeats = "last",
        on_bad: OnBad = "error",
        abstain: Hashable = None,
        open_items: int = 10_000,
        warmup_items: int = 0,
    ) -> None:
        self._keep(locals())

    def _options(self) -> dict[str, Any]:
        settings = self.get_params()
        preset = settings.pop("preset")
        if preset not in PRESETS:
            raise StateError(f"`preset` of BiLA must be one of {list(PRESETS)}. Got {preset!r}.")
        known = inspect.signature(bila).parameters
        given = {n: v for n, v in settings.items() if n in known and v is not None}
        return {**PRESETS[preset], **given}


class MajorityVote(Estimator):
    """The class most workers named; ties fall by seed and task.

    Examples
    --------
    >>> MajorityVote().fit_predict({"t1": {"ann": 1, "bob": 1, "cat": 0}}).to_dict()
    {'t1': 1}
    """

    method = "majority_vote"

    def __init__(
        self,
        *,
        seed: int = 0,
        classes: Sequence[Hashable] | None = None,
        repeats: Repeats = "last",
        on_bad: OnBad = "error",
        abstain: Hashable = None,
        open_items: int = 10_000,
        warmup_items: int = 0,
    ) -> None:
        self._keep(locals())

    def _options(self) -> dict[str, Any]:
        return {}


ESTIMATORS: dict[str, type[Estimator]] = {"bila": BiLA, "majority_vote": MajorityVote}


def load(path: str | os.PathLike[str], **own: Any) -> Estimator:
    """Read a saved model of any method.

    Parameters
    ----------
    path
        A file that `save` wrote.
    own
        A generative model or encoder of your own, given again by the name of its setting: code
        is never saved.
    """
    snapshot = read_snapshot(path)
    method = snapshot.header["method"]
    if method not in ESTIMATORS:
        raise StateError(
            f"{path}: the method {method!r} is not known to this version, which has "
            f"{list(ESTIMATORS)}. Update labelquorum."
        )
    return ESTIMATORS[method].from_snapshot(path, snapshot, own)
