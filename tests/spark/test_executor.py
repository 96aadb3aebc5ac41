"""What executors do with shards, without Spark."""

import numpy as np
import pytest

import labelquorum as lq
from labelquorum.ingest.chunks import make_chunk
from labelquorum.ingest.readers import read_labels

pytest.importorskip("pyarrow")

from labelquorum.spark import executor


def plain(n_labels):
    rng = np.random.default_rng(0)
    item, worker = np.divmod(rng.permutation(20 * 300)[:n_labels], 300)
    n = {"n_items": 20, "n_workers": 300, "n_classes": 3}
    return make_chunk(item, worker, rng.integers(3, size=n_labels), **n)


def corrected():
    """A chunk with weights, and with labels of an open item, one of which is corrected."""
    model = lq.BiLA()
    model.partial_fit([("a", "u", "x"), ("a", "v", "y"), ("b", "w", "x")])
    held = model.model_.learned.open_items
    table = {"task": ["a", "c"], "worker": ["u", "w"], "label": ["y", "x"], "weight": [0.5, 2.0]}
    said = read_labels(table, model.model_.space)
    return model.model_.learned.vocabulary.read(said, held).chunk


@pytest.mark.parametrize("chunk", [plain(1500), plain(1), plain(0), corrected()])
def test_a_chunk_comes_back_from_bytes_as_it_was(chunk):
    found = executor.chunk_from(executor.chunk_bytes(chunk))
    for name, value in chunk._asdict().items():
        other = getattr(found, name)
        assert np.array_equal(value, other), name
        assert getattr(value, "dtype", None) == getattr(other, "dtype", None), name


def test_a_plain_label_takes_less_than_four_bytes():
    chunk = plain(5000)
    per_item = chunk.item_keys.nbytes + chunk.workers.nbytes + chunk.worker_keys.nbytes
    assert len(executor.chunk_bytes(chunk)) < 4 * chunk.n_labels + per_item + 2000
