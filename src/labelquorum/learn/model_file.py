"""Saved models: one safetensors file with a JSON header, a version and a SHA-256.

The file's one entry of metadata, "labelquorum", is the SHA-256, a space, and the header.

The file holds arrays and plain JSON, nothing that can run. A crash while it is written leaves the
old file or the new one.
"""

import json
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_origin, get_type_hints

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import load as parse_arrays
from safetensors.numpy import save, save_file

from labelquorum.errors import LabelQuorumError, StateError
from labelquorum.ingest.writers import replacing
from labelquorum.learn.worker_table import WorkerRows

FORMAT_VERSION = 1

Arrays = dict[str, NDArray[Any]]
StateT = TypeVar("StateT")


class Snapshot(NamedTuple):
    """What a file holds."""

    header: dict[str, Any]  # plain JSON
    ids: dict[str, list[Hashable]]  # lists of ids, text and numbers
    arrays: Arrays


def write_snapshot(path: str | os.PathLike[str], snapshot: Snapshot) -> None:
    """Write a file whole or not at all."""
    target, (arrays, metadata) = Path(path), _packed(snapshot)
    try:
        with replacing(target) as temporary:
            save_file(arrays, temporary, metadata)
    except (OSError, safetensors.SafetensorError) as error:
        raise StateError(
            f"{target}: the model could not be saved ({error}). "
            "Choose a folder that exists, can be written to and has room."
        ) from error


def snapshot_bytes(snapshot: Snapshot) -> bytes:
    """The bytes of the file that `write_snapshot` writes."""
    return save(*_packed(snapshot))


def _packed(snapshot: Snapshot) -> tuple[Arrays, dict[str, str]]:
    """The arrays and the metadata of a file."""
    arrays = {name: np.asarray(array, order="C") for name, array in snapshot.arrays.items()}
    for name, ids in snapshot.ids.items():
        arrays[f"ids.{name}"] = np.frombuffer(_encode_ids(name, ids), np.uint8)
    header = json.dumps({**snapshot.header, "format": FORMAT_VERSION}, sort_keys=True)
    return arrays, {"labelquorum": f"{_digest(header, arrays)} {header}"}


def read_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Read a file, and refuse it unless every bit is as it was written."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise StateError(
            f"{path}: no model can be read there ({error.strerror or error}). Check the path."
        ) from error
    return snapshot_from_bytes(data, path)


@contextmanager
def crafted_refused(path: str | os.PathLike[str]) -> Iterator[None]:
    """Give one sentence where what a file holds is no model; anyone can compute its digest."""
    try:
        yield
    except LabelQuorumError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise StateError(
            f"{path}: this file is whole, and what it holds is no model ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}). Give a file that model.save wrote."
        ) from error


def snapshot_from_bytes(data: bytes, path: str | os.PathLike[str]) -> Snapshot:
    """What the bytes of a file hold; errors name the path."""
    size = int.from_bytes(data[:8], "little")
    try:
        arrays = parse_arrays(data)
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__") or {}
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{path}: this is no whole model file ({error}). "
            "It is cut short, damaged or of another kind; use a copy that was saved completely."
        ) from error
    if "labelquorum" not in metadata:
        raise StateError(
            f"{path}: this safetensors file was not written by LabelQuorum. "
            "Give a file that model.save wrote."
        )
    digest, _, text = metadata["labelquorum"].partition(" ")
    padded = data[8 : 8 + size].rstrip(b" ").endswith(b"}")  # the only bytes no digest covers
    if _digest(text, arrays) != digest or not padded:
        raise StateError(
            f"{path}: the content does not match its SHA-256, so it was changed after saving. "
            "Use an untouched copy."
        )
    header = json.loads(text)
    if header["format"] > FORMAT_VERSION:
        raise StateError(
            f"{path}: the file has format {header['format']}, this version reads up to "
            f"{FORMAT_VERSION}. Update labelquorum."
        )
    ids = {
        name.removeprefix("ids."): json.loads(array.tobytes())
        for name, array in arrays.items()
        if name.startswith("ids.")
    }
    return Snapshot(
        header, ids, {name: a for name, a in arrays.items() if not name.startswith("ids.")}
    )


def state_arrays(state: Any) -> Arrays:
    """A state's fields as named arrays."""
    arrays: Arrays = {}
    for field, value in state._asdict().items():
        if isinstance(value, WorkerRows):
            value = value.to_arrays()
        if isinstance(value, Mapping):
            for name, leaf in value.items():
                arrays |= _flat(f"{field}/{name}", np.asarray(leaf))
        else:
            arrays[field] = np.asarray(value)
    return arrays


def state_from_arrays(state_type: type[StateT], arrays: Mapping[str, NDArray[Any]]) -> StateT:
    """Rebuild a state from what `state_arrays` gave."""
    values: dict[str, Any] = {}
    for field, kind in get_type_hints(state_type).items():
        leaves = {
            name.removeprefix(f"{field}/"): array
            for name, array in arrays.items()
            if name.startswith(f"{field}/")
        }
        leaves = _with_bytes(leaves)
        if get_origin(kind) is not dict and not leaves and field not in arrays:
            raise StateError(
                f"This model was saved by another version of labelquorum: its {field!r} is "
                "missing. Learn again, or use the version that saved it."
            )
        if kind is WorkerRows:
            values[field] = WorkerRows(leaves)
        elif kind is int:
            values[field] = int(arrays[field])
        else:
            values[field] = leaves if get_origin(kind) is dict else arrays[field]
    state = state_type(**values)
    checked: StateT = state.checked() if hasattr(state, "checked") else state
    return checked


_SIZES, _BYTES = ".sizes", ".bytes"  # of a leaf whose rows are bytes of any length


def _flat(name: str, leaf: NDArray[Any]) -> Arrays:
    """A leaf as arrays without objects."""
    if leaf.dtype != object:
        return {name: leaf}
    rows = [row or b"" for row in leaf]  # a row of zeros has no bytes
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    return {name + _SIZES: sizes, name + _BYTES: np.frombuffer(b"".join(rows), np.uint8)}


def _with_bytes(leaves: Mapping[str, NDArray[Any]]) -> Arrays:
    """What `_flat` took apart, together again."""
    found = {name: leaf for name, leaf in leaves.items() if not name.endswith((_SIZES, _BYTES))}
    for name in (name.removesuffix(_SIZES) for name in leaves if name.endswith(_SIZES)):
        data, ends = leaves[name + _BYTES].tobytes(), np.cumsum(leaves[name + _SIZES]).tolist()
        found[name] = np.empty(len(ends), object)
        found[name][:] = [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    return found


def _encode_ids(name: str, ids: Sequence[Hashable]) -> bytes:
    for value in ids:
        if value is not None and not isinstance(value, str | int | float):
            raise StateError(
                f"Only text and numbers can be saved as ids. Got {value!r} "
                f"({type(value).__name__}) among the {name}. Convert them before learning."
            )
    # A lone surrogate is no text for UTF-8, but JSON can escape it.
    return json.dumps(list(ids), ensure_ascii=True).encode()


def _digest(header: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = sha256(header.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.asarray(array, order="C").tobytes())
    return digest.hexdigest()
