"""The ledger beside a dict of items, through every sequence of what can happen to it."""

from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from labelquorum.ingest.chunks import id_key, make_chunk
from labelquorum.ingest.vocabulary import Note
from labelquorum.learn import open_items as module
from labelquorum.learn.item_columns import NO_NOTE, OpenItem
from labelquorum.learn.open_items import OpenItems

N_WORKERS, N_MODELS = 5, 2
tasks = st.integers(0, 30)
workers = st.integers(0, N_WORKERS - 1)


class Ledger(RuleBasedStateMachine):
    """The same verbs on `OpenItems` and on an ordered dict of `OpenItem`."""

    @initialize(room=st.integers(0, 12), block_bits=st.integers(0, 3))
    def start(self, room, block_bits):
        # Small blocks, so that one chunk has several and items leave them.
        self.saved = module.BLOCK_BITS, module.BLOCK_ITEMS
        module.BLOCK_BITS, module.BLOCK_ITEMS = block_bits, 1 << block_bits
        self.ledger, self.items, self.closed = OpenItems(room), OrderedDict(), set()
        self.n_classes, self.n_models = 1, N_MODELS

    def teardown(self):
        if hasattr(self, "saved"):
            module.BLOCK_BITS, module.BLOCK_ITEMS = self.saved

    # ── what happens ─────────────────────────────────────────────────────────────────────

    @rule(
        appeared=st.lists(tasks, min_size=1, max_size=14, unique=True),
        seed=st.integers(0, 99),
        more_classes=st.integers(0, 1),
        with_votes=st.booleans(),
        with_notes=st.booleans(),
    )
    def record(self, appeared, seed, more_classes, with_votes, with_notes):
        self.n_classes += more_classes
        chunk, result, counted = self.answered(appeared, np.random.default_rng(seed), with_votes)
        notes = [Note(f"of {task}", seed) for task in sorted(appeared)] if with_notes else None
        names = sorted(appeared)
        order = np.array([names.index(task) for task in appeared], np.intp)
        for task in appeared:
            self.items.pop(task, None)
        for n in order.tolist():
            note = notes[n] if notes else NO_NOTE
            self.items[names[n]] = self.item(chunk, result, counted, n, chunk.gold[n], note)
        self.evict()
        self.ledger.record(
            names,
            order,
            chunk,
            result.log_evidence,
            result.probs,
            result.aggregated,
            notes,
            counted,
            result.temperature,
        )

    @rule(task=tasks, seed=st.integers(0, 99), with_votes=st.booleans())
    def keep(self, task, seed, with_votes):
        chunk, result, counted = self.answered([task], np.random.default_rng(seed), with_votes)
        item = self.item(chunk, result, counted, 0, 0, Note("kept", None))
        self.items.pop(task, None)
        self.items[task] = item
        self.evict()
        self.ledger.keep(task, item, id_key(task))

    @rule(wanted=st.lists(tasks, max_size=6, unique=True), seed=st.integers(0, 99))
    def answer_again(self, wanted, seed):
        known = sorted(set(wanted) & set(self.items))
        if not known:
            return
        rng = np.random.default_rng(seed)
        chunk, result, _ = self.answered(known, rng, False)
        for n, task in enumerate(known):
            old = self.items[task]
            more = self.n_classes - old.counted_probs.shape[1]
            counted = {n: np.pad(old.counted_probs, [(0, 0), (0, more)])}
            self.items[task] = self.item(chunk, result, counted, n, old.gold, old.note)
        self.ledger.answer_again(known, chunk, result)

    @rule(worker=workers)
    def forget_worker(self, worker):
        for task in self.items:
            self.items[task] = without(self.items[task], worker)
        self.ledger.forget_worker(worker)

    @rule(task=tasks, worker=workers)
    def drop(self, task, worker):
        if task in self.items:
            self.items[task] = without(self.items[task], worker)
            self.ledger.drop(task, worker)

    @rule(task=tasks)
    def discard(self, task):
        self.items.pop(task, None)
        self.ledger.discard(task)

    @rule(n_items=st.integers(0, 15))
    def make_room(self, n_items):
        self.ledger.make_room(n_items)

    @rule()
    def save_and_load(self):
        arrays = self.ledger.to_arrays()
        notes = self.ledger.notes
        again = OpenItems.from_arrays(self.ledger.open_items, list(self.ledger), notes, arrays)
        for name, array in again.to_arrays().items():
            np.testing.assert_array_equal(array, arrays[name])
            assert array.dtype == arrays[name].dtype
        self.ledger = again
        if "votes" in arrays:  # a file has votes of all items or of none
            for task, item in self.items.items():
                zeros = np.zeros((len(item.worker), 1 + len(item.probs)), np.float32)
                votes = zeros if item.votes is None else item.votes
                self.items[task] = item._replace(votes=votes)

    # ── what is then so ──────────────────────────────────────────────────────────────────

    @invariant()
    def same_items_in_the_same_order(self):
        assert list(self.ledger) == list(self.items)
        assert len(self.ledger) == len(self.items)
        assert self.ledger.notes == [item.note for item in self.items.values()]
        assert self.ledger.keys.tolist() == list(map(id_key, self.items))
        for task, item in self.items.items():
            assert task in self.ledger and self.ledger.key_of(task) == id_key(task)
            assert self.ledger.n_classes_of(task) == len(item.probs)
            assert_same(self.ledger.get(task), item)

    @invariant()
    def same_columns(self):
        n_classes = max((len(item.probs) for item in self.items.values()), default=0)
        arrays = self.ledger.to_arrays()
        assert arrays["counts"].tolist() == [len(item.worker) for item in self.items.values()]
        ends = np.cumsum(arrays["counts"])
        for n, item in enumerate(self.items.values()):
            rows, known = slice(ends[n] - arrays["counts"][n], ends[n]), len(item.probs)
            for name in ("worker", "label", "weight"):
                np.testing.assert_array_equal(arrays[name][rows], getattr(item, name))
            for name, at in (("log_evidence", rows), ("probs", n), ("counted_probs", n)):
                cells = arrays[name][at]
                assert cells.shape[-1] == n_classes and np.isnan(cells[..., known:]).all()
                np.testing.assert_array_equal(cells[..., :known], getattr(item, name))
            if item.votes is not None:
                np.testing.assert_array_equal(arrays["votes"][rows][:, : 1 + known], item.votes)
                assert not arrays["votes"][rows][:, 1 + known :].any()
        assert ("votes" in arrays) == any(i.votes is not None for i in self.items.values())
        chunk = self.ledger.to_chunk(N_WORKERS, self.n_classes)
        assert chunk.n_items == len(self.items) and chunk.n_labels == arrays["counts"].sum()
        probs, aggregated = self.ledger.answers(self.n_classes)
        assert probs.shape == (len(self.items), self.n_classes) and np.isfinite(probs).all()
        assert aggregated.tolist() == [item.aggregated for item in self.items.values()]
        assert self.ledger.gold.tolist() == [item.gold for item in self.items.values()]

    @invariant()
    def several_are_read_as_one_by_one(self):
        wanted = list(range(0, 40, 3))
        found = self.ledger.select(wanted)
        assert {wanted[n] for n in found.places} == self.ledger.among(wanted)
        assert found.ids == [wanted[n] for n in found.places]
        items = [self.items[task] for task in found.ids]
        assert found.counts.tolist() == [len(item.worker) for item in items]
        rows = [k for item in items for k in item.worker.tolist()]
        assert found.column("worker").tolist() == rows
        assert found.column("gold").tolist() == [item.gold for item in items]
        assert found.notes == [item.note for item in items]

    @invariant()
    def closed_items_are_known(self):
        closed = np.array([id_key(task) for task in sorted(self.closed)], np.uint64)
        assert set(self.ledger.closed_keys.tolist()) == set(closed.tolist())

    # ── the dict's part ──────────────────────────────────────────────────────────────────

    def evict(self):
        while len(self.items) > self.ledger.open_items:
            self.closed.add(self.items.popitem(last=False)[0])

    def answered(self, appeared, rng, with_votes):
        """A chunk of these tasks, its answers, and what they are counted by."""
        n_items, n_classes = len(appeared), self.n_classes
        item = np.repeat(np.arange(n_items), rng.integers(1, 4, n_items))
        chunk = make_chunk(
            item,
            rng.integers(0, N_WORKERS, len(item)),
            rng.integers(0, n_classes, len(item)),
            weight=rng.integers(1, 4, len(item)),
            votes=rng.random((len(item), 1 + n_classes)) if with_votes else None,
            item_keys=[id_key(task) for task in sorted(appeared)],
            n_workers=N_WORKERS,
            n_classes=n_classes,
        )
        chunk = chunk._replace(gold=rng.integers(-1, n_classes, n_items).astype(np.int32))
        result = SimpleNamespace(
            log_evidence=rng.random((len(item), n_classes)).astype(np.float32),
            probs=rng.random((n_items, n_classes)).astype(np.float32),
            aggregated=rng.integers(0, n_classes, n_items).astype(np.int32),
            temperature=rng.random(n_items),
        )
        return chunk, result, rng.random((n_items, N_MODELS, n_classes)).astype(np.float32)

    def item(self, chunk, result, counted, n, gold, note):
        rows = chunk.item == n
        return OpenItem(
            chunk.worker[rows],
            chunk.label[rows],
            chunk.weight[rows],
            result.log_evidence[rows],
            result.probs[n],
            int(result.aggregated[n]),
            counted[n],
            int(gold),
            float(np.float32(result.temperature[n])),
            note,
            None if chunk.votes is None else chunk.votes[rows],
        )


def without(item, worker):
    rows = item.worker != worker
    cells = {name: getattr(item, name)[rows] for name in ("worker", "label", "weight")}
    votes = None if item.votes is None else item.votes[rows]
    return item._replace(**cells, log_evidence=item.log_evidence[rows], votes=votes)


def assert_same(one, other):
    for field, mine, theirs in zip(OpenItem._fields, one, other, strict=True):
        assert (mine is None) == (theirs is None), field
        if theirs is not None:
            assert np.shape(mine) == np.shape(theirs), field
            assert getattr(mine, "dtype", None) == getattr(theirs, "dtype", None), field
            np.testing.assert_array_equal(mine, theirs)


Ledger.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestLedger = Ledger.TestCase
