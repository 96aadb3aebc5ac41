"""The estimators: one class per method, and how to make or load one by name."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Hashable, Sequence
from typing import Any, Unpack

import numpy as np

from labelquorum.errors import StateError
from labelquorum.ingest.labels import OnBad, Repeats
from labelquorum.learn.aggregator import WRAPPERS, split_name
from labelquorum.learn.bila.presets import PRESETS, Preset, settings_of
from labelquorum.learn.bila.settings import (
    LEFT_TO_PRESET,
    SETTINGS,
    Settings,
    complete,
    takes_settings,
)
from labelquorum.learn.estimator import SHARED_SETTINGS, Estimator, check_settings
from labelquorum.learn.lazy import pd
from labelquorum.learn.model_file import crafted_refused, read_snapshot
from labelquorum.learn.registry import AGGREGATORS
from labelquorum.learn.reports import id_index


@takes_settings
class BiLA(Estimator):
    """Online label aggregation: consensus now, and a model of every worker.

    Parameters
    ----------
    preset
        "default" (two worker models, solved on counts; the one with more evidence is selected),
        "recipe" (the hierarchical one alone), "network" (an encoder network and any
        differentiable generative model, by gradient steps), "www2021" (our reading of Algorithm 1)
        or "authors" (as the released code behaves).
    settings
        What overrides the preset: those of `labelquorum.learn.bila.settings.Settings`.
    history
        What is known of workers beforehand, for a preset whose state is counts: labels by truth, a
        dict {worker: {truth: {label: count}}} or a table like `errors_`; or a dict
        {worker: (right, total)}.
    seed
        Determines everything random.
    classes
        The fixed list of classes; None lets new ones appear.
    repeats
        A worker's second label on an open task: "last" or "first" counts, "majority" makes their
        votes one label weighted by its share, "all" counts each, "error" refuses.
    on_bad
        A bad row: "error" stops, "skip" leaves it out and counts it.
    abstain
        The label that means "I do not know": left out and counted.
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
    >>> from labelquorum.evaluation import class_conditional_crowd, error_rate, label_table
    >>> crowd = class_conditional_crowd(1000, 30, 3, labels_per_item=5, seed=0)
    >>> model, answers = BiLA(), []
    >>> for chunk in cut_chunks([label_table(crowd, text_ids=False)], chunk_items=50):
    ...     answers.extend(model.partial_fit(chunk).labels_)
    >>> vote = MajorityVote().fit_predict(label_table(crowd, text_ids=False))
    >>> print(f"BiLA {error_rate(answers, crowd.truth):.1%}, "
    ...       f"majority vote {error_rate(vote, crowd.truth):.1%}")
    BiLA 14.2%, majority vote 16.8%
    """

    method = "bila"

    def __init__(
        self,
        preset: Preset = "default",
        *,
        history: Any = None,
        seed: int = 0,
        classes: Sequence[Hashable] | None = None,
        repeats: Repeats = "last",
        on_bad: OnBad = "error",
        abstain: Hashable = None,
        open_items: int = 10_000,
        warmup_items: int = 0,
        **settings: Unpack[Settings],
    ) -> None:
        self._keep(locals() | complete(settings, LEFT_TO_PRESET))

    def _options(self) -> dict[str, Any]:
        settings = self.get_params()
        preset = settings.pop("preset")
        given = {n: v for n, v in settings.items() if n in SETTINGS and v is not None}
        return settings_of(preset, **given)

    @property
    def epoch_labels_(self) -> pd.DataFrame:
        """The consensus on the last chunk's tasks after every epoch, task × epoch from 1 on.

        Needs `record_epochs=True`. Tasks that came with nothing new were not trained on, and are
        left out.
        """
        labels = getattr(self.info_, "epoch_labels", None)
        if labels is None:
            raise StateError(
                "There are no labels of single epochs. Make the model with record_epochs=True, "
                "and let it learn from a chunk."
            )
        intake, classes = self.model_.answer.intake, self.model_.answer.classes
        fresh = np.bincount(intake.chunk.item, ~intake.chunk.known, intake.chunk.n_items) > 0
        row = np.cumsum(fresh) - 1
        trained = [i for i in intake.order if fresh[i]]
        return pd.DataFrame(
            np.array(classes, object)[labels[row[trained]]],
            index=id_index((intake.item_ids[i] for i in trained), "task"),
            columns=pd.RangeIndex(1, labels.shape[1] + 1, name="epoch"),
        ).infer_objects()


def _estimator_class(method: str, name: str) -> type[Estimator]:
    """The class of a method: its settings are those of the builder and the shared ones."""
    builder = AGGREGATORS[method]
    own = [p for p in inspect.signature(builder).parameters.values() if p.name != "space"]
    shared = [p for p in inspect.signature(BiLA).parameters.values() if p.name in SHARED_SETTINGS]
    signature = inspect.Signature([*own, *shared])

    def keep(self: Estimator, **settings: Any) -> None:
        bound = signature.bind(**settings)
        bound.apply_defaults()
        self._keep(bound.arguments)

    def options(self: Estimator) -> dict[str, Any]:
        return {setting.name: getattr(self, setting.name) for setting in own}

    members = {
        # The builder's example is the builder's.
        "__doc__": (inspect.getdoc(builder) or "").partition("Examples\n---")[0]
        + "The other settings are those of `BiLA`.",
        "__init__": keep,
        "__module__": __name__,
        "__signature__": signature,
        "_options": options,
        "method": method,
    }
    return type(name, (Estimator,), members)


_PUBLISHED_NAMES = {
    "bcc": "BCC",
    "ibcc": "IBCC",
    "mmce": "MMCE",
    "laa": "LAA",
    "glad": "GLAD",
    "mace": "MACE",
    "bwa": "BWA",
    "ebcc": "EBCC",
    "la_one_pass": "LAOnePass",
    "la_two_pass": "LATwoPass",
    "sbic": "SBIC",
    "streaming_vb": "StreamingVB",
    "stepwise_em": "StepwiseEM",
}


def _class_name(method: str) -> str:
    return _PUBLISHED_NAMES.get(method, "".join(map(str.capitalize, method.split("_"))))


ESTIMATORS: dict[str, type[Estimator]] = {"bila": BiLA} | {
    method: _estimator_class(method, _class_name(method))
    for method in AGGREGATORS
    if method != "bila"
}
"""The estimator of each method."""

MajorityVote = ESTIMATORS["majority_vote"]
DawidSkene = ESTIMATORS["dawid_skene"]
BCC = ESTIMATORS["bcc"]
IBCC = ESTIMATORS["ibcc"]
MinimaxEntropy = ESTIMATORS["minimax_entropy"]
MMCE = ESTIMATORS["mmce"]
LAA = ESTIMATORS["laa"]
OneCoin = ESTIMATORS["one_coin"]
GLAD = ESTIMATORS["glad"]
MACE = ESTIMATORS["mace"]
BWA = ESTIMATORS["bwa"]
EBCC = ESTIMATORS["ebcc"]
LAOnePass = ESTIMATORS["la_one_pass"]
LATwoPass = ESTIMATORS["la_two_pass"]
SBIC = ESTIMATORS["sbic"]
StreamingVB = ESTIMATORS["streaming_vb"]
StepwiseEM = ESTIMATORS["stepwise_em"]


def method_names() -> list[str]:
    """Every name `estimator` knows, without prefixes."""
    return [*ESTIMATORS, *(f"bila:{preset}" for preset in PRESETS if preset != "default")]


def estimator(name: str, **settings: Any) -> Estimator:
    """Make an estimator by name: `dawid_skene`, `bila:authors`, `windowed:mmce`.

    Parameters
    ----------
    name
        One of `method_names()`. `windowed:` before it discards the state at each chunk;
        `refit:` keeps all labels and fits them again at each chunk.
    settings
        Of the method.

    Examples
    --------
    >>> estimator("windowed:dawid_skene").method
    'windowed:dawid_skene'
    """
    wrapper, plain = split_name(name)
    if plain not in method_names():
        near = difflib.get_close_matches(plain, method_names(), n=3, cutoff=0.4)
        raise StateError(
            f"There is no method {name!r}. "
            + (f"The nearest names are {', '.join(near)}. " if near else "")
            + f"All are {', '.join(method_names())}; "
            + f"{' or '.join(f'{prefix}:' for prefix in WRAPPERS)} may stand before each."
        )
    method, _, preset = plain.partition(":")
    kind = ESTIMATORS[method]
    if wrapper:
        prefix = wrapper.__name__
        members = {"method": f"{prefix}:{method}", "__reduce__": _reduce_wrapped}
        kind = type(prefix.capitalize() + kind.__name__, (kind,), members)
    check_settings(kind, settings)
    if preset and "preset" in settings:
        raise StateError(f"The name {name!r} has a preset already. Leave out `preset`.")
    model: Estimator = kind(**settings, **({"preset": preset} if preset else {}))
    return model


def _reduce_wrapped(model: Estimator) -> tuple[Any, ...]:
    """How pickle makes a model whose class is made on demand: by the name of its method."""
    return _blank, (model.method,), model.__getstate__()


def _blank(method: str) -> Estimator:
    kind = type(estimator(method))
    return kind.__new__(kind)


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
    with crafted_refused(path):
        kind: type[Estimator] = type(estimator(snapshot.header["method"]))
    return kind.from_snapshot(path, snapshot, own)
