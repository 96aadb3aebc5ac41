"""Saved models: the same bits after a stop, and nothing but an untouched file is accepted."""

import ast
import copy
import errno
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import cloudpickle
import jax.numpy as jnp
import joblib
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

import labelquorum as lq
from labelquorum.errors import StateError
from labelquorum.evaluation import class_conditional_crowd
from labelquorum.learn import model_file
from labelquorum.learn.bila.generative import Params, confusion_matrix
from labelquorum.learn.bila.minibatch import sum_by_item
from labelquorum.learn.model_file import Snapshot, read_snapshot, write_snapshot

SOURCE = Path(lq.__file__).parent

MODELS = {
    "BiLA": lambda **settings: lq.BiLA(**settings),
    "BiLA as in the paper": lambda **settings: lq.BiLA("www2021", **settings),
    "MajorityVote": lambda **settings: lq.MajorityVote(**settings),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


@pytest.fixture(scope="module")
def chunks() -> list[pd.DataFrame]:
    """Three chunks of 16 tasks; some rows come twice, out of order in time."""
    crowd = class_conditional_crowd(48, 12, 3, 4, seed=6)
    labels = pd.DataFrame(
        {
            "task": crowd.item,
            "worker": [f"w{worker:02}" for worker in crowd.worker],
            "label": np.array(["cat", "dog", "fox"])[crowd.label],
            "weight": 1.0 + crowd.worker % 2,
            "group": [f"g{item % 3}" for item in crowd.item],
            "timestamp": 1000 - np.arange(len(crowd.item)),
        }
    )
    again = labels[::9].assign(label="cat", timestamp=labels.timestamp[::9] - 5)
    stream = pd.concat([labels[labels.index % 16 > 0], again])
    return [part.reset_index(drop=True) for _, part in stream.groupby(stream.task // 16)]


@pytest.fixture
def bits(tmp_path):
    def save(model):
        model.save(tmp_path / "bits.lq")
        return (tmp_path / "bits.lq").read_bytes()

    return save


@pytest.fixture(scope="module")
def file(chunks, tmp_path_factory) -> bytes:
    """A saved model, whose header is short enough to try every place in it."""
    path = tmp_path_factory.mktemp("saved") / "crowd.lq"
    lq.MajorityVote(open_items=8).partial_fit(chunks[0]).save(path)
    return path.read_bytes()


# ── stop and resume ──────────────────────────────────────────────────────────────────────


@every_model
def test_learning_goes_on_from_a_file_as_if_it_had_never_stopped(make, chunks, bits, tmp_path):
    straight, stopped = make(open_items=20), make(open_items=20)
    for chunk in chunks:
        straight.partial_fit(chunk)
        stopped.partial_fit(chunk)
        stopped.save(tmp_path / "model.lq")
        stopped = lq.load(tmp_path / "model.lq")
        assert bits(stopped) == bits(straight)
    late = chunks[2][:5].assign(worker="late")
    pd.testing.assert_frame_equal(
        straight.partial_fit(late).probas_, stopped.partial_fit(late).probas_
    )
    assert bits(stopped) == bits(straight)
    pd.testing.assert_frame_equal(straight.errors_, stopped.errors_)
    assert straight.loss_history_ == stopped.loss_history_
    assert straight.get_params() == stopped.get_params()


@pytest.mark.parametrize("kind", [lq.BiLA, lq.MajorityVote])
def test_a_stop_during_warm_up_changes_nothing(kind, chunks, bits, tmp_path):
    straight, stopped = kind(warmup_items=40), kind(warmup_items=40)
    for chunk in chunks:
        straight.partial_fit(chunk)
        stopped.partial_fit(chunk)
        tally = stopped.tally_
        stopped.save(tmp_path / "model.lq")
        stopped = lq.load(tmp_path / "model.lq")
    assert bits(stopped) == bits(straight)
    assert tally == straight.tally_
    pd.testing.assert_frame_equal(stopped.report().items, straight.report().items)


@pytest.mark.slow
def test_dates_held_during_warm_up_still_order_repeats_after_a_stop(tmp_path):
    days = pd.to_datetime(["2024-05-02", "2024-05-01", "2024-05-01"])
    first = pd.DataFrame(
        {"task": [1, 1, 1], "worker": ["a", "a", "b"], "label": list("xyx"), "timestamp": days}
    )
    second = first.assign(task=2)
    model = lq.MajorityVote(warmup_items=2).partial_fit(first)
    model.save(tmp_path / "model.lq")
    resumed = lq.load(tmp_path / "model.lq")
    expected = model.partial_fit(second).labels_
    pd.testing.assert_series_equal(resumed.partial_fit(second).labels_, expected)
    assert expected.tolist() == ["x", "x"]


@pytest.mark.slow
def test_another_process_goes_on_with_the_same_bits(chunks, bits, tmp_path):
    model = lq.BiLA().partial_fit(chunks[0])
    model.save(tmp_path / "model.lq")
    chunks[1].to_csv(tmp_path / "next.csv", index=False)
    code = (
        "import sys, pandas as pd, labelquorum as lq;"
        "lq.load(sys.argv[1]).partial_fit(pd.read_csv(sys.argv[2])).save(sys.argv[3])"
    )
    paths = [str(tmp_path / name) for name in ("model.lq", "next.csv", "other.lq")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True)
    assert (tmp_path / "other.lq").read_bytes() == bits(model.partial_fit(chunks[1]))


@pytest.mark.parametrize("kind", [lq.BiLA, lq.MajorityVote])
def test_a_model_that_has_learned_nothing_can_be_saved(kind, chunks, bits, tmp_path):
    kind(seed=3).save(tmp_path / "model.lq")
    loaded = kind.load(tmp_path / "model.lq")
    assert loaded.seed == 3
    assert bits(loaded.partial_fit(chunks[0])) == bits(kind(seed=3).partial_fit(chunks[0]))


def test_a_file_does_not_depend_on_the_order_of_rows(chunks, bits):
    shuffled = chunks[0].sample(frac=1, random_state=2)
    models = [lq.BiLA(open_items=0).partial_fit(labels) for labels in (chunks[0], shuffled)]
    assert bits(models[0]) == bits(models[1])


# ── files of before ──────────────────────────────────────────────────────────────────────

SAVED = Path(__file__).parent / "saved"
"""Models of 12 tasks, of the version before `weight_init` was a setting."""

BEFORE = {
    "authors": (
        {"weight_init": "glorot", "newcomer_rows": "votes", "optimizer": "rmsprop"},
        [2.9968033, 3.7153771, 3.7364657],
    ),
    "www2021": (
        {
            "init_smoothing": 0.0,
            "newcomer_rows": "votes",
            "learning_rate": 1e-3,
            "decay": 0.9,
            "epochs": 100,
            "tolerance": 1e-3,
        },
        [2.5543931, 5.7015858, 3.8958378],
    ),
}
"""What each preset meant then, and the loss that version had after each of three chunks."""


def chunks_of_before() -> list[pd.DataFrame]:
    """Three chunks of 12 tasks; worker 5 is not in the first."""
    crowd = class_conditional_crowd(36, 6, 3, 3, seed=6)
    columns = {"task": crowd.item, "worker": crowd.worker, "label": crowd.label}
    labels = pd.DataFrame(columns)[(crowd.worker != 5) | (crowd.item >= 12)]
    return [part for _, part in labels.groupby(labels.task // 12)]


@pytest.mark.slow
@pytest.mark.parametrize("preset", BEFORE)
def test_a_model_of_before_goes_on_with_the_settings_it_had(preset, tmp_path):
    settings, losses = BEFORE[preset]
    own = {"hidden_sizes": [3], "minibatch_items": 8, "open_items": 0}
    straight = lq.BiLA(preset, **settings, **own).partial_fit(chunks_of_before()[0])
    model = lq.load(SAVED / f"{preset}.lq")
    assert model.get_params() == straight.get_params()
    for chunk in chunks_of_before()[1:]:
        model.partial_fit(chunk)
        straight.partial_fit(chunk)
        model.save(tmp_path / "again.lq")
        model = lq.load(tmp_path / "again.lq")
    np.testing.assert_allclose(model.loss_history_, losses, rtol=1e-5)
    np.testing.assert_allclose(model.confusion_, straight.confusion_, atol=1e-5)
    today = lq.BiLA(preset, **own)
    for chunk in chunks_of_before():
        today.partial_fit(chunk)
    assert np.abs(today.confusion_ - model.confusion_).max() > 0.01


# ── what is refused ──────────────────────────────────────────────────────────────────────


def refused(path, data: bytes) -> str:
    """Write a file, see it refused, and give the sentence."""
    path.write_bytes(data)
    with pytest.raises(StateError) as caught:
        lq.load(path)
    return str(caught.value)


def test_a_flip_of_any_bit_of_the_header_is_refused(file, tmp_path):
    header = 8 + int.from_bytes(file[:8], "little")
    rng = np.random.default_rng(0)
    for position, bit in enumerate(rng.integers(8, size=header)):
        flipped = bytearray(file)
        flipped[position] ^= 1 << bit
        assert refused(tmp_path / "flipped.lq", flipped)


def test_a_flip_of_any_bit_of_the_arrays_is_refused(file, tmp_path):
    header = 8 + int.from_bytes(file[:8], "little")
    rng = np.random.default_rng(1)
    for position in rng.choice(np.arange(header, len(file)), 300, replace=False):
        flipped = bytearray(file)
        flipped[position] ^= 1 << rng.integers(8)
        assert "does not match its SHA-256" in refused(tmp_path / "flipped.lq", flipped)


def test_a_file_that_is_cut_short_or_too_long_is_refused(file, tmp_path):
    lengths = [*range(0, 64), *range(64, len(file), len(file) // 60), len(file) - 1]
    for length in lengths:
        sentence = refused(tmp_path / "short.lq", file[:length])
        assert "this is no whole model file" in sentence
    assert refused(tmp_path / "long.lq", file + b"\0")
    assert refused(tmp_path / "twice.lq", file + file)


def test_a_sentence_names_the_file_and_the_next_step(file, tmp_path):
    path = tmp_path / "crowd.lq"
    sentence = refused(path, file[:-1])
    assert sentence.startswith(f"{path}: ")
    assert "use a copy that was saved completely" in sentence
    assert "\n" not in sentence


def crafted(snapshot):
    """Files that no `save` wrote, with the digest of what they hold."""
    header, arrays, ids = snapshot.header, snapshot.arrays, snapshot.ids
    for name in header:
        yield snapshot._replace(header={key: header[key] for key in header if key != name})
        for junk in (None, 3, "x", [], {"a": 1}):
            yield snapshot._replace(header={**header, name: junk})
    for name, array in arrays.items():
        yield snapshot._replace(arrays={key: arrays[key] for key in arrays if key != name})
        for other in (array.ravel()[:-1], array[..., None], np.full(array.shape, -1.5)):
            yield snapshot._replace(arrays={**arrays, name: other})
    for name in ids:
        yield snapshot._replace(ids={key: ids[key] for key in ids if key != name})
        yield snapshot._replace(ids={**ids, name: list(ids[name])[:-1]})


def test_a_crafted_file_is_read_or_refused_with_a_sentence(file, tmp_path):
    path = tmp_path / "crafted.lq"
    path.write_bytes(file)
    sentences = []
    for snapshot in crafted(read_snapshot(path)):
        write_snapshot(path, snapshot)
        try:
            lq.load(path)
        except StateError as error:
            sentences.append(str(error))
    assert sum("what it holds is no model" in sentence for sentence in sentences) > 20
    assert all("\n" not in sentence for sentence in sentences)


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", b"\0" * 100, b"PK\x03\x04" * 20, pickle.dumps({"a": 1}), b"\xff" * 64],
    ids=["empty", "text", "zeros", "zip", "pickle", "ones"],
)
def test_a_file_of_another_kind_is_refused(data, tmp_path):
    assert "this is no whole model file" in refused(tmp_path / "other.lq", data)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"labelquorum": ""}])
def test_another_programs_safetensors_file_is_refused(metadata, tmp_path):
    save_file({"weight": np.zeros(3)}, tmp_path / "weights.safetensors", metadata)
    with pytest.raises(StateError, match=r"weights.safetensors: "):
        lq.load(tmp_path / "weights.safetensors")


def test_a_path_without_a_file_is_refused(tmp_path):
    for path in (tmp_path / "none.lq", tmp_path):
        with pytest.raises(StateError, match="no model can be read there"):
            lq.load(path)


def test_a_newer_format_is_refused_with_the_remedy(chunks, tmp_path, monkeypatch):
    with monkeypatch.context() as future:
        future.setattr(model_file, "FORMAT_VERSION", model_file.FORMAT_VERSION + 1)
        lq.MajorityVote().partial_fit(chunks[0]).save(tmp_path / "future.lq")
    with pytest.raises(StateError, match=r"the file has format 2, .* Update labelquorum"):
        lq.load(tmp_path / "future.lq")


def test_a_method_this_version_does_not_know_is_refused(chunks, tmp_path):
    lq.MajorityVote().partial_fit(chunks[0]).save(tmp_path / "model.lq")
    known = read_snapshot(tmp_path / "model.lq")
    write_snapshot(
        tmp_path / "model.lq", known._replace(header={**known.header, "method": "tarot"})
    )
    for load in (lq.load, lq.BiLA.load):
        with pytest.raises(StateError, match="'tarot'"):
            load(tmp_path / "model.lq")


def test_a_setting_this_version_does_not_know_is_refused(chunks, tmp_path):
    lq.MajorityVote().partial_fit(chunks[0]).save(tmp_path / "model.lq")
    known = read_snapshot(tmp_path / "model.lq")
    settings = {**known.header["settings"], "temperature": 2}
    header = {**known.header, "settings": settings}
    write_snapshot(tmp_path / "model.lq", known._replace(header=header))
    with pytest.raises(StateError, match="temperature"):
        lq.load(tmp_path / "model.lq")


def test_a_model_of_another_method_is_refused(chunks, tmp_path):
    lq.MajorityVote().partial_fit(chunks[0]).save(tmp_path / "model.lq")
    with pytest.raises(StateError, match=r"method 'majority_vote', not of 'bila'"):
        lq.BiLA.load(tmp_path / "model.lq")


@pytest.mark.parametrize("identity", [("a", 1), b"ann", 1 + 2j, pd.Timestamp("2024-05-01")])
def test_ids_that_json_cannot_hold_are_refused_with_a_sentence(identity, tmp_path):
    with pytest.raises(StateError, match=r"Only text and numbers can be saved as ids. Got"):
        write_snapshot(tmp_path / "model.lq", Snapshot({}, {"workers": ["ann", identity]}, {}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "ids", [["ü", "日本", "\n", '"', ""], [1, 2**70, -1], [0.5, 1e300], [None]]
)
def test_text_and_numbers_of_all_kinds_come_back(ids, tmp_path):
    write_snapshot(tmp_path / "model.lq", Snapshot({}, {"workers": ids}, {}))
    assert read_snapshot(tmp_path / "model.lq").ids == {"workers": ids}


# ── models of the user's own ─────────────────────────────────────────────────────────────


def test_a_generative_model_of_ones_own_must_be_given_again(chunks, bits, tmp_path):
    own = confusion_matrix(init_strength=2.0)._replace(name="mine")
    model = lq.BiLA("network", generative=own).partial_fit(chunks[0])
    model.save(tmp_path / "model.lq")
    for load in (lq.load, lq.BiLA.load):
        with pytest.raises(StateError, match=r"generative .* your own, 'mine'. Give it again"):
            load(tmp_path / "model.lq")
        loaded = load(tmp_path / "model.lq", generative=own)
        assert bits(loaded) == bits(model)
    assert bits(loaded.partial_fit(chunks[1])) == bits(model.partial_fit(chunks[1]))


@pytest.mark.slow
def test_an_encoder_that_shares_nothing_can_be_saved(chunks, bits, tmp_path):
    # All its parameters belong to workers, so the shared part of the state is empty.
    vote = lq.Encoder(
        "vote",
        init=lambda new: Params(
            {}, {"vote": jnp.broadcast_to(jnp.eye(new.n_classes), new.votes.shape)}
        ),
        class_logits=lambda params, batch: sum_by_item(
            params.per_worker["vote"][batch.worker, batch.label], batch
        ),
    )
    model = lq.BiLA("network", encoder=vote).partial_fit(chunks[0])
    model.save(tmp_path / "model.lq")
    loaded = lq.load(tmp_path / "model.lq", encoder=vote)
    assert bits(loaded.partial_fit(chunks[1])) == bits(model.partial_fit(chunks[1]))


# ── writing ──────────────────────────────────────────────────────────────────────────────


def full_disk(*args, **options):
    raise OSError(errno.ENOSPC, "No space left on device")


def half_written(arrays, path, metadata):
    Path(path).write_bytes(b"half a file")
    full_disk()


@pytest.mark.parametrize(
    ("owner", "name", "failure"),
    [
        (model_file, "save_file", full_disk),
        (model_file, "save_file", half_written),
        (model_file.os, "fsync", full_disk),
        (Path, "replace", full_disk),
    ],
    ids=["nothing written", "half written", "not on the disk", "not moved"],
)
def test_a_write_that_fails_leaves_the_old_file(
    owner, name, failure, chunks, tmp_path, monkeypatch
):
    path = tmp_path / "crowd.lq"
    model = lq.MajorityVote().partial_fit(chunks[0])
    model.save(path)
    before = path.read_bytes()
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, failure)
        with pytest.raises(StateError, match="the model could not be saved"):
            model.partial_fit(chunks[1]).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    model.save(path)
    assert path.read_bytes() != before


def test_a_folder_that_does_not_exist_is_named(chunks, tmp_path):
    with pytest.raises(StateError, match=r"nowhere/crowd.lq: the model could not be saved"):
        lq.MajorityVote().partial_fit(chunks[0]).save(tmp_path / "nowhere" / "crowd.lq")


def test_nothing_that_can_run_is_ever_read():
    able_to_run = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal"}
    able_to_run |= {"shelve", "copyreg"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").split(".")[0]]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant) and not node.value.value, path
            assert not able_to_run & set(names), path


# ── pickle and copy ──────────────────────────────────────────────────────────────────────


def through_joblib(model, tmp_path):
    joblib.dump(model, tmp_path / "model.joblib")
    return joblib.load(tmp_path / "model.joblib")


COPIES = {
    "pickle": lambda model, _: pickle.loads(pickle.dumps(model)),
    "cloudpickle": lambda model, _: pickle.loads(cloudpickle.dumps(model)),
    "joblib": through_joblib,
    "copy": lambda model, _: copy.copy(model),
    "deepcopy": lambda model, _: copy.deepcopy(model),
}
every_copy = pytest.mark.parametrize("again", COPIES.values(), ids=COPIES.keys())


@every_copy
@pytest.mark.parametrize("name", ["bila", "majority_vote", "glad", "windowed:dawid_skene"])
def test_a_fitted_model_is_copied_whole(name, again, chunks, tmp_path):
    model = lq.estimator(name, seed=3).partial_fit(chunks[0]).partial_fit(chunks[1])
    other = again(model, tmp_path)
    assert (type(other).__name__, other.get_params()) == (type(model).__name__, model.get_params())
    pd.testing.assert_series_equal(other.labels_, model.labels_)
    assert other.tally_ == model.tally_
    before = saved(model, tmp_path)
    assert saved(other, tmp_path) == before
    other.partial_fit(chunks[2])
    assert saved(model, tmp_path) == before, "the copy shares nothing that learning changes"
    assert saved(other, tmp_path) == saved(model.partial_fit(chunks[2]), tmp_path)


@every_copy
def test_a_model_that_learned_nothing_is_copied(again, tmp_path):
    other = again(lq.BiLA("recipe", classes=["no", "yes"], seed=7), tmp_path)
    assert repr(other) == "BiLA(preset='recipe', seed=7, classes=['no', 'yes'])"
    assert other.partial_fit({"t": {"ann": "yes"}}).labels_.to_dict() == {"t": "yes"}


def test_a_copy_of_a_loaded_model_has_no_last_answer_either(chunks, tmp_path):
    lq.MajorityVote().partial_fit(chunks[0]).save(tmp_path / "model.lq")
    with pytest.raises(StateError, match="was loaded from a file"):
        copy.copy(lq.load(tmp_path / "model.lq")).labels_  # noqa: B018


def test_a_model_that_holds_labels_for_the_warm_up_is_pickled(chunks):
    model = lq.BiLA(warmup_items=20).partial_fit(chunks[0])
    other = pickle.loads(pickle.dumps(model))
    assert other.held_labels_ == model.held_labels_ > 0
    assert other.partial_fit(chunks[1]).labels_.equals(model.partial_fit(chunks[1]).labels_)


def test_a_model_with_a_part_of_your_own_is_pickled(chunks):
    model = lq.BiLA("network", generative=confusion_matrix(), epochs=2).partial_fit(chunks[0])
    other = copy.deepcopy(model)
    assert other.partial_fit(chunks[1]).labels_.equals(model.partial_fit(chunks[1]).labels_)


def test_a_model_comes_back_from_another_process(chunks, tmp_path):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        model = pool.submit(lq.MajorityVote().fit, chunks[0]).result()
    assert model.labels_.equals(lq.MajorityVote().fit(chunks[0]).labels_)


def saved(model, tmp_path):
    model.save(tmp_path / "model.lq")
    return (tmp_path / "model.lq").read_bytes()
