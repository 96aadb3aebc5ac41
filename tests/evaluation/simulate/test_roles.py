"""Roles: who plays what is known exactly, the labels keep to it, and nobody else is touched."""

import numpy as np
import pytest

from labelquorum.errors import StateError
from labelquorum.evaluation.simulate.arrivals import label_table
from labelquorum.evaluation.simulate.crowds import Crowd, class_conditional_crowd, one_coin_crowd
from labelquorum.evaluation.simulate.oracle import (
    HONEST,
    confusion_at,
    oracle,
    oracle_error,
    oracle_probs,
)
from labelquorum.evaluation.simulate.roles import (
    effective_workers,
    error_correlation,
    with_adversaries,
    with_bots,
    with_drifters,
    with_judges,
    with_ring,
    with_sleepers,
    with_spammers,
    worker_table,
)

N_ITEMS, N_WORKERS, N_CLASSES = 20_000, 20, 3
ROLES = {
    "spammer": with_spammers,
    "bot": with_bots,
    "adversary": with_adversaries,
    "ring": with_ring,
    "judge": with_judges,
    "sleeper": with_sleepers,
    "drifter": with_drifters,
}
every_role = pytest.mark.parametrize("role", ROLES)


@pytest.fixture(scope="module")
def honest() -> Crowd:
    prior = [0.5, 0.3, 0.2]
    return class_conditional_crowd(N_ITEMS, N_WORKERS, N_CLASSES, 6, class_prior=prior, seed=1)


def everybody(crowd: Crowd) -> Crowd:
    """A crowd with all roles; 20 % spammers and a ring and a sleeper, and more."""
    crowd = with_spammers(crowd, 0.2)
    crowd = with_ring(crowd, 0.1, accuracy=0.4)
    crowd = with_sleepers(crowd, 0.05)
    crowd = with_bots(crowd, 0.05)
    crowd = with_adversaries(crowd, 0.1)
    crowd = with_drifters(crowd, 0.1, amount=0.8)
    crowd = with_ring(crowd, 0.1, accuracy=0.0)
    return with_judges(crowd, 0.2, correlation=0.5)


@pytest.fixture(scope="module")
def mixed(honest) -> Crowd:
    return everybody(honest)


def frequencies(crowd: Crowd, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What each worker said in these rows: shares [k, c, z], and labels [k, c, 1] they are of."""
    counts = np.zeros_like(crowd.confusion)
    np.add.at(counts, (crowd.worker[rows], crowd.truth[crowd.item[rows]], crowd.label[rows]), 1)
    totals = counts.sum(axis=2, keepdims=True)
    return counts / np.maximum(totals, 1), totals


def check_frequencies(crowd: Crowd, rows: np.ndarray, matrices: np.ndarray) -> None:
    shown, totals = frequencies(crowd, rows)
    deviation = np.sqrt(matrices * (1 - matrices) / np.maximum(totals, 1))
    seen = np.broadcast_to(totals > 0, shown.shape)
    assert np.all((np.abs(shown - matrices) <= 4.5 * deviation + 1e-9)[seen])


# ── who ──────────────────────────────────────────────────────────────────────────────────────


@every_role
def test_only_those_who_play_a_role_say_other_things(role, honest):
    crowd = ROLES[role](honest, 0.2, seed=2)
    played = crowd.role == role
    assert played.sum() == 4
    assert np.all(crowd.role[~played] == HONEST)
    assert np.array_equal(crowd.item, honest.item) and np.array_equal(crowd.worker, honest.worker)
    untouched = ~played[crowd.worker]
    assert np.array_equal(crowd.label[untouched], honest.label[untouched])
    assert not np.array_equal(crowd.label, honest.label)
    assert np.array_equal(crowd.confusion[~played], honest.confusion[~played])
    assert np.array_equal(crowd.truth, honest.truth)


@every_role
def test_the_crowd_it_was_made_of_is_left_alone(role, honest):
    before = [column.copy() for column in honest[:6]]
    ROLES[role](honest, 0.5)
    assert all(np.array_equal(one, two) for one, two in zip(before, honest, strict=False))


@every_role
def test_same_seed_gives_the_same_roles_and_labels_and_another_seed_others(role, honest):
    first, again, other = (ROLES[role](honest, 0.2, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.label, again.label)
    assert np.array_equal(first.role, again.role)
    assert not np.array_equal(first.label, other.label)
    assert not np.array_equal(first.role, other.role)


@every_role
def test_workers_may_be_named(role, honest):
    assert np.flatnonzero(ROLES[role](honest, [11, 4]).role == role).tolist() == [4, 11]


@every_role
def test_a_share_of_nothing_changes_nothing(role, honest):
    for nobody in (0, 0.0, []):
        assert ROLES[role](honest, nobody) is honest


def test_roles_are_given_one_after_the_other_and_each_worker_has_one(mixed):
    roles, counts = np.unique(mixed.role, return_counts=True)
    assert dict(zip(roles.tolist(), counts.tolist(), strict=True)) == {
        "spammer": 4,
        "ring": 4,
        "sleeper": 1,
        "bot": 1,
        "adversary": 2,
        "drifter": 2,
        "judge": 4,
        "honest": 2,
    }
    groups = mixed.cast.group[np.isin(mixed.role, ["ring", "judge"])]
    assert np.bincount(groups).tolist() == [2, 2, 4]
    assert np.all(mixed.cast.group[~np.isin(mixed.role, ["ring", "judge"])] == -1)


def test_a_role_that_is_given_later_leaves_earlier_ones_as_they_are(honest):
    first = with_sleepers(with_ring(honest, 0.2), 0.2)
    second = with_spammers(first, 0.3)
    stays = np.isin(second.role, ["ring", "sleeper", "honest"])
    rows = stays[first.worker]
    assert np.array_equal(first.label[rows], second.label[rows])
    for before, after in zip(first.cast[:-1], second.cast[:-1], strict=True):
        assert np.array_equal(before[stays], after[stays])
    assert np.array_equal(first.cast.shared, second.cast.shared)


def test_two_rings_of_one_seed_do_not_say_the_same(honest):
    crowd = with_ring(with_ring(honest, [0, 1], seed=5), [2, 3], seed=5)
    label = np.full((N_ITEMS, N_WORKERS), -1)
    label[crowd.item, crowd.worker] = crowd.label
    both = (label[:, 0] >= 0) & (label[:, 2] >= 0)
    assert np.mean(label[both, 0] == label[both, 2]) == pytest.approx(1 / 3, abs=0.04)


def test_a_share_is_rounded_but_gives_at_least_one(honest):
    for share, n in ((0.01, 1), (0.07, 1), (0.075, 2), (0.12, 2), (0.13, 3), (1.0, 20)):
        assert np.sum(with_spammers(honest, share).role == "spammer") == n
    assert np.sum(with_ring(honest, 0.01).role == "ring") == 2


# ── what they say ────────────────────────────────────────────────────────────────────────────


def test_everybody_who_does_not_change_keeps_to_his_matrix(mixed):
    steady = ~np.isin(mixed.role, ["sleeper", "drifter"])
    check_frequencies(mixed, np.flatnonzero(steady[mixed.worker]), mixed.confusion)
    assert np.array_equal(mixed.cast.later[steady], mixed.confusion[steady])
    assert np.allclose(mixed.confusion.sum(axis=2), 1)
    assert np.allclose(mixed.cast.later.sum(axis=2), 1)


def test_a_spammer_says_everything_equally_often(honest):
    crowd = with_spammers(honest, [3])
    assert np.allclose(crowd.confusion[3], 1 / 3)


def test_a_bot_says_one_thing_and_each_bot_his_own(honest):
    crowd = with_bots(honest, 0.5, seed=6)
    said = [
        set(crowd.label[crowd.worker == k].tolist()) for k in np.flatnonzero(crowd.role == "bot")
    ]
    assert all(len(one) == 1 for one in said)
    assert set.union(*said) == {0, 1, 2}
    same = with_bots(honest, 0.5, answer=2)
    assert set(same.label[(same.role == "bot")[same.worker]].tolist()) == {2}


def test_an_adversary_is_wrong_as_often_as_he_knows_better():
    crowd = one_coin_crowd(30_000, 4, 2, 4, skill=(0.9, 0.9), seed=7)
    liar = with_adversaries(crowd, [0])
    right = liar.label == liar.truth[liar.item]
    assert right[liar.worker == 0].mean() == pytest.approx(0.1, abs=0.01)
    assert np.diagonal(liar.confusion[0]) == pytest.approx(0.1)


def test_members_of_a_ring_give_the_same_answer_to_an_item(honest):
    crowd = with_ring(honest, 0.3, accuracy=0.6, seed=8)
    rows = (crowd.role == "ring")[crowd.worker]
    low, high = np.full(N_ITEMS, N_CLASSES), np.full(N_ITEMS, -1)
    np.minimum.at(low, crowd.item[rows], crowd.label[rows])
    np.maximum.at(high, crowd.item[rows], crowd.label[rows])
    met = high >= 0
    assert np.array_equal(low[met], high[met])
    assert np.mean(low[met] == crowd.truth[met]) == pytest.approx(0.6, abs=0.02)
    assert set(low[met].tolist()) == {0, 1, 2}


def test_a_ring_may_click_at_random_or_lie(honest):
    assert np.allclose(with_ring(honest, [0, 1]).confusion[:2], 1 / 3)
    liars = with_ring(honest, [0, 1], accuracy=0.0)
    rows = liars.worker < 2
    assert not np.any(liars.label[rows] == liars.truth[liars.item[rows]])


@pytest.mark.parametrize(("then", "right"), [("spammer", 1 / 3), ("adversary", 0.1)])
def test_a_sleeper_is_as_he_was_until_he_turns_and_bad_from_then_on(then, right):
    honest = one_coin_crowd(30_000, 10, 3, 5, skill=(0.8, 0.8), seed=9)
    crowd = with_sleepers(honest, [6], at=0.4, then=then, seed=9)
    assert crowd.cast.since[6] == crowd.cast.until[6] == 12_000
    given = crowd.worker == 6
    early, late = given & (crowd.item < 12_000), given & (crowd.item >= 12_000)
    assert np.array_equal(crowd.label[early], honest.label[early])
    hit = crowd.label == crowd.truth[crowd.item]
    assert hit[early].mean() == pytest.approx(0.8, abs=0.02)
    assert hit[late].mean() == pytest.approx(right, abs=0.02)
    check_frequencies(crowd, np.flatnonzero(late), crowd.cast.later)
    assert np.array_equal(confusion_at(crowd, 11_999)[6], honest.confusion[6])
    assert np.array_equal(confusion_at(crowd, 12_000)[6], crowd.cast.later[6])


def test_a_drifter_gets_worse_evenly(honest):
    crowd = with_drifters(honest, 0.5, amount=0.9, seed=10)
    drifts = crowd.role == "drifter"
    part = N_ITEMS // 5
    for first in range(0, N_ITEMS, part):
        inside = (crowd.item >= first) & (crowd.item < first + part) & drifts[crowd.worker]
        # Matrices move in a straight line, so that of the middle is the mean.
        check_frequencies(crowd, np.flatnonzero(inside), confusion_at(crowd, first + part // 2))
    assert np.array_equal(confusion_at(crowd, 0), honest.confusion)
    assert np.array_equal(confusion_at(crowd, N_ITEMS - 1), crowd.cast.later)
    assert np.allclose(crowd.cast.later[drifts], 0.1 * honest.confusion[drifts] + 0.9 / 3)


# ── judges ───────────────────────────────────────────────────────────────────────────────────


def shown_correlation(crowd: Crowd) -> np.ndarray:
    """The correlation of errors as the labels show it; every worker labels every item."""
    wrong = (crowd.label != crowd.truth[crowd.item]).reshape(-1, len(crowd.confusion)).astype(float)
    for c in range(crowd.class_prior.size):
        wrong[crowd.truth == c] -= wrong[crowd.truth == c].mean(axis=0)  # given the truth
    return np.corrcoef(wrong.T)


@pytest.mark.parametrize("correlation", [0.0, 0.2, 0.4, 1.0])
def test_equally_good_judges_err_together_as_often_as_asked_for(correlation):
    equal = one_coin_crowd(20_000, 6, 3, 6, skill=(0.7, 0.7), seed=11)
    crowd = with_judges(equal, correlation=correlation, seed=11)
    others = ~np.eye(6, dtype=bool)
    assert error_correlation(crowd)[others] == pytest.approx(correlation)
    assert shown_correlation(crowd)[others] == pytest.approx(correlation, abs=0.03)
    assert effective_workers(crowd) == pytest.approx(6 / (1 + 5 * correlation))
    assert np.allclose(crowd.confusion, equal.confusion)


def test_the_correlation_of_any_judges_is_known():
    crowd = class_conditional_crowd(40_000, 6, 3, 6, skill=(0.4, 0.95), seed=12)
    crowd = with_judges(with_judges(crowd, [0, 2, 4], 0.6), [1, 5], 0.3)
    known = error_correlation(crowd)
    assert shown_correlation(crowd) == pytest.approx(known, abs=0.03)
    assert known[0, 1] == known[3, 0] == 0 < known[1, 5] < known[0, 2]
    some = error_correlation(crowd, [5, 1, 3])
    assert np.array_equal(some, known[np.ix_([5, 1, 3], [5, 1, 3])])
    assert effective_workers(crowd, [3]) == 1
    assert effective_workers(crowd, [3, 0]) == 2


def test_independent_workers_are_worth_their_number(honest):
    assert effective_workers(honest) == N_WORKERS
    assert effective_workers(with_bots(with_spammers(honest, 0.5), 0.1)) == N_WORKERS


def test_a_ring_is_one_voice(honest):
    assert effective_workers(with_ring(honest, range(5)), range(5)) == pytest.approx(1)


def test_judges_who_never_err_have_no_correlation():
    crowd = with_judges(one_coin_crowd(10, 3, 2, 3, skill=(1, 1)), correlation=0.5)
    assert np.array_equal(error_correlation(crowd), np.eye(3))


# ── the oracle ───────────────────────────────────────────────────────────────────────────────


def bayes(crowd: Crowd, item: int) -> np.ndarray:
    """Bayes' rule written out: all classes, all hidden answers of all groups."""
    rows = np.flatnonzero(crowd.item == item)
    matrices, cast = confusion_at(crowd, item), crowd.cast
    probs = crowd.class_prior.copy()
    for row in rows:
        if cast.group[crowd.worker[row]] < 0:
            probs *= matrices[crowd.worker[row], :, crowd.label[row]]
    for group, shared in enumerate(cast.shared):
        members = [row for row in rows if cast.group[crowd.worker[row]] == group]
        for c in range(probs.size):
            chance = 0.0
            for hidden in range(probs.size):
                product = shared[c, hidden]
                for row in members:
                    k, z = crowd.worker[row], crowd.label[row]
                    own = crowd.confusion[k, c, z] - cast.share[k] * shared[c, z]
                    product *= own + cast.share[k] * (z == hidden)
                chance += product
            probs[c] *= chance
    return probs / probs.sum()


def test_oracle_knows_the_roles_and_is_bayes_rule_written_out(mixed):
    probs = oracle_probs(mixed)
    for item in (0, 1, 9_999, 10_000, 10_001, 15_000, N_ITEMS - 1):
        assert probs[item] == pytest.approx(bayes(mixed, item))


@every_role
def test_oracle_is_as_sure_as_it_is_right_whatever_the_roles(role, honest):
    crowd = ROLES[role](honest, 0.5, seed=13)
    confidence = oracle_probs(crowd).max(axis=1)
    # The bound is four deviations of a share of this many items.
    assert 1 - confidence.mean() == pytest.approx(oracle_error(crowd), abs=0.014)


def test_oracle_errs_less_than_the_vote_and_than_one_who_does_not_know_the_roles(mixed, honest):
    votes = np.zeros((N_ITEMS, N_CLASSES))
    np.add.at(votes, (mixed.item, mixed.label), 1)
    vote_error = np.mean(votes.argmax(axis=1) != mixed.truth)
    unaware = mixed._replace(cast=None, confusion=honest.confusion)
    assert oracle_error(honest) < oracle_error(mixed)
    assert oracle_error(mixed) < oracle_error(unaware) - 0.03
    assert oracle_error(mixed) < vote_error - 0.03


def test_oracle_counts_a_ring_as_one_voice():
    crowd = one_coin_crowd(4000, 9, 2, 9, skill=(0.7, 0.7), seed=14)
    ring = with_ring(crowd, range(6), accuracy=0.6, seed=14)
    # Take out all members but one: nothing that could be known is lost.
    rows = np.isin(ring.worker, [5, 6, 7, 8])
    one = ring._replace(item=ring.item[rows], worker=ring.worker[rows], label=ring.label[rows])
    assert oracle_probs(ring) == pytest.approx(oracle_probs(one))
    assert oracle_error(ring) < oracle_error(ring._replace(cast=None)) - 0.05
    assert np.array_equal(oracle(ring), oracle(one))


def test_oracle_takes_bots_and_rings_that_are_never_right(honest):
    crowd = with_bots(with_ring(honest, 0.2, accuracy=0.0), 0.3)
    assert np.all(np.isfinite(oracle_probs(crowd)))


# ── the table of workers ─────────────────────────────────────────────────────────────────────


def test_worker_table_tells_who_is_what_since_when_and_how_good(mixed):
    table = worker_table(mixed)
    assert table.index.tolist() == [f"w{k:02d}" for k in range(N_WORKERS)]
    assert table["role"].tolist() == mixed.role.tolist()
    assert table["labels"].sum() == mixed.label.size
    [sleeper] = table.index[table["role"] == "sleeper"]
    assert table.loc[sleeper, "since"] == label_table(mixed).item_ids[6 * N_ITEMS // 2] == "t10000"
    assert table.loc[sleeper, "skill_later"] == pytest.approx(1 / 3)
    others = table[table["role"] != "sleeper"]
    assert set(others["since"]) == {"t00000"}
    early = mixed.item < N_ITEMS // 2
    hit = (mixed.label == mixed.truth[mixed.item])[early]
    shown = np.bincount(mixed.worker[early], hit) / np.bincount(mixed.worker[early])
    steady = (mixed.role != "drifter").nonzero()[0]
    assert table["skill"].to_numpy()[steady] == pytest.approx(shown[steady], abs=0.04)
    numbered = worker_table(mixed, text_ids=False)
    assert numbered.index.tolist() == list(range(N_WORKERS))
    assert set(numbered["since"]) == {0, N_ITEMS // 2}


def test_a_sleeper_who_never_turns_has_no_first_item(honest):
    crowd = with_sleepers(honest, [2], at=1.0)
    assert worker_table(crowd)["since"].tolist()[2] is None
    assert np.array_equal(crowd.label, honest.label)


# ── errors ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda crowd: with_spammers(crowd, 1.5), "`workers` of with_spammers .* to 1. Got 1.5"),
        (lambda crowd: with_spammers(crowd, [20]), "`workers` .* from 0 to 19. Got \\[20\\]"),
        (lambda crowd: with_spammers(crowd, [1, 1]), "`workers` .* different"),
        (lambda crowd: with_spammers(crowd, [0.5]), "`workers` .* by number"),
        (lambda crowd: with_spammers(crowd, [[1, 2]]), "`workers` .* list"),
        (lambda crowd: with_spammers(crowd, "all"), "`workers` .* share"),
        (
            lambda crowd: with_bots(with_bots(crowd, [1]), [1]),
            "Worker 1 has the role 'bot' already",
        ),
        (lambda crowd: with_ring(crowd, [1]), "`workers` of with_ring must be at least 2"),
        (
            lambda crowd: with_bots(with_spammers(crowd, 0.8), 0.3),
            "with_bots is to change 6 of 20 workers, and 4 are still honest",
        ),
        (lambda crowd: with_bots(crowd, answer=3), "`answer` of with_bots .* 0 to 2. Got 3"),
        (lambda crowd: with_ring(crowd, accuracy=2), "`accuracy` of with_ring .* Got 2"),
        (lambda crowd: with_judges(crowd, correlation=-1), "`correlation` of with_judges"),
        (lambda crowd: with_sleepers(crowd, at=1.1), "`at` of with_sleepers .* Got 1.1"),
        (lambda crowd: with_sleepers(crowd, then="bot"), "`then` .* 'adversary'. Got 'bot'"),
        (lambda crowd: with_drifters(crowd, amount=float("nan")), "`amount` of with_drifters"),
    ],
)
def test_a_setting_out_of_range_is_refused_with_a_sentence(make, sentence, honest):
    with pytest.raises(StateError, match=sentence):
        make(honest)
