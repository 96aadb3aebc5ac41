"""Seeded crowds: what the paper says of them, and what their own matrices promise."""

import numpy as np
import pytest

from labelquorum.errors import StateError
from labelquorum.evaluation.simulate.arrivals import chunks, label_table, truth_by_item
from labelquorum.evaluation.simulate.crowds import (
    Crowd,
    balanced_truth,
    bimodal_crowd,
    bimodal_noise,
    class_conditional_crowd,
    one_coin_crowd,
    ordinal_crowd,
    published_noise_rates,
)
from labelquorum.evaluation.simulate.oracle import confusion_at, oracle, oracle_error, oracle_probs

PENDIGITS_ITEMS = 10_992


@pytest.fixture(scope="module")
def paper_crowd() -> Crowd:
    return bimodal_crowd(balanced_truth(PENDIGITS_ITEMS, seed=2), seed=2)


def make_crowd(kind: str, seed: int) -> Crowd:
    if kind == "bimodal":
        return bimodal_crowd(balanced_truth(400, seed=1), n_workers=6, spread=0.3, seed=seed)
    settings = {"class_prior": [0.6, 0.3, 0.1], "seed": seed}
    if kind == "heavy_tailed":
        return class_conditional_crowd(400, 12, 3, 4, participation=1.5, **settings)
    make = {
        "class_conditional": class_conditional_crowd,
        "one_coin": one_coin_crowd,
        "ordinal": ordinal_crowd,
    }[kind]
    return make(400, 12, 3, 4, **settings)


every_kind = pytest.mark.parametrize(
    "kind", ["bimodal", "class_conditional", "one_coin", "ordinal", "heavy_tailed"]
)


def vote_counts(crowd: Crowd) -> np.ndarray:
    counts = np.zeros((crowd.truth.size, crowd.class_prior.size))
    np.add.at(counts, (crowd.item, crowd.label), 1)
    return counts


def test_noise_law_has_the_modes_and_widths_of_the_paper():
    law = bimodal_noise()
    assert law.sum() == pytest.approx(1)
    # Densities at the indices, written out: 1/2 N(3, 1) and 1/2 N(7, 0.5).
    assert law[7] / law[3] == pytest.approx(2.0, abs=0.01)
    assert law[8] / law[7] == pytest.approx(np.exp(-2), abs=0.01)
    assert law[2] / law[3] == pytest.approx(np.exp(-0.5), abs=0.01)


def test_bimodal_labels_are_wrong_as_often_as_the_paper_says(paper_crowd):
    wrong = paper_crowd.label != paper_crowd.truth[paper_crowd.item]
    assert wrong.mean() == pytest.approx(0.54, abs=0.01)


def test_majority_vote_errs_on_a_quarter_of_the_bimodal_crowd(paper_crowd):
    counts = vote_counts(paper_crowd)
    winners = counts == counts.max(axis=1, keepdims=True)
    # The chance that a random tie-break finds the truth, exactly.
    chance = winners[np.arange(PENDIGITS_ITEMS), paper_crowd.truth] / winners.sum(axis=1)
    assert 1 - chance.mean() == pytest.approx(0.25, abs=0.01)


def test_oracle_errs_on_nine_per_cent_of_the_bimodal_crowd(paper_crowd):
    assert oracle_error(paper_crowd) == pytest.approx(0.09, abs=0.005)


def test_missing_rate_is_the_share_of_labels_lost(paper_crowd):
    assert paper_crowd.label.size / (10 * PENDIGITS_ITEMS) == pytest.approx(0.9, abs=0.005)


def test_an_item_that_lost_all_its_labels_gets_one_back():
    crowd = bimodal_crowd(balanced_truth(500), missing_rate=1.0, seed=3)
    assert np.array_equal(crowd.item, np.arange(500))
    assert np.unique(crowd.worker).size == 10  # from anyone, not from a favourite


def test_spread_makes_workers_differ_and_keeps_their_mean():
    crowd = bimodal_crowd(balanced_truth(20_000), spread=0.3, missing_rate=0.0, seed=4)
    wrong = crowd.label != crowd.truth[crowd.item]
    rates = np.bincount(crowd.worker, wrong) / np.bincount(crowd.worker)
    hit = bimodal_noise().mean()  # balanced truth: noise is right one time in ten
    assert rates.min() == pytest.approx(0.3 * (1 - hit), abs=0.02)
    assert rates.max() == pytest.approx(0.9 * (1 - hit), abs=0.02)
    assert rates.mean() == pytest.approx(0.6 * (1 - hit), abs=0.01)


def test_a_number_and_a_list_of_that_number_draw_the_same_crowd():
    truth = balanced_truth(300, seed=1)
    one, same = (bimodal_crowd(truth, 6, rate, seed=2) for rate in (0.4, [0.4] * 6))
    for first, second in zip(one, same, strict=True):
        assert np.array_equal(first, second)


def test_every_worker_can_have_a_noise_rate_of_their_own():
    rates = np.array([0.1, 0.9, 0.5])
    crowd = bimodal_crowd(balanced_truth(20_000), 3, rates, missing_rate=0.0, seed=4)
    wrong = crowd.label != crowd.truth[crowd.item]
    found = np.bincount(crowd.worker, wrong) / np.bincount(crowd.worker)
    assert found == pytest.approx(0.9 * rates, abs=0.015)


@pytest.mark.parametrize("n_items", [20_000, 20_001])
def test_in_halves_even_workers_miss_labels_early_and_odd_ones_late(n_items):
    crowd = bimodal_crowd(balanced_truth(n_items), 7, missing_pattern="halves", seed=5)
    there = np.zeros((n_items, 7), bool)
    there[crowd.item, crowd.worker] = True
    first = np.arange(n_items) * 2 < n_items
    assert there[~first][:, ::2].all() and there[first][:, 1::2].all()
    # Twice the rate in a half is the rate over all.
    assert there[first][:, ::2].mean(axis=0) == pytest.approx(0.8, abs=0.02)
    assert there[~first][:, 1::2].mean(axis=0) == pytest.approx(0.8, abs=0.02)
    assert there.mean() == pytest.approx(0.9, abs=0.005)


def test_even_all_labels_of_a_half_can_be_missing():
    crowd = bimodal_crowd(balanced_truth(40), 1, missing_rate=0.5, missing_pattern="halves")
    assert np.array_equal(crowd.item, np.arange(40))  # nobody else is there: all came back


@pytest.mark.parametrize("n_workers", [1, 6, 8, 10, 13])
@pytest.mark.parametrize("mean", [0.0, 0.05, 0.4, 0.6, 0.8, 0.97, 1.0])
def test_published_noise_rates_have_the_mean_asked_for_and_stay_probabilities(n_workers, mean):
    rates = published_noise_rates(n_workers, mean)
    assert rates.shape == (n_workers,) and rates.mean() == pytest.approx(mean)
    assert rates.min() >= 0 and rates.max() <= 1
    bimodal_crowd([3, 7], n_workers, rates)


def test_published_noise_rates_are_moved_as_they_are_and_shrunk_only_where_they_must_be():
    usual = published_noise_rates()
    # Worker 4 was wrong on 36.5 %, worker 7 on 70.4 %. Noise is wrong nine times in ten, and the
    # rates are shrunk by 0.9.
    assert usual[7] - usual[4] == pytest.approx((0.704 - 0.365) / 0.9 * 0.9)
    for mean in (0.4, 0.8):
        assert published_noise_rates(mean=mean) - mean == pytest.approx(usual - 0.6)
    # Even workers are better, as in the file.
    assert usual[::2].mean() < usual[1::2].mean() - 0.1
    tight = published_noise_rates(mean=0.95)
    assert tight.max() == pytest.approx(1)
    assert np.corrcoef(tight, usual)[0, 1] == pytest.approx(1)
    # After ten they begin again.
    assert np.diff(published_noise_rates(13))[:2] == pytest.approx(np.diff(usual)[:2])
    assert published_noise_rates(13)[10:] == pytest.approx(published_noise_rates(13)[:3])


def test_the_published_crowd_is_harder_in_its_first_half():
    """The vote's error in the authors' log: 26.1 % up to the middle, 24.7 % in all."""
    crowd = bimodal_crowd(
        balanced_truth(50_000), 10, published_noise_rates(), missing_pattern="halves", seed=5
    )
    counts = vote_counts(crowd)
    winners = counts == counts.max(axis=1, keepdims=True)
    wrong = 1 - winners[np.arange(50_000), crowd.truth] / winners.sum(axis=1)
    # The error of 25,000 tasks has a standard error of 0.3 points.
    assert wrong[:25_000].mean() == pytest.approx(0.2614, abs=0.01)
    assert wrong.mean() == pytest.approx(0.2474, abs=0.01)
    assert wrong[:25_000].mean() > wrong[25_000:].mean() + 0.015


def test_without_noise_everyone_tells_the_truth():
    crowd = bimodal_crowd([1, 0, 1], n_workers=2, noise_rate=0, missing_rate=0, n_classes=2)
    assert np.array_equal(crowd.label, [1, 1, 0, 0, 1, 1])
    assert oracle_error(crowd) == 0


def test_balanced_truth_has_equal_classes_in_no_order():
    truth = balanced_truth(103, n_classes=10, seed=5)
    assert set(np.bincount(truth)) == {10, 11}
    assert not np.array_equal(truth, np.sort(truth))


@every_kind
def test_same_seed_gives_the_same_crowd_and_another_seed_another(kind):
    first, again, other = make_crowd(kind, 7), make_crowd(kind, 7), make_crowd(kind, 8)
    for one, two in zip(first, again, strict=True):
        assert np.array_equal(one, two)
    assert not np.array_equal(first.label, other.label)


@every_kind
def test_rows_of_every_matrix_and_the_prior_sum_to_one(kind):
    crowd = make_crowd(kind, 9)
    assert np.allclose(crowd.confusion.sum(axis=2), 1)
    assert crowd.confusion.min() >= 0
    assert crowd.class_prior.sum() == pytest.approx(1)


@every_kind
def test_labels_lie_in_whole_item_order_with_each_worker_once_an_item(kind):
    crowd = make_crowd(kind, 10)
    assert np.array_equal(np.unique(crowd.item), np.arange(crowd.truth.size))
    pair = crowd.item * len(crowd.confusion) + crowd.worker
    assert np.all(np.diff(pair) > 0)  # sorted by item, then worker, and no pair twice


@pytest.mark.parametrize("make", [class_conditional_crowd, one_coin_crowd, ordinal_crowd])
def test_label_frequencies_match_the_matrices(make):
    crowd = make(60_000, 5, 3, 5, class_prior=[0.5, 0.3, 0.2], seed=11)
    counts = np.zeros_like(crowd.confusion)
    np.add.at(counts, (crowd.worker, crowd.truth[crowd.item], crowd.label), 1)
    shown = counts / counts.sum(axis=2, keepdims=True)
    deviation = np.sqrt(crowd.confusion * (1 - crowd.confusion) / counts.sum(axis=2, keepdims=True))
    assert np.all(np.abs(shown - crowd.confusion) <= 4 * deviation)
    assert np.bincount(crowd.truth) / 60_000 == pytest.approx(crowd.class_prior, abs=0.01)


def test_skill_is_the_mean_of_the_diagonal():
    crowd = class_conditional_crowd(1, 4000, 4, 1, skill=(0.6, 0.8), concentration=5, seed=12)
    accuracy = np.diagonal(crowd.confusion, axis1=1, axis2=2)
    assert accuracy.mean() == pytest.approx(0.7, abs=0.01)
    close = class_conditional_crowd(1, 50, 4, 1, skill=(0.7, 0.7), concentration=1e6, seed=12)
    assert np.diagonal(close.confusion, axis1=1, axis2=2) == pytest.approx(0.7, abs=0.01)


def test_a_worker_with_one_coin_is_equally_right_about_each_class_and_errs_evenly():
    confusion = one_coin_crowd(1, 500, 4, 1, skill=(0.6, 0.8), seed=12).confusion
    right = confusion[:, 0, 0]
    assert right.min() == pytest.approx(0.6, abs=0.01)
    assert right.max() == pytest.approx(0.8, abs=0.01)
    assert np.allclose(confusion, confusion.transpose(0, 2, 1))
    assert np.allclose(confusion[:, 0, 1:], ((1 - right) / 3)[:, None])


def test_a_grade_is_the_less_likely_the_farther_it_is_from_the_truth():
    confusion = ordinal_crowd(1, 300, 7, 1, bias=0.0, seed=12).confusion
    off = np.abs(np.arange(7) - np.arange(7)[:, None])
    for c in range(7):
        by_distance = confusion[:, c, np.argsort(off[c], kind="stable")]
        assert np.all(np.diff(by_distance, axis=1) <= 1e-12)
    # Written out for a class in the middle: twice as far is four times the exponent.
    one, two = confusion[:, 3, 4] / confusion[:, 3, 3], confusion[:, 3, 5] / confusion[:, 3, 3]
    assert two == pytest.approx(one**4)


def test_bias_makes_some_graders_strict_and_some_lenient():
    middle = ordinal_crowd(1, 2000, 9, 1, bias=0.8, seed=12).confusion[:, 4]
    mean = middle @ np.arange(9) - 4
    assert mean.std() == pytest.approx(0.8, abs=0.05)
    assert mean.mean() == pytest.approx(0, abs=0.05)


def test_every_worker_labels_equally_often():
    crowd = class_conditional_crowd(20_000, 7, 2, 3, seed=13)
    assert np.bincount(crowd.worker) / 20_000 == pytest.approx(3 / 7, abs=0.02)
    full = class_conditional_crowd(10, 4, 2, 4, seed=13)
    assert np.array_equal(full.worker, np.tile(np.arange(4), 10))


def test_work_is_shared_by_the_law_of_zipf():
    crowd = one_coin_crowd(40_000, 2000, 2, 3, participation=1.0, seed=13)
    counts = np.sort(np.bincount(crowd.worker, minlength=2000))[::-1]
    weight = 1 / np.arange(1, 2001)
    # Among all but the busiest, who cannot label an item twice, counts fall as 1 / rank.
    share = counts[20:] / counts[20:].sum()
    assert share[:980].sum() == pytest.approx(weight[20:1000].sum() / weight[20:].sum(), abs=0.01)
    slope = np.polyfit(np.log(np.arange(21, 501)), np.log(counts[20:500]), 1)[0]
    assert slope == pytest.approx(-1, abs=0.05)
    assert counts[:200].sum() > 0.6 * counts.sum()  # a tenth of them does most of the work
    assert counts[0] < 40_000
    busiest = np.bincount(crowd.worker, minlength=2000).argmax()
    assert busiest != 0  # ranks are in random order


def test_oracle_is_bayes_rule_written_out():
    crowd = make_crowd("class_conditional", 14)
    for i in (0, 123, 399):
        probs = crowd.class_prior.copy()
        for row in np.flatnonzero(crowd.item == i):
            probs *= crowd.confusion[crowd.worker[row], :, crowd.label[row]]
        assert oracle_probs(crowd)[i] == pytest.approx(probs / probs.sum())
        assert oracle(crowd)[i] == np.argmax(probs)


def test_oracle_is_as_sure_as_it_is_right(paper_crowd):
    confidence = oracle_probs(paper_crowd).max(axis=1)
    assert 1 - confidence.mean() == pytest.approx(oracle_error(paper_crowd), abs=0.01)


def test_oracle_of_two_thousand_labels_on_one_item_does_not_underflow():
    crowd = class_conditional_crowd(2, 2000, 10, 2000, skill=(0.2, 0.3), seed=15)
    assert np.allclose(oracle_probs(crowd).sum(axis=1), 1)
    assert oracle_error(crowd) == 0


def test_oracle_takes_certain_workers_and_absent_classes():
    crowd = bimodal_crowd([3, 3, 4], n_workers=3, noise_rate=0.5, spread=0.5, seed=16)
    assert crowd.class_prior[0] == 0
    assert 0 in crowd.confusion  # the best worker never errs
    assert np.all(np.isfinite(oracle_probs(crowd)))


def test_chunks_hold_whole_items_and_lose_nothing():
    crowd = make_crowd("bimodal", 17)
    parts = list(chunks(crowd, 150))
    assert [np.unique(item).size for item, _, _ in parts] == [150, 150, 100]
    for column, joined in zip(crowd, map(np.concatenate, zip(*parts, strict=True)), strict=False):
        assert np.array_equal(column, joined)


@pytest.mark.parametrize(
    ("warmup_items", "sizes"), [(130, [130, 150, 120]), (400, [400]), (999, [400])]
)
def test_warmup_is_a_first_chunk_of_its_own(warmup_items, sizes):
    parts = chunks(make_crowd("bimodal", 17), 150, warmup_items=warmup_items)
    assert [np.unique(item).size for item, _, _ in parts] == sizes


def test_label_table_names_items_and_workers_in_sortable_text():
    crowd = make_crowd("class_conditional", 18)
    table = label_table(crowd)
    assert table.item_ids[:5] == ["t000"] * 4 + ["t001"]
    assert set(table.worker_ids) == {f"w{k:02d}" for k in range(12)}
    assert table.labels == crowd.label.tolist()
    numbered = label_table(crowd, text_ids=False)
    assert numbered.item_ids == crowd.item.tolist()
    assert all(type(k) is int for k in numbered.worker_ids)


def test_truth_by_item_has_the_ids_of_the_table():
    crowd = make_crowd("one_coin", 19)
    named, numbered = truth_by_item(crowd), truth_by_item(crowd, text_ids=False)
    assert set(named) == set(label_table(crowd).item_ids)
    assert list(named.values()) == list(numbered.values()) == crowd.truth.tolist()
    assert list(numbered) == list(range(400))


def test_a_crowd_without_roles_is_honest_and_does_not_change():
    crowd = make_crowd("ordinal", 20)
    assert crowd.cast is None
    assert crowd.role.tolist() == ["honest"] * 12
    assert np.array_equal(confusion_at(crowd, 399), crowd.confusion)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: bimodal_crowd([0], noise_rate=1.4), "`noise_rate` .* from 0 to 1. Got 1.4"),
        (lambda: bimodal_crowd([0], missing_rate=-1), "`missing_rate` .* Got -1"),
        (lambda: bimodal_crowd([0], 2, [0.5] * 3), "`noise_rate` .* each of the 2 workers. Got"),
        (lambda: bimodal_crowd([0], 2, [0.5, 1.5]), r"`noise_rate` .* Got \[0.5, 1.5\]"),
        (lambda: bimodal_crowd([0], 2, [0.5, np.nan]), "`noise_rate` .* from 0 to 1, or one"),
        (lambda: bimodal_crowd([0], 2, [0.5, 0.5], spread=0.1), "`spread` .* 0 .* Got 0.1"),
        (lambda: bimodal_crowd([0], missing_pattern="thirds"), "'halves'.* Got 'thirds'"),
        (
            lambda: bimodal_crowd([0], missing_rate=0.6, missing_pattern="halves"),
            "`missing_rate` .* at most 0.5 .* Got 0.6",
        ),
        (lambda: published_noise_rates(0), "`n_workers` .* Got 0"),
        (lambda: published_noise_rates(mean=1.2), "`mean` .* from 0 to 1. Got 1.2"),
        (lambda: bimodal_crowd([0], spread=0.5), "`spread` .* Got 0.5"),
        (lambda: bimodal_crowd([0, 10]), "`truth` .* from 0 to 9"),
        (lambda: bimodal_crowd([]), "`truth` .* at least one"),
        (lambda: bimodal_crowd([0.5]), "`truth` .* whole number"),
        (lambda: bimodal_crowd([0], n_workers=0), "`n_workers` .* ≥ 1. Got 0"),
        (lambda: class_conditional_crowd(5, 2, 2, 3), "`labels_per_item` .* at most"),
        (lambda: class_conditional_crowd(5, 2, 1, 1), "`n_classes` .* ≥ 2"),
        (lambda: class_conditional_crowd(5, 2, 2, 1, skill=(0.9, 0.1)), "`skill` .* lower first"),
        (lambda: class_conditional_crowd(5, 2, 2, 1, class_prior=[1, 1]), "`class_prior` .* sum 1"),
        (lambda: class_conditional_crowd(5, 2, 2, 1, concentration=0), "`concentration` .* ≥ 1"),
        (lambda: one_coin_crowd(5, 2, 2, 1, skill=(0, 2)), "`skill` of one_coin_crowd .* to 1"),
        (lambda: one_coin_crowd(5, 2, 2, 1, participation=-1), "`participation` .* ≥ 0. Got -1"),
        (lambda: ordinal_crowd(5, 2, 2, 1, width=(0, 1)), "`width` .* > 0, the lower first"),
        (lambda: ordinal_crowd(5, 2, 2, 1, bias=-1), "`bias` of ordinal_crowd .* ≥ 0. Got -1"),
        (lambda: list(chunks(make_crowd("bimodal", 1), 0)), "`chunk_items` .* ≥ 1. Got 0"),
    ],
)
def test_a_setting_out_of_range_is_refused_with_a_sentence(make, sentence):
    with pytest.raises(StateError, match=sentence):
        make()
