"""Other people's aggregators, run in the same table as ours.

Crowd-Kit's own DawidSkene, MACE and GLAD, with its own defaults. They have no `partial_fit`: on a
stream all labels so far are fitted again at each chunk, as their users must.
"""

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self

import pandas as pd

from labelquorum.errors import StateError
from labelquorum.ingest.chunks import concatenate
from labelquorum.ingest.labels import LabelTable

PEERS: dict[str, str] = {
    "crowdkit:dawid_skene": "DawidSkene",
    "crowdkit:mace": "MACE",
    "crowdkit:glad": "GLAD",
}
"""The class of `crowdkit.aggregation` behind each name."""


class Peer:
    """A method of Crowd-Kit that can be streamed: it keeps every label and fits them all again."""

    def __init__(self, name: str) -> None:
        if find_spec("crowdkit") is None:
            raise StateError(
                f"{name} needs Crowd-Kit, which is not installed. Install it: pip install crowd-kit"
            )
        self._make: Callable[[], Any] = getattr(import_module("crowdkit.aggregation"), PEERS[name])
        self._parts: list[LabelTable] = []
        self._probas = pd.DataFrame()
        self._labels = pd.Series(dtype=object)
        self._last: list[Any] = []

    def partial_fit(self, labels: LabelTable) -> Self:
        """Fit these labels and all that came before."""
        self._parts.append(labels)
        everything = concatenate(self._parts)
        if everything.weights is not None:
            raise StateError("Crowd-Kit's methods know no weights. Leave the column out.")

        frame = pd.DataFrame(
            {
                "task": everything.item_ids,
                "worker": everything.worker_ids,
                "label": everything.labels,
            }
        )
        # As in ours, the last label of a worker on an item counts.
        frame = frame.drop_duplicates(["task", "worker"], keep="last")
        model = self._make()
        with warnings.catch_warnings():  # of pandas, by the hundred
            warnings.simplefilter("ignore")
            try:
                self._probas = model.fit_predict_proba(frame)
            except Exception as error:
                raise StateError(f"Crowd-Kit: {error}") from error
        self._labels = model.labels_ if hasattr(model, "labels_") else self._probas.idxmax(axis=1)
        self._last = list(dict.fromkeys(labels.item_ids))
        return self

    def predict(self, labels: LabelTable) -> pd.Series:
        """Give the last fit's answers for these items."""
        items: list[Any] = list(dict.fromkeys(labels.item_ids))
        return self._labels.loc[items]

    @property
    def labels_(self) -> pd.Series:
        """The answers for the last chunk's items."""
        return self._labels.loc[self._last]

    @property
    def probas_(self) -> pd.DataFrame:
        """The probabilities for the last chunk's items."""
        return self._probas.loc[self._last].fillna(0.0)
