"""Training: padding, compilations, stopping, sparse against dense, and purity to the bit."""

import logging
import subprocess
import sys
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest

from labelquorum.errors import LabelQuorumError
from labelquorum.ingest.chunks import make_chunk
from labelquorum.learn.bila import PRESETS, bila, gradient
from labelquorum.learn.bila import minibatch as batch_module
from labelquorum.learn.bila.encoder import mlp
from labelquorum.learn.bila.gradient import State
from labelquorum.learn.bila.minibatch import bucket, minibatch_order
from labelquorum.learn.bila.presets import settings_of
from labelquorum.learn.model_file import state_arrays, state_from_arrays

SEED = 7
# Few shapes and few settings, because each is compiled: chunks of at most 16 items, 3 labels each.
SETTINGS = {
    "default": {},
    "minibatches": {"minibatch_items": 6},
    "one_hot": {"hidden_sizes": (5,), "minibatch_items": 6},
    "www2021": {**PRESETS["www2021"], "hidden_sizes": (5,), "minibatch_items": 6, "epochs": 10},
    "adam": {"optimizer": "adam", "class_prior": "learned"},
}


def passing_crowd(chunk_items, n_classes=3, n_workers=12, seed=0):
    """Chunks in which workers come and go: three start, one joins a chunk, any may pause."""
    rng = np.random.default_rng(seed)
    confusion = np.full((n_workers, n_classes, n_classes), 0.25 / (n_classes - 1))
    confusion[:, range(n_classes), range(n_classes)] = 0.75
    chunks, known = [], 0
    for index, n_items in enumerate(chunk_items):
        met = min(3 + 2 * index, n_workers)
        present = np.sort(rng.choice(met, size=max(3, met // 2), replace=False))
        truth = rng.integers(n_classes, size=n_items)
        item = np.repeat(np.arange(n_items), 3)
        worker = np.concatenate([rng.choice(present, 3, replace=False) for _ in range(n_items)])
        label = [
            rng.choice(n_classes, p=confusion[k, truth[i]])
            for i, k in zip(item, worker, strict=True)
        ]
        known = max(known, int(worker.max()) + 1)
        chunks.append(make_chunk(item, worker, label, n_workers=known, n_classes=n_classes))
    return chunks


def run(method, chunks):
    """The state after each chunk."""
    states, state = [], method.init(chunks[0], SEED)
    for chunk in chunks:
        state, _ = method.update(state, chunk)
        states.append(state)
    return states


def bits(state):
    """A state's SHA-256."""
    digest = sha256()
    for name, array in sorted(state_arrays(state).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def deviation(ours, theirs):
    """The largest difference in any array, relative to the largest number in it."""
    first, second = state_arrays(ours), state_arrays(theirs)
    assert first.keys() == second.keys()
    return max(
        float(np.abs(first[name] * 1.0 - value).max(initial=0))
        / (np.abs(value * 1.0).max(initial=0) or 1.0)
        for name, value in second.items()
    )


# --- padding -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["default", "minibatches", "www2021"])
def test_padding_changes_no_result(setting, monkeypatch):
    method = bila(**settings_of("network", **SETTINGS[setting]))
    chunks = passing_crowd([16, 12, 15])
    tight = run(method, chunks)
    answers = [method.aggregate(s, c) for s, c in zip(tight, chunks, strict=True)]

    def roomy(count, smallest):
        return 4 * bucket(count, smallest)

    monkeypatch.setattr(batch_module, "bucket", roomy)
    monkeypatch.setattr(gradient, "bucket", roomy)
    padded = batch_module.pack(chunks[0], chunks[0].workers)
    assert (len(padded.item), len(padded.start), len(padded.worker_mask)) == (256, 64, 128)
    for chunk, before, state, answer in zip(
        chunks, tight, run(method, chunks), answers, strict=True
    ):
        assert deviation(state, before) < 1e-6
        loose = method.aggregate(state, chunk)
        np.testing.assert_array_equal(loose.aggregated, answer.aggregated)
        np.testing.assert_allclose(loose.probs, answer.probs, atol=1e-6)
        np.testing.assert_allclose(loose.log_evidence, answer.log_evidence, atol=1e-5)


def test_the_order_of_an_epoch_is_a_permutation_whatever_the_padding():
    shuffle, key = jax.jit(minibatch_order, static_argnums=1), jax.random.key(3)
    for n_items in (1, 7, 50, 64):
        orders = [np.asarray(shuffle(key, slots, n_items)) for slots in (64, 128, 512)]
        for order in orders:
            assert sorted(order[:n_items]) == list(range(n_items))
            assert sorted(order) == list(range(len(order)))
            np.testing.assert_array_equal(order[:n_items], orders[0][:n_items])
    another = np.asarray(shuffle(jax.random.key(4), 64, 64))
    assert (another != orders[0]).any() and (orders[0][:64] != np.arange(64)).any()


# --- compilation ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_training_is_compiled_once_per_bucket(caplog):
    method = bila(**settings_of("network", minibatch_items=20, learning_rate=0.0123))

    def compilations(chunk_items):
        caplog.clear()
        # 3 labels per item: 12 to 15 items lie in one bucket of labels, items and workers
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            run(method, passing_crowd(chunk_items, n_workers=8))
        compiled = [
            r.getMessage() for r in caplog.records if r.getMessage().startswith("Compiling")
        ]
        return sum("train" in message.split(" with ")[0] for message in compiled)

    assert compilations([12, 13, 15, 14, 16]) == 1
    assert compilations([12, 14, 15, 13, 16]) == 0
    # 40 to 42 items need minibatches: one more, whatever their number
    assert compilations([40, 42, 41]) == 1
    assert compilations([60, 12, 41, 15]) == 1
    assert compilations([60, 12, 41, 15]) == 0


# --- stopping ------------------------------------------------------------------------------------


def test_training_stops_at_the_first_epoch_whose_loss_has_settled():
    method = bila(**settings_of("network", **SETTINGS["minibatches"], epochs=400, tolerance=2e-3))
    (chunk,) = passing_crowd([16])
    _, info = method.update(method.init(chunk, SEED), chunk)
    assert 2 < info.epochs < 400
    change = np.abs(np.diff(info.losses)) / np.abs(info.losses[:-1])
    assert change[-1] < 2e-3 and (change[:-1] >= 2e-3).all()
    assert len(info.losses) == info.epochs
    assert info.steps == 3 * info.epochs


@pytest.mark.slow
def test_training_never_runs_more_epochs_than_the_cap():
    (chunk,) = passing_crowd([16])
    for setting, n_batches in (("default", 1), ("minibatches", 3)):
        method = bila(**settings_of("network", **SETTINGS[setting], epochs=10, tolerance=0.0))
        state, info = method.update(method.init(chunk, SEED), chunk)
        assert info.epochs == 10 == len(info.losses)
        assert state.step == info.steps == n_batches * 10
        assert np.isfinite(info.losses).all()


def test_a_loss_that_settles_at_once_still_takes_two_epochs():
    (chunk,) = passing_crowd([16])
    method = bila(**settings_of("network", tolerance=1e9))
    _, info = method.update(method.init(chunk, SEED), chunk)
    assert info.epochs == 2


# --- sparse against dense ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "hidden_sizes"),
    [("bounded_rmsprop", ()), ("rmsprop", ()), ("rmsprop", (5,)), ("tf1_rmsprop", ())],
)
def test_learning_from_the_workers_present_equals_learning_from_all(optimizer, hidden_sizes):
    chunks = passing_crowd([16, 12, 15, 10, 13, 16, 14])
    assert any(set(a.workers) - set(b.workers) for a, b in pairwise(chunks))
    options = {"optimizer": optimizer, "minibatch_items": 6, "tolerance": 0.0}
    sparse = bila(**settings_of("network", hidden_sizes=hidden_sizes, **options))
    dense = bila(
        **settings_of("network", encoder=mlp(hidden_sizes)._replace(dense=True), **options)
    )
    worst, waited = 0.0, 0
    for ours, theirs in zip(run(sparse, chunks), run(dense, chunks), strict=True):
        rows = ours.rows.to_arrays()
        # what waits has not decayed yet
        idle = np.where(rows["seen"], ours.step - rows["step"], 0)
        waited = max(waited, idle.max())
        for name, leaf in rows.items():
            if name.startswith("optimizer"):
                rows[name] = leaf * (0.9**idle).reshape(-1, *[1] * (leaf.ndim - 1))
        dense_rows = theirs.rows.to_arrays()
        rows["step"] = dense_rows["step"]
        # A place that nobody has taken yet is made again when a worker does.
        for name, leaf in rows.items():
            leaf[~rows["seen"]] = dense_rows[name][~rows["seen"]]
        caught_up = ours._replace(rows=type(ours.rows)(rows))
        worst = max(worst, deviation(caught_up, theirs))
    assert waited > 20
    assert worst < 1e-5


def test_the_comparison_of_sparse_and_dense_would_notice_rows_that_do_not_decay(monkeypatch):
    chunks = passing_crowd([16, 12, 15, 10, 13])
    method = bila(**settings_of("network", minibatch_items=6, tolerance=0.0))
    honest = run(method, chunks)[-1]
    leaves = gradient._leaves

    def forgetful(*args):
        rows, idle = leaves(*args)
        return rows, 0 * idle

    monkeypatch.setattr(gradient, "_leaves", forgetful)
    assert deviation(run(method, chunks)[-1], honest) > 1e-4


@pytest.mark.parametrize("setting", ["default", "one_hot"])
def test_the_rows_of_absent_workers_keep_their_bits(setting):
    chunks = passing_crowd([16, 12, 15, 10])
    method = bila(**settings_of("network", **SETTINGS[setting]))
    states = run(method, chunks)
    for chunk, before, after in zip(chunks[1:], states, states[1:], strict=False):
        old, new = before.rows.to_arrays(), after.rows.to_arrays()
        absent = np.setdiff1d(np.arange(before.rows.n_workers), chunk.workers)
        for name in old:
            assert old[name][absent].tobytes() == new[name][absent].tobytes()
            if name.startswith("params"):
                present = np.intersect1d(np.arange(before.rows.n_workers), chunk.workers)
                assert (old[name][present] != new[name][present]).any()


def test_an_update_asks_for_no_row_of_an_absent_worker(monkeypatch):
    """What a chunk costs follows the chunk: nothing else is read or written."""
    chunks = passing_crowd([16, 12, 15, 10])
    method = bila(**settings_of("network"))
    states = run(method, chunks[:-1])
    touched = set()
    rows_type = type(states[-1].rows)
    gather, scatter = rows_type.gather, rows_type.scatter

    def watched_gather(self, workers, names=None):
        touched.update(workers.tolist())
        return gather(self, workers, names)

    def watched_scatter(self, workers, rows):
        touched.update(workers.tolist())
        return scatter(self, workers, rows)

    monkeypatch.setattr(rows_type, "gather", watched_gather)
    monkeypatch.setattr(rows_type, "scatter", watched_scatter)
    monkeypatch.setattr(rows_type, "to_arrays", None)
    state, _ = method.update(states[-1], chunks[-1])
    method.aggregate(state, chunks[-1])
    newcomers = range(states[-1].rows.n_workers, chunks[-1].n_workers)
    assert touched <= {*chunks[-1].workers.tolist(), *newcomers}


# --- purity --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_an_update_gives_the_same_bits_again_from_an_old_state(setting):
    chunks = passing_crowd([16, 12, 15])
    method = bila(**settings_of("network", **SETTINGS[setting]))
    start = method.init(chunks[0], SEED)
    first, _ = method.update(start, chunks[0])
    before = bits(first)
    second, _ = method.update(first, chunks[1])
    kept = bits(second)
    branch, _ = method.update(first, chunks[2])
    third, _ = method.update(second, chunks[2])
    assert bits(first) == before and bits(second) == kept
    assert bits(branch) != bits(third)
    # Again, from every old state, after newer ones were made from it.
    again, _ = method.update(start, chunks[0])
    assert bits(again) == before
    assert bits(method.update(first, chunks[1])[0]) == kept
    assert bits(method.update(again, chunks[1])[0]) == kept
    assert bits(method.update(second, chunks[2])[0]) == bits(third)
    one, other = method.aggregate(first, chunks[0]), method.aggregate(again, chunks[0])
    for ours, theirs in zip(one, other, strict=True):
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_state_taken_apart_and_rebuilt_goes_on_with_the_same_bits(setting):
    chunks = passing_crowd([16, 12, 15])
    method = bila(**settings_of("network", **SETTINGS[setting]))
    whole_way = run(method, chunks)
    rebuilt = state_from_arrays(State, state_arrays(whole_way[1]))
    assert bits(rebuilt) == bits(whole_way[1])
    assert bits(method.update(rebuilt, chunks[2])[0]) == bits(whole_way[2])
    assert isinstance(rebuilt.seed, int) and isinstance(rebuilt.step, int)


def bits_of_a_run():
    return [
        bits(
            run(bila(**settings_of("network", **SETTINGS[setting])), passing_crowd([16, 12, 15]))[
                -1
            ]
        )
        for setting in ("default", "www2021")
    ]


@pytest.mark.slow
def test_another_process_gives_the_same_bits():
    tests = Path(__file__).parents[2]
    code = (
        f"import sys; sys.path.insert(0, {str(tests)!r}); "
        "from learn.bila.test_training import bits_of_a_run; print(*bits_of_a_run())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=500
    )
    assert done.stdout.split() == bits_of_a_run()


@pytest.mark.parametrize("setting", ["default", "www2021"])
def test_the_order_of_rows_inside_a_chunk_changes_no_bit(setting):
    rng = np.random.default_rng(1)
    method = bila(**settings_of("network", **SETTINGS[setting]))
    chunks = passing_crowd([16, 12])
    shuffled = []
    for chunk in chunks:
        order = rng.permutation(chunk.n_labels)
        shuffled.append(
            make_chunk(
                chunk.item[order],
                chunk.worker[order],
                chunk.label[order],
                n_workers=chunk.n_workers,
                n_classes=chunk.n_classes,
            )
        )
    for ours, theirs in zip(run(method, shuffled), run(method, chunks), strict=True):
        assert bits(ours) == bits(theirs)


@pytest.mark.parametrize("setting", ["default", "www2021"])
def test_an_empty_chunk_changes_nothing(setting):
    chunks = passing_crowd([16, 12])
    method = bila(**settings_of("network", **SETTINGS[setting]))
    state, _ = method.update(method.init(chunks[0], SEED), chunks[0])
    empty = make_chunk([], [], [], n_workers=chunks[0].n_workers, n_classes=3)
    same, info = method.update(state, empty)
    assert bits(same) == bits(state)
    assert info.n_labels == info.epochs == info.steps == len(info.losses) == 0
    # Nor does one that comes first, when neither workers nor classes are known.
    nothing = make_chunk([], [], [])
    late, _ = method.update(method.init(nothing, SEED), nothing)
    assert bits(method.update(late, chunks[0])[0]) == bits(state)


def test_the_seed_decides_the_network_and_the_order_of_the_minibatches():
    (chunk,) = passing_crowd([16])
    method = bila(**settings_of("network", **SETTINGS["one_hot"]))
    one, other = (method.init(chunk, seed) for seed in (1, 2))
    assert (
        one.shared["params.encoder.shared.w2"] != other.shared["params.encoder.shared.w2"]
    ).all()
    name = "params.encoder.per_worker.w1"
    first = one.rows.to_arrays()[name]
    assert (first != other.rows.to_arrays()[name]).all()
    assert len(np.unique(first)) == first.size  # and every worker has their own rows
    # Without hidden layers nothing is drawn but the order.
    method = bila(**settings_of("network", **SETTINGS["minibatches"]))
    one, other = (method.init(chunk, seed)._replace(seed=0) for seed in (1, 2))
    assert bits(one) == bits(other)
    one, other = (method.update(one._replace(seed=seed), chunk)[0] for seed in (1, 2))
    assert deviation(one._replace(seed=0), other._replace(seed=0)) > 1e-4


@pytest.mark.parametrize("seed", [0, 2**31, 2**40, 2**63 - 1, -1])
def test_any_seed_will_do(seed):
    (chunk,) = passing_crowd([16])
    method = bila(**settings_of("network", **SETTINGS["minibatches"]))
    state, _ = method.update(method.init(chunk, seed), chunk)
    assert method.aggregate(state, chunk).aggregated.shape == (16,)


# --- growing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["default", "one_hot"])
def test_a_new_class_mid_stream_keeps_what_was_learned(setting):
    method = bila(**settings_of("network", **SETTINGS[setting]))
    two = passing_crowd([16, 16], n_classes=2)
    three = passing_crowd([16, 16, 16], n_classes=3)[-1]
    state = run(method, two)[-1]
    before = method.aggregate(state, two[-1])

    wider = two[-1]._replace(n_classes=3)  # the class exists; nobody has named it
    after = method.aggregate(state, wider)
    assert after.probs.shape == (16, 3)
    np.testing.assert_array_equal(after.aggregated, before.aggregated)

    grown, info = method.update(state, three)
    assert np.isfinite(info.losses).all()
    absent = np.setdiff1d(np.arange(state.rows.n_workers), three.workers)
    assert len(absent)
    old, new = state.rows.to_arrays(), grown.rows.to_arrays()
    name = "params.generative.per_worker.confusion_logits"
    np.testing.assert_array_equal(new[name][absent][:, :2, :2], old[name][absent])
    assert new[name].shape[1:] == (3, 3)
    matrices = method.confusion(grown, np.arange(grown.rows.n_workers))
    np.testing.assert_allclose(matrices.sum(axis=2), 1, atol=1e-5)
    # The old state still has two classes.
    assert bits(run(method, two)[-1]) == bits(state)


def test_a_newcomer_changes_nobody_elses_rows():
    chunks = passing_crowd([16, 12])
    method = bila(**settings_of("network"))
    state = run(method, chunks)[-1]
    known = state.rows.n_workers
    stranger = make_chunk([0, 0], [0, known + 2], [1, 1], n_classes=3)
    answer = method.aggregate(state, stranger)
    assert answer.probs.shape == (1, 3)
    assert state.rows.n_workers == known
    grown, _ = method.update(state, stranger)
    assert grown.rows.n_workers == known + 3
    old, new = state.rows.to_arrays(), grown.rows.to_arrays()
    for name in old:
        assert old[name][1:].tobytes() == new[name][1:known].tobytes()
    assert new["seen"][known:].tolist() == [False, False, True]


SECOND_MOMENT = "optimizer.1.0.nu.generative.per_worker.confusion_logits"


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["www2021", "authors", "network"])
@pytest.mark.parametrize("newcomer_rows", ["votes", "flat"])
def test_a_worker_absent_from_the_first_chunk_starts_as_told(preset, newcomer_rows):
    still = {"learning_rate": 1e-12, "epochs": 1}  # nothing moves by training
    if preset == "www2021":
        still["optimizer"] = "rmsprop"  # its own has a least step
    method = bila(**settings_of(preset, newcomer_rows=newcomer_rows, **still))
    first = make_chunk([0, 0, 0, 1, 1, 1], [0, 1, 2] * 2, [0, 0, 1, 1, 1, 0], n_workers=3)
    second = make_chunk([0, 0, 0, 1, 1, 1], [0, 1, 3] * 2, [0, 0, 0, 1, 1, 1], n_workers=4)
    state, _ = method.update(method.init(first, SEED), first)
    # Asked about before they label anything, and then met.
    asked = method.aggregate(state, second)
    state, _ = method.update(state, second)
    matrices = method.confusion(state, np.arange(4))
    assert matrices[0, 0, 0] > 0.55, "who was there from the first has their votes"
    if newcomer_rows == "flat":
        np.testing.assert_allclose(matrices[3], 0.5, atol=1e-5)
        said = np.flatnonzero(second.worker == 3)
        np.testing.assert_allclose(asked.log_evidence[said], np.log(0.5), atol=1e-5)
    else:
        assert np.diagonal(matrices[3]).min() > 0.55
    np.testing.assert_allclose(
        method.confusion(method.forget(state, 0), np.arange(4))[0],
        method.confusion(method.forget(state, 3), np.arange(4))[3],
        atol=1e-6,
    )


def test_the_initial_set_is_the_first_chunk_that_has_labels():
    method = bila(**settings_of("www2021", hidden_sizes=(5,)))
    (chunk,) = passing_crowd([16])
    late, _ = method.update(method.init(make_chunk([], [], []), SEED), make_chunk([], [], []))
    straight, _ = method.update(method.init(chunk, SEED), chunk)
    assert bits(method.update(late, chunk)[0]) == bits(straight)


def test_what_tf1_rmsprop_remembers_of_a_late_worker_starts_at_one_and_fades():
    options = {"optimizer": "tf1_rmsprop", "epochs": 1, "minibatch_items": 4, "tolerance": 0.0}
    method = bila(**settings_of("network", **options, learning_rate=1e-9))
    both = make_chunk([0, 0, 1, 1], [0, 1] * 2, [0, 0, 1, 1])
    alone = make_chunk([0, 1], [0, 0], [0, 1], n_workers=2, n_classes=2)
    joined = make_chunk([0, 0, 1, 1], [0, 2] * 2, [0, 0, 1, 1], n_classes=2)
    state, _ = method.update(method.init(both, SEED), both)
    for chunk in (alone, alone, joined, both):
        state, _ = method.update(state, chunk)
    fresh = method.update(method.init(both, SEED), both)[0].rows.to_arrays()[SECOND_MOMENT]
    rows = state.rows.to_arrays()[SECOND_MOMENT]
    # Five steps for worker 0, of whom worker 1 was absent from three; one step for worker 2.
    assert 0.9**5 <= rows[1].min() <= rows[1].max() < 0.9**5 + 0.1
    np.testing.assert_allclose(rows[2], fresh[0], atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["www2021", "authors"])
def test_places_of_workers_nobody_has_seen_hold_finite_numbers(preset):
    method = bila(**settings_of(preset, hidden_sizes=(5,), epochs=1))
    chunk = make_chunk([0, 0, 1, 1], [1, 4] * 2, [0, 0, 1, 1], n_workers=7)
    state, _ = method.update(method.init(chunk, SEED), chunk)
    assert all(np.isfinite(leaf).all() for leaf in state.rows.to_arrays().values())


def test_a_chunk_that_knows_fewer_classes_than_the_state_is_told_so():
    method = bila(**settings_of("network"))
    state = run(method, passing_crowd([16]))[-1]
    with pytest.raises(LabelQuorumError, match=r"n_classes"):
        method.update(state, make_chunk([0, 0], [0, 1], [0, 1], n_workers=3))


def test_a_uniform_class_prior_is_uniform_over_a_class_nobody_named():
    """Nobody has labels for the third class: its prior is all that the answer goes by."""
    method = bila(**settings_of("network", class_prior="uniform"))
    chunks = passing_crowd([16], n_classes=2)
    state = run(method, chunks)[-1]
    nobody = make_chunk([], [], [], n_items=1, n_workers=3, n_classes=3)
    np.testing.assert_allclose(method.aggregate(state, nobody).probs, 1 / 3, rtol=1e-5)
