"""What is known of data sets: who made them, under which licence, where they are, what to expect.

The facts are in `datasets.toml`, a table each; no data are in the package but the toy set. A set
that shares items or labels with others belongs to their family, and a result that counts both as
independent counts twice.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

__all__ = ["Counts", "DatasetInfo", "dataset_info", "known_datasets"]

Order = Literal["source", "arrival", "arrival within items"]


class Counts(NamedTuple):
    """How large a data set is."""

    n_workers: int
    n_items: int  # with labels or with truth
    n_labels: int
    n_classes: int
    n_truth: int  # items whose truth is known


class DatasetInfo(NamedTuple):
    """A data set as the registry knows it."""

    name: str
    title: str
    citation: str
    licence: str
    counts: Counts
    family: str
    """Sets of one family share items or labels; the set's own name if it stands alone."""

    order: Order = "source"
    """Rows stand as in the source, or as the labels arrived, at all or within each item."""

    repository: str | None = None
    files: tuple[str, ...] = ()
    """Paths in the repository, in the order the converter takes them."""

    converter: str | None = None
    labels_sha256: str | None = None
    truth_sha256: str | None = None
    public: bool = True
    note: str | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """Addresses of the source's files, for a person to open."""
        return tuple(f"{self.repository}/blob/HEAD/{quote(path)}" for path in self.files)


def dataset_info(name: str) -> DatasetInfo | None:
    """Give what the registry knows of a data set, or None if it does not know it.

    Parameters
    ----------
    name
        The name of a data set.

    Examples
    --------
    >>> rte = dataset_info("rte")
    >>> rte.counts.n_labels, rte.family, dataset_info("snow_joy").family
    (8000, 'rte', 'snow_emotions')
    """
    return known_datasets().get(name)


@cache
def known_datasets() -> Mapping[str, DatasetInfo]:
    """Give everything the registry knows, by name."""
    text = files("labelquorum.trial").joinpath("datasets.toml").read_text(encoding="utf-8")
    return MappingProxyType(
        {name: _info(name, facts) for name, facts in tomllib.loads(text).items()}
    )


def _info(name: str, facts: dict[str, Any]) -> DatasetInfo:
    counts = Counts(*(facts.pop(field) for field in Counts._fields))
    paths = tuple(facts.pop("files", ()))
    return DatasetInfo(name, counts=counts, family=facts.pop("family", name), files=paths, **facts)
