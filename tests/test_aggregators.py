"""Every registered aggregator is taken through every law; and the laws can be broken."""

from collections.abc import Callable

import numpy as np
import pytest
from groups import slow_but

from labelquorum.errors import StateError
from labelquorum.evaluation import checks
from labelquorum.evaluation.checks import CHECKS, check_aggregator
from labelquorum.learn.aggregator import Aggregator, refit, softmax
from labelquorum.learn.bila.presets import PRESETS, settings_of
from labelquorum.learn.methods.majority_vote import majority_vote
from labelquorum.learn.registry import AGGREGATORS

bila = AGGREGATORS["bila"]

METHODS: dict[str, Callable[[], Aggregator]] = {
    **AGGREGATORS,
    **{f"bila {name}": (lambda name=name: bila(**PRESETS[name])) for name in PRESETS},
    "bila worker_ability": lambda: bila(**settings_of("network", generative="worker_ability")),
    "refit dawid_skene": lambda: refit(AGGREGATORS["dawid_skene"]()),
    "bila tied": lambda: bila(**settings_of("network", encoder="tied", kl_weight=1.0)),
    "bila diagonal": lambda: bila(newton_classes=0),
    "bila one_coin": lambda: bila(generative="one_coin"),
}
del METHODS["bila default"]  # the same as plain bila
COMPILED = {"bcc", "ebcc", "laa", "mmce", "minimax_entropy", *(m for m in METHODS if "bila" in m)}
QUICK = METHODS.keys() - COMPILED | {"bila"}


@pytest.fixture(scope="module")
def built() -> dict[str, Aggregator]:
    return {name: build() for name, build in METHODS.items()}


@pytest.mark.parametrize("law", CHECKS)
@pytest.mark.parametrize("method", slow_but(QUICK, METHODS))
def test_every_aggregator_obeys_every_law(method, law, built):
    aggregator = built[method]
    [(name, outcome)] = check_aggregator(aggregator, only=law)
    assert name == law
    if outcome != "held":
        assert outcome == f"excused: {aggregator.exceptions[law]}"
        # An excuse is for a law that does not hold: one that does is no longer needed.
        with pytest.raises(AssertionError, match=law):
            CHECKS[law](aggregator)


def test_the_skill_rule_alone_breaks_shared_errors(monkeypatch):
    """`BiLA()` chose its worker model so before evidence had a say."""
    monkeypatch.setattr("labelquorum.learn.bila.worker_models.MIN_EVIDENCE_GAIN", float("inf"))
    with pytest.raises(AssertionError, match="shared_errors"):
        CHECKS["shared_errors"](bila())


def test_each_method_is_excused_from_these_laws_alone(built):
    excused = {name: set(built[name].exceptions) for name in AGGREGATORS}
    assert {name: laws for name, laws in excused.items() if laws} == {
        "bcc": {"shared_errors"},
        "bwa": {"shared_errors"},
        "dawid_skene": {"cold_start"},
        "ebcc": {"shared_errors"},
        "glad": {"shared_errors"},
        "ibcc": {"shared_errors"},
        "laa": {"class_names", "shared_errors"},
        "minimax_entropy": {"cold_start", "no_worse_than_majority", "shared_errors"},
        "mmce": {"cold_start", "no_worse_than_majority", "shared_errors"},
        "one_coin": {"shared_errors"},
        "sbic": {"new_class"},
        "stepwise_em": {"shared_errors"},
        "streaming_vb": {"shared_errors"},
    }


def test_majority_vote_needs_no_excuse():
    assert check_aggregator(majority_vote()) == [(law, "held") for law in CHECKS]


def test_every_law_is_one_sentence():
    for law, check in CHECKS.items():
        sentence = check.__doc__ or ""
        assert sentence.endswith(".") and "\n" not in sentence, law
        assert check.__name__ == f"check_{law}"
        assert getattr(checks, check.__name__) is check


def test_a_broken_law_names_the_aggregator_the_law_and_what_was_seen():
    with pytest.raises(AssertionError) as caught:
        check_aggregator(BROKEN["rows_sum_to_one"](majority_vote())._replace(name="crooked"))
    message = str(caught.value)
    assert "'crooked' breaks the law 'rows_sum_to_one'" in message
    assert CHECKS["rows_sum_to_one"].__doc__ in message
    assert "What was seen: probs with a row whose sum is" in message


def test_an_excused_law_is_not_run_and_the_reason_is_told():
    crooked = BROKEN["rows_sum_to_one"](majority_vote())
    excused = crooked._replace(exceptions={"rows_sum_to_one": "they are odds."})
    [outcome] = check_aggregator(excused, only=["rows_sum_to_one"])
    assert outcome == ("rows_sum_to_one", "excused: they are odds.")


def test_a_law_nobody_knows_is_refused():
    with pytest.raises(StateError, match="There is no law 'gravity'"):
        check_aggregator(majority_vote(), only="gravity")
    with pytest.raises(StateError, match="There is no law 'gravity'"):
        check_aggregator(majority_vote()._replace(exceptions={"gravity": "none here"}))


# ── laws that must trip ──────────────────────────────────────────────────────────────────


def with_answer(change: Callable) -> Callable[[Aggregator], Aggregator]:
    """Break an aggregator by changing its answers: change(answer, state, chunk)."""

    def broken(method: Aggregator) -> Aggregator:
        def aggregate(state, chunk):
            return change(method.aggregate(state, chunk), state, chunk)

        return method._replace(aggregate=aggregate)

    return broken


def with_update(change: Callable) -> Callable[[Aggregator], Aggregator]:
    """Break an aggregator by changing what it learns: change(new state, old state, chunk)."""

    def broken(method: Aggregator) -> Aggregator:
        def update(state, chunk):
            new, info = method.update(state, chunk)
            return change(new, state, chunk), info

        return method._replace(update=update)

    return broken


def sums_wrong(answer, state, chunk):
    return answer._replace(probs=answer.probs * 1.01)


def names_the_least_probable(answer, state, chunk):
    return answer._replace(aggregated=answer.probs.argmin(axis=1))


def multiplies_probabilities(answer, state, chunk):
    # Not in logs: the product of 2,000 numbers below one is zero in float32.
    product = np.ones(answer.probs.shape, np.float32)
    for item, label in zip(chunk.item, chunk.label, strict=True):
        product[item] *= np.where(np.arange(chunk.n_classes) == label, 0.6, 0.4)
    with np.errstate(invalid="ignore"):
        return answer._replace(probs=product / product.sum(axis=1, keepdims=True))


def always_says_zero(answer, state, chunk):
    probs = np.zeros_like(answer.probs)
    probs[:, 0] = 1
    return answer._replace(probs=probs, aggregated=np.zeros_like(answer.aggregated))


def writes_on_the_state(answer, state, chunk):
    state.shares[...] += 1
    return answer


def remembers_being_asked(method: Aggregator) -> Aggregator:
    asked = []

    def aggregate(state, chunk):
        asked.append(1)
        answer = method.aggregate(state, chunk)
        return answer._replace(log_evidence=answer.log_evidence + np.float32(len(asked)))

    return method._replace(aggregate=aggregate)


def learns_in_place(new, old, chunk):
    old.shares[...] = new.shares
    return new


def draws_from_the_air(method: Aggregator) -> Aggregator:
    rng = np.random.default_rng()
    return with_update(lambda new, old, chunk: new._replace(shares=new.shares + rng.random()))(
        method
    )


def keeps_half_outside_the_state(method: Aggregator) -> Aggregator:
    seen: dict[int, int] = {}  # chunks learned from, by state: lost when that is rebuilt

    def update(state, chunk):
        new, info = method.update(state, chunk)
        seen[id(new.shares)] = seen.get(id(state.shares), 0) + 1
        alive.append(new)
        new.shares[...] += seen[id(new.shares)]
        return new, info

    alive: list = []  # so that no id is used again
    return method._replace(update=update)


def counts_empty_chunks(new, old, chunk):
    return new._replace(shares=new.shares + 1)


def grows_with_items(new, old, chunk):
    return new._replace(shares=np.append(new.shares, np.zeros(chunk.n_items)))


def goes_by_position(answer, state, chunk):
    turn = np.arange(chunk.n_items)[:, None] % 2
    probs = np.where(turn == 0, answer.probs, np.roll(answer.probs, 1, axis=1))
    return answer._replace(probs=probs, aggregated=probs.argmax(axis=1).astype(np.int32))


def goes_by_company(answer, state, chunk):
    mean = answer.probs.mean(axis=0, keepdims=True)
    return answer._replace(probs=(answer.probs + mean) / 2)


def depends_on_arrival(method: Aggregator) -> Aggregator:
    streams: list = []  # a generator shared by all updates: the second pass draws others

    def update(state, chunk):
        new, info = method.update(state, chunk)
        streams.append(None)
        return new._replace(shares=new.shares + len(streams)), info

    return method._replace(update=update)


def takes_classes_for_quantities(answer, state, chunk):
    slope = 1.0 + np.arange(chunk.n_classes)
    probs = answer.probs * slope / (answer.probs * slope).sum(axis=1, keepdims=True)
    return answer._replace(probs=probs)


def ignores_weights(method: Aggregator) -> Aggregator:
    def aggregate(state, chunk):
        return method.aggregate(state, chunk._replace(weight=np.ones_like(chunk.weight)))

    return method._replace(aggregate=aggregate)


def drops_new_workers(method: Aggregator) -> Aggregator:
    def update(state, chunk):
        if state.rows.n_workers:
            chunk = chunk._replace(n_workers=state.rows.n_workers)
            known = chunk.worker < state.rows.n_workers
            if not known.all():
                raise IndexError("a worker without a row")
        return method.update(state, chunk)

    return method._replace(update=update)


def listens_to_strangers(answer, state, chunk):
    if chunk.n_workers > state.rows.n_workers:
        return answer._replace(probs=np.full_like(answer.probs, 1 / chunk.n_classes))
    return answer


def has_no_room_for_classes(method: Aggregator) -> Aggregator:
    def aggregate(state, chunk):
        answer = method.aggregate(state, chunk)
        probs = answer.probs[:, : len(state.shares)]
        return answer._replace(probs=probs / np.maximum(probs.sum(axis=1, keepdims=True), 1e-9))

    return method._replace(aggregate=aggregate)


def forgets_nothing(method: Aggregator) -> Aggregator:
    return method._replace(forget=lambda state, worker: state)


def forgets_everybody(method: Aggregator) -> Aggregator:
    def forget(state, worker):
        for k in range(state.rows.n_workers):
            state = method.forget(state, k)
        return state

    return method._replace(forget=forget)


BROKEN: dict[str, Callable[[Aggregator], Aggregator]] = {
    "rows_sum_to_one": with_answer(sums_wrong),
    "answer_is_most_probable": with_answer(names_the_least_probable),
    "many_labels": with_answer(multiplies_probabilities),
    "no_worse_than_majority": with_answer(always_says_zero),
    "cold_start": with_answer(always_says_zero),
    "shared_errors": with_answer(always_says_zero),
    "aggregate_is_pure": with_answer(writes_on_the_state),
    "update_is_pure": with_update(learns_in_place),
    "stop_and_resume": keeps_half_outside_the_state,
    "empty_chunk": with_update(counts_empty_chunks),
    "memory": with_update(grows_with_items),
    "row_order": depends_on_arrival,
    "item_order": with_answer(goes_by_position),
    "class_names": with_answer(takes_classes_for_quantities),
    "weights": ignores_weights,
    "new_worker": drops_new_workers,
    "unseen_worker": with_answer(listens_to_strangers),
    "new_class": has_no_room_for_classes,
    "forgetting": forgets_everybody,
}


@pytest.mark.parametrize("law", CHECKS)
def test_an_aggregator_that_breaks_a_law_is_found_out(law):
    with pytest.raises(AssertionError, match=f"breaks the law '{law}'"):
        CHECKS[law](BROKEN[law](majority_vote()))


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        ("aggregate_is_pure", remembers_being_asked),
        ("update_is_pure", draws_from_the_air),
        ("item_order", with_answer(goes_by_company)),
        ("forgetting", forgets_nothing),
    ],
)
def test_a_law_can_be_broken_in_a_second_way(law, broken):
    with pytest.raises(AssertionError, match=f"breaks the law '{law}'"):
        CHECKS[law](broken(majority_vote()))


@pytest.mark.parametrize("n_classes", [1, 2, 5, 7, 8, 9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_have_the_bits_of_a_softmax_row_by_row(n_classes, dtype):
    scores = np.random.default_rng(0).normal(0, 5, (200, n_classes)).astype(dtype)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    np.testing.assert_array_equal(softmax(scores), expected)
