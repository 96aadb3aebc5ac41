"""Tracks: nothing is lost, new is fine and old is coarse, and a change is found where it was."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelquorum.learn.analysis import drift
from labelquorum.learn.analysis.drift import (
    AGREED,
    BINS,
    CHUNK,
    CROWD,
    LABELS,
    WIDTH,
    changes,
    count,
    count_in_numpy,
    curve,
    extend,
    fresh_track,
    joined,
    left_out,
    scores,
    taken_back,
)
from labelquorum.learn.analysis.flags import drifting


def tracks_of(rates, labels, rng, crowd=None, start=1):
    """Tracks of workers who go along at these rates, (P, chunks), with `labels` per chunk."""
    track = fresh_track(len(rates))
    for chunk in range(rates.shape[1]):
        agreed = rng.binomial(labels, rates[:, chunk]).astype(float)
        others = labels * (0.7 if crowd is None else crowd[chunk])
        news = np.stack(
            [np.full(len(rates), labels), agreed, agreed, np.full(len(rates), others)], axis=1
        )
        track = extend(track, news, start + chunk)
    return track


@pytest.fixture
def rng():
    return np.random.default_rng(5)


# ── what is left of an answer ────────────────────────────────────────────────────────────


def test_agreement_is_what_all_others_say_of_the_label():
    # π = (½, ½); the others say 3 : 1 for class 0, and this worker 4 : 1 for class 1
    others, own = np.log([0.75, 0.25]), np.log([0.2, 0.8])
    probs = np.exp(others + own) / np.exp(others + own).sum()
    reply = left_out(probs[None], None, np.zeros(1, int), own[None], np.array([1]))
    assert reply == pytest.approx([0.25])


def test_agreement_takes_a_label_out_by_the_heat_it_was_put_in_with():
    others, own, temperature = np.log([0.9, 0.1]), np.log([0.3, 0.6]), 2.0
    probs = np.exp((others + own) / temperature)
    left = np.exp(others / temperature)
    probs /= probs.sum()
    reply = left_out(
        probs[None], np.array([temperature]), np.zeros(1, int), own[None], np.array([0])
    )
    assert reply == pytest.approx([left[0] / left.sum()])


def test_agreement_with_a_given_truth_is_yes_or_no():
    evidence = np.log([[0.1, 0.9], [0.9, 0.1]])
    item, label = np.zeros(2, int), np.array([1, 0])
    reply = left_out(np.array([[1.0, 0.0]]), None, item, evidence, label)
    assert reply.tolist() == [0, 1]


@pytest.mark.parametrize("n_classes", [1, 2, 4, 7, 8, 9, 20])
@pytest.mark.parametrize("heated", [False, True])
def test_agreement_has_the_bits_of_its_formula_row_by_row(n_classes, heated, rng, monkeypatch):
    monkeypatch.setattr(drift, "BATCH_LABELS", 7)
    n_items, n_labels = 10, 60
    probs = rng.dirichlet(np.full(n_classes, 0.3), n_items).astype(np.float32)
    probs[rng.random(probs.shape) < 0.1] = 0
    said = rng.normal(0, 30, (n_labels, n_classes)).astype(np.float32)
    said[rng.random(said.shape) < 0.1] = np.nan
    item, label = rng.integers(0, n_items, n_labels), rng.integers(0, n_classes, n_labels)
    temperature = 1 + rng.random(n_items) if heated else np.ones(n_items)
    expected = []
    for n, z, row in zip(item, label, said.astype(np.float64), strict=True):
        log_q = np.log(np.maximum(probs[n], 1e-30))
        log_q = log_q - np.clip(np.nan_to_num(row), -60, 60) / temperature[n]
        log_q = np.where(probs[n] > 0, log_q, -np.inf)
        left = np.exp(log_q - max(log_q.max(), -1e9))
        expected.append(left[z] / max(left.sum(), 1e-30))
    reply = left_out(probs, temperature if heated else None, item, said, label)
    assert reply.tolist() == expected


# ── bins ─────────────────────────────────────────────────────────────────────────────────


def test_a_track_loses_no_label_however_long_it_gets(rng):
    sizes = rng.integers(0, 9, (300, 7)).astype(float)
    track = fresh_track(7)
    for chunk, size in enumerate(sizes):
        news = np.stack([size, size / 2, size / 4, size / 3], axis=1)
        track = extend(track, news, chunk + 1)
    assert track.shape == (7, BINS, WIDTH)
    assert track.dtype == np.float32
    assert track[:, :, LABELS].sum(axis=1).tolist() == sizes.sum(axis=0).tolist()
    assert track[:, :, AGREED].sum(axis=1) == pytest.approx(sizes.sum(axis=0) / 2)
    assert track[:, :, CROWD].sum(axis=1) == pytest.approx(sizes.sum(axis=0) / 3, rel=1e-5)
    for k in range(7):
        assert (np.diff(track[k, :, CHUNK]) > 0).all()
        assert track[k, -1, CHUNK] == 1 + np.flatnonzero(sizes[:, k])[-1]


def test_new_bins_are_fine_and_old_ones_coarse(rng):
    track = tracks_of(np.full((1, 2000), 0.7), 5, rng)[0]
    spans = np.diff(track[:, CHUNK], prepend=0)
    assert spans[-2:].tolist() == [1, 1]
    after = track[-1, CHUNK] - track[:-1, CHUNK]
    # whatever is old is known to within its distance from now
    assert (spans[:-1] <= 1 + 1.2 * after).all()
    assert spans[0] > 100


def test_who_says_nothing_keeps_his_track_to_the_bit(rng):
    track = tracks_of(np.full((2, 40), 0.7), 5, rng)
    after = extend(track, np.array([[0.0, 0, 0, 0], [3, 1, 1, 2]]), 41)
    assert (after[0] == track[0]).all()
    assert after[1, -1].tolist() == [3, 1, 1, 2, 41]


@pytest.mark.skipif(
    drift._tracks is None, reason="Nothing was compiled: there is no C compiler here."
)
@given(seed=st.integers(0, 2**32 - 1), n_workers=st.integers(1, 9), n_chunks=st.integers(1, 40))
def test_c_and_numpy_count_a_chunk_to_the_same_bits(seed, n_workers, n_chunks):
    rng = np.random.default_rng(seed)
    one = other = fresh_track(n_workers)
    for chunk in rng.permutation(n_chunks) + 1:  # some come late
        worker = rng.integers(0, n_workers, rng.integers(0, 30)).astype(np.int32)
        agreement, agrees = rng.random(len(worker)), rng.random(len(worker)) < 0.7
        mine = count(one.copy(), worker, agreement, agrees, float(chunk))
        theirs = count_in_numpy(other, worker, agreement, agrees, float(chunk))
        for left, right in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(left, right)
        one, other = mine[2], theirs[2]


@pytest.mark.skipif(
    drift._tracks is None, reason="Nothing was compiled: there is no C compiler here."
)
def test_a_worker_beyond_the_last_is_refused_in_c():
    with pytest.raises(ValueError, match="not among those counted"):
        count(fresh_track(1), np.array([1], np.int32), np.ones(1), np.ones(1, bool), 1)


def test_a_chunk_that_comes_late_stands_last():
    track = fresh_track(1)
    for chunk in (1, 5, 3):
        track = extend(track, np.array([[2.0, 1, 1, 1]]), chunk)
    assert track[0, :3, CHUNK].tolist() == [1, 5, 5]


def test_labels_that_are_taken_back_leave_the_shape_of_a_track(rng):
    track = tracks_of(np.full((1, 40), 0.7), 5, rng)[0]
    less = taken_back(track, 1, 1.0)
    assert less[:, LABELS].sum() == pytest.approx(199)
    assert less[:, AGREED].sum() == pytest.approx(track[:, AGREED].sum() - 1)
    rate, before = less[:, CROWD] / less[:, LABELS], track[:, CROWD] / track[:, LABELS]
    assert rate == pytest.approx(before)
    assert not taken_back(track, 200, 140).any()


def test_joined_tracks_hold_the_labels_of_both(rng):
    one, two = (tracks_of(np.full((3, 30), 0.7), n, rng) for n in (4, 6))
    both = joined([one, two])
    assert both.shape == (3, BINS, WIDTH)
    assert both[:, :, LABELS].sum(axis=1).tolist() == [300] * 3
    assert both[:, -1, CHUNK].tolist() == [30] * 3


def test_joined_tracks_do_not_count_their_base_twice(rng):
    base = tracks_of(np.full((1, 30), 0.7), 4, rng)
    shards = []
    for n in (2, 3):
        track = base
        for chunk in range(31, 61):
            track = extend(track, np.array([[n, n, n, n]], float), chunk)
        shards.append(track)
    both = joined(shards, base)
    assert both[:, :, LABELS].sum() == pytest.approx(120 + 60 + 90, rel=1e-6)
    agreed = base[:, :, AGREED].sum() + 60 + 90
    assert both[:, :, AGREED].sum() == pytest.approx(agreed, rel=1e-5)


# ── changes ──────────────────────────────────────────────────────────────────────────────


def test_a_fall_is_found_where_it_was(rng):
    rates = np.concatenate([np.full((50, 60), 0.85), np.full((50, 10), 0.35)], axis=1)
    found = drifting(tracks_of(rates, 8, rng))
    assert sum(flag is not None for flag in found) >= 48
    when = np.array([flag.since for flag in found if flag is not None])
    assert np.median(when) == pytest.approx(61, abs=2)
    assert (np.abs(when - 61) <= 12).all()
    assert all("agree with the others on" in flag.says for flag in found if flag is not None)


def test_a_change_tells_the_agreement_on_both_sides(rng):
    rates = np.concatenate([np.full((1, 60), 0.9), np.full((1, 60), 0.3)], axis=1)
    (change,) = changes(tracks_of(rates, 20, rng)[0])
    assert change.before == pytest.approx(0.9, abs=0.05)
    assert change.after == pytest.approx(0.3, abs=0.05)
    assert change.score > 50


def test_who_falls_and_recovers_is_not_drifting_any_more(rng):
    steps = [np.full((1, 60), rate) for rate in (0.9, 0.4, 0.9)]
    track = tracks_of(np.concatenate(steps, axis=1), 20, rng)
    assert [change.after > change.before for change in changes(track[0])] == [False, True]
    assert drifting(track) == [None]


def test_who_gets_better_has_changed_and_is_not_drifting(rng):
    rates = np.concatenate([np.full((1, 60), 0.4), np.full((1, 60), 0.9)], axis=1)
    track = tracks_of(rates, 20, rng)
    assert len(changes(track[0])) == 1
    assert drifting(track) == [None]


def test_a_hard_stretch_for_all_is_no_drift_of_one(rng):
    crowd = np.concatenate([np.full(60, 0.8), np.full(20, 0.5)])
    rates = np.tile(crowd, (1000, 1))
    together = drifting(tracks_of(rates, 10, rng, crowd))
    assert sum(flag is not None for flag in together) <= 5
    # and the same fall is one where nobody else fell
    alone = drifting(tracks_of(rates, 10, rng))
    assert sum(flag is not None for flag in alone) > 950


def test_a_crowd_that_gets_better_makes_nobody_a_drifter(rng):
    crowd = np.concatenate([np.full(40, 0.5), np.full(40, 0.8)])
    assert drifting(tracks_of(np.full((100, 80), 0.5), 10, rng, crowd)) == [None] * 100


def test_workers_who_do_not_change_are_seldom_accused(rng):
    rates = np.repeat(rng.uniform(0.3, 0.95, (2000, 1)), 120, axis=1)
    found = drifting(tracks_of(rates, 6, rng))
    assert sum(flag is not None for flag in found) <= 6  # 0.3 %


def test_few_labels_accuse_nobody(rng):
    rates = np.concatenate([np.ones((50, 6)), np.zeros((50, 6))], axis=1)
    assert drifting(tracks_of(rates, 1, rng)) == [None] * 50


def test_a_higher_level_asks_for_more(rng):
    rates = np.concatenate([np.full((200, 60), 0.8), np.full((200, 10), 0.5)], axis=1)
    track = tracks_of(rates, 6, rng)
    found = [sum(flag is not None for flag in drifting(track, level)) for level in (0.9, 0.999)]
    assert found[0] > found[1] > 0


def test_a_curve_has_bounds_around_the_agreement(rng):
    track = tracks_of(np.full((1, 200), 0.75), 10, rng)[0]
    reply = curve(track)
    assert sum(one.labels for one in reply) == 2000
    assert all(0 <= one.low <= one.agreement <= one.high <= 1 for one in reply)
    assert reply[0].high - reply[0].low < reply[-1].high - reply[-1].low
    assert curve(fresh_track(1)[0]) == []


def test_scores_of_nobody_and_of_nothing():
    assert scores(fresh_track(3)).tolist() == [[0.0] * (BINS - 1)] * 3
    assert drifting(fresh_track(0)) == []
    assert changes(fresh_track(1)[0]) == []
    assert drift.limit(0.99) > drift.limit(0.95) == drift.LIMIT
