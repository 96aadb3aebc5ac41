"""Data sets over the network: fetch, convert, check, and only then put in place."""

import csv
import os
import shutil
from collections.abc import Callable, Mapping
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from labelquorum.errors import LabelError, LabelQuorumError
from labelquorum.evaluation.datasets.converters import CONVERTERS, as_files
from labelquorum.evaluation.datasets.load import (
    DatasetInfo,
    check_dataset,
    data_folder,
    dataset_info,
    list_datasets,
    read_dataset,
    unknown_dataset,
    way_to_get,
)

GITHUB = "https://github.com"
PATIENCE = 30.0  # seconds without a byte
PIECE = 2**16

Progress = Callable[[str, int, int | None], None]
"""Called with the path of a file, the bytes that are there, and how many there will be if known."""


def download_dataset(
    name: str,
    folder: str | Path | None = None,
    *,
    progress: Progress | None = None,
    host: str = GITHUB,
) -> Path:
    """Fetch a data set from its source and write it as ours into a folder.

    Nothing is written unless it has the checksums the registry knows, and then all at once. What
    is there already is never written over: if it is right, nothing happens.

    Parameters
    ----------
    name
        A data set of the registry that has a converter.
    folder
        The folder above it; the first that LABELQUORUM_DATA names unless given.
    progress
        Called for every block that arrives.
    host
        Where the repositories are: GitHub, or a mirror.
    """
    root = data_folder(folder)
    info = dataset_info(name)
    if info is None:
        raise unknown_dataset(name, [root])
    place = root / name
    if place.exists():
        is_set = name in list_datasets(root)
        wrong = check_dataset(read_dataset(name, root)) if is_set else ["It is no data set."]
        if wrong:
            raise LabelError(f"{place} is there already, and is not written over. {wrong[0]}")
        return place
    if info.converter is None:
        raise LabelError(f"{name} cannot be downloaded. {way_to_get(info, root)}")
    repository = host.rstrip("/") + str(info.repository).removeprefix(GITHUB)
    sources = [
        _fetch(f"{repository}/raw/HEAD/{quote(path)}", path, place, progress) for path in info.files
    ]
    _put(_converted(info, sources), place)
    return place


def _fetch(address: str, path: str, place: Path, progress: Progress | None) -> bytes:
    content = bytearray()
    try:
        with urlopen(address, timeout=PATIENCE) as answer:
            length = answer.headers.get("Content-Length")
            total = None if length is None else int(length)
            while piece := answer.read(PIECE):
                content += piece
                if progress is not None:
                    progress(path, len(content), total)
        if total is not None and len(content) < total:
            raise OSError(f"{len(content)} of {total} bytes came")
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()
        reason = getattr(error, "reason", None) or error
        raise LabelQuorumError(
            f"{address}: cannot be fetched ({reason}). Check the network and try again, or put "
            f"labels.csv and truth.csv into {place} yourself."
        ) from error
    return bytes(content)


def _converted(info: DatasetInfo, sources: list[bytes]) -> Mapping[str, bytes]:
    """Make our files of the source's; they must be those the registry knows."""
    try:
        files = as_files(CONVERTERS[info.converter or ""](sources))
    except (ValueError, LookupError, csv.Error) as error:
        raise _changed(info, f"could not be read ({type(error).__name__}: {error})") from error
    expected = {"labels.csv": info.labels_sha256, "truth.csv": info.truth_sha256}
    for name, checksum in expected.items():
        content = files.get(name)
        if (None if content is None else sha256(content).hexdigest()) != checksum:
            raise _changed(info, f"gave another {name} than the registry knows")
    return files


def _changed(info: DatasetInfo, what: str) -> LabelQuorumError:
    return LabelQuorumError(
        f"{info.name}: what was fetched from {info.repository} {what}, so nothing was written. The "
        "source has changed, or what came is not from it: look at it there."
    )


def _put(files: Mapping[str, bytes], place: Path) -> None:
    """Write files beside their place and move them there together."""
    made = place.with_name(f".{place.name}-{os.getpid()}")
    try:
        made.mkdir()
        for name, content in files.items():
            (made / name).write_bytes(content)
        made.rename(place)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
