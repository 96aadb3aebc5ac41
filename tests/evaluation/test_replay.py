"""The online protocol: who sees what, when, and how it is scored."""

import math

import pandas as pd
import pytest

from labelquorum.errors import StateError
from labelquorum.evaluation.replay import stream
from labelquorum.evaluation.simulate.arrivals import label_table
from labelquorum.evaluation.simulate.crowds import class_conditional_crowd
from labelquorum.ingest.labels import LabelTable
from labelquorum.learn.estimators import BiLA, MajorityVote

# Three items, rows of "a" torn apart; majority says a → 1, b → 0, c → 1.
TORN = LabelTable(
    item_ids=["a", "b", "b", "a", "c", "a"],
    worker_ids=["ann", "ann", "bob", "bob", "ann", "cat"],
    labels=[1, 0, 0, 0, 1, 1],
)


class Recorder(MajorityVote):
    """A majority vote that remembers which items came in each chunk."""

    seen: list[list[str]]

    def partial_fit(self, labels: LabelTable) -> "Recorder":
        self.__dict__.setdefault("seen", []).append(list(dict.fromkeys(labels.item_ids)))
        return super().partial_fit(labels)


def chunks_seen(**protocol: object) -> list[list[str]]:
    made: list[Recorder] = []

    def factory() -> Recorder:
        made.append(Recorder())
        return made[-1]

    stream(factory, TORN, {}, **protocol)  # type: ignore[arg-type]
    [model] = made
    return model.seen


def test_items_come_whole_and_in_order_of_first_appearance() -> None:
    assert chunks_seen(chunk_items=1) == [["a"], ["b"], ["c"]]
    assert chunks_seen(chunk_items=2) == [["a", "b"], ["c"]]


def test_warmup_is_one_first_chunk_that_may_be_streamed_again() -> None:
    assert chunks_seen(chunk_items=1, warmup_items=2) == [["a", "b"], ["c"]]
    assert chunks_seen(chunk_items=1, warmup_items=2, repeat_warmup=True) == [
        ["a", "b"],
        ["a"],
        ["b"],
        ["c"],
    ]
    assert chunks_seen(chunk_items=1, warmup_items=5) == [["a", "b", "c"]]


def test_a_random_order_follows_its_seed() -> None:
    orders = {tuple(chunks_seen(chunk_items=3, order=seed)[0]) for seed in range(20)}
    assert len(orders) == 6
    assert chunks_seen(chunk_items=1, order=3) == chunks_seen(chunk_items=1, order=3)


def test_only_items_with_truth_are_scored() -> None:
    result = stream(MajorityVote, TORN, {"a": 0, "b": 0, "elsewhere": 1}, chunk_items=1)
    assert result.n_items == 3
    assert result.n_scored == 2
    assert result.emitted == {"a": 1, "b": 0, "c": 1}
    assert result.emitted_error == result.final_error == 0.5
    assert result.curve.tolist() == [[1, 1.0], [2, 0.5], [3, 0.5]]
    assert len(result.seconds) == 3
    assert (result.seconds > 0).all()


def test_without_truth_there_is_no_error_to_tell() -> None:
    result = stream(MajorityVote, TORN, {}, chunk_items=2)
    assert math.isnan(result.emitted_error)
    assert math.isnan(result.curve[0, 1])


def test_an_item_that_is_never_answered_is_an_error() -> None:
    class Silent(MajorityVote):
        @property
        def labels_(self) -> pd.Series:
            return super().labels_.iloc[1:]

    result = stream(Silent, TORN, {"a": 1, "b": 0, "c": 1}, chunk_items=2)
    assert result.emitted == {"b": 0}
    assert result.emitted_error == pytest.approx(2 / 3)


def test_a_models_own_warmup_is_answered_late_and_scored_all_the_same() -> None:
    truth = {"a": 1, "b": 0, "c": 1}
    result = stream(lambda: MajorityVote(warmup_items=2), TORN, truth, chunk_items=1)
    assert math.isnan(result.curve[0, 1])
    assert result.curve[:, 0].tolist() == [1, 2, 3]
    assert result.emitted_error == 0


def test_a_first_chunk_and_the_models_own_warmup_learn_the_same() -> None:
    crowd = class_conditional_crowd(120, 12, 3, labels_per_item=4, seed=2)
    table = label_table(crowd, text_ids=False)
    truth = dict(enumerate(crowd.truth.tolist()))
    ours = stream(BiLA, table, truth, chunk_items=20, warmup_items=60)
    own = stream(lambda: BiLA(warmup_items=60), table, truth, chunk_items=20)
    assert ours.emitted == own.emitted
    assert len(ours.seconds) == 4
    assert len(own.seconds) == 6


def test_an_empty_table_is_a_stream_of_nothing() -> None:
    result = stream(MajorityVote, LabelTable([], [], []), {"a": 1}, chunk_items=5, warmup_items=3)
    assert result.n_items == 0
    assert result.curve.shape == (0, 2)
    assert math.isnan(result.final_error)


@pytest.mark.parametrize("protocol", [{"chunk_items": 0}, {"chunk_items": 5, "warmup_items": -1}])
def test_impossible_sizes_are_refused(protocol: dict[str, int]) -> None:
    with pytest.raises(StateError, match=r"of stream must be a whole number ≥"):
        stream(MajorityVote, TORN, {}, **protocol)  # type: ignore[arg-type]
