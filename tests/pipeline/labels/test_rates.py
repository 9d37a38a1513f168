"""Rates of a stratified sample: one stratum is Wilson's interval, all rows labelled the truth, and none is NaN.

How often intervals hold the truth over many draws is in test_coverage.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.api.errors import ConfigError
from pipeline.api.intervals import Interval, wilson
from pipeline.labels.agreement import reliability
from pipeline.labels.rates import (
    Booleans,
    Floats,
    Sampled,
    corrected_rate,
    labels_needed,
    pooled,
    rate,
    recall,
    threshold,
)


def whole(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


Labelled = tuple[Sampled, Booleans, Floats]


@st.composite
def labelled(draw: Callable[..., list[tuple[int, bool, float]]]) -> Labelled:
    """A sample of up to four strata, what people say of its rows, and scores."""
    row = st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 1))
    stratum, positive, score = zip(*draw(st.lists(row, min_size=1, max_size=30)), strict=True)
    counts = np.bincount(np.array(stratum), minlength=4)
    rows = counts * np.array(draw(st.lists(st.integers(1, 100), min_size=4, max_size=4)))
    return Sampled(np.array(stratum), rows), np.array(positive), np.array(score)


def intervals(sample: Sampled, positive: Booleans, score: Floats) -> list[Interval]:
    high = score >= 0.5
    means = np.array([score[sample.stratum == h].mean() if (sample.stratum == h).any() else math.nan for h in range(4)])
    found = [rate(sample, positive), rate(sample, positive, high), recall(sample, positive, high)]
    by_verdict = Sampled(high.astype(np.int64), np.bincount(high, minlength=2) * 7)
    found += [recall(by_verdict, positive, high), corrected_rate(sample, positive, score, means).interval]
    kept = threshold(sample, positive, score, 0.6)
    found += [band.accuracy for band in reliability(sample, positive, score)]
    return found + ([kept.precision] if kept else [])


@settings(deadline=None, max_examples=30)
@given(labelled(), st.randoms())
def test_limits_are_shares_around_the_estimate_and_no_order_of_labels_changes_them(given_labels, random):
    sample, positive, score = given_labels
    order = random.sample(range(len(score)), len(score))
    turned = Sampled(sample.stratum[order], sample.rows)
    for found, again in zip(
        intervals(sample, positive, score), intervals(turned, positive[order], score[order]), strict=True
    ):
        assert 0 <= found.low <= found.high <= 1
        assert found.estimate is None or found.low <= found.estimate <= found.high
        for value, other in zip(found, again, strict=True):
            assert value == other or value == pytest.approx(other, abs=1e-9)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 60), st.data())
def test_one_stratum_is_wilsons_interval(labels, data):
    hits, found = data.draw(st.integers(0, labels)), data.draw(st.integers(1, labels))
    hit, among = np.arange(labels) < hits, np.arange(labels)[::-1] < found
    sample = Sampled(np.zeros(labels, np.int64), whole(1000))
    assert rate(sample, hit) == pytest.approx(wilson(hits, labels), abs=1e-9)
    assert rate(sample, hit, among) == pytest.approx(wilson(int((hit & among).sum()), found), abs=1e-9)
    assert recall(sample, among, hit) == pytest.approx(wilson(int((hit & among).sum()), found), abs=1e-9)


def test_strata_count_by_their_rows():
    """Of 900 rows with `no` a tenth is positive, of 100 with `yes` all: 190 of 1,000, 100 of them found."""
    verdict = np.arange(20) < 10
    positive = verdict | (np.arange(20) == 10)
    sample = Sampled((~verdict).astype(np.int64), whole(100, 900))
    assert rate(sample, positive).estimate == pytest.approx(0.19)
    assert recall(sample, positive, verdict).estimate == pytest.approx(100 / 190)
    assert rate(sample, positive, verdict) == pytest.approx(wilson(10, 10), abs=1e-9)
    assert sample.weights.tolist() == [10.0] * 10 + [90.0] * 10


def test_a_stratum_without_a_hit_may_have_some():
    """Twenty rows with `no`, none positive: up to a sixth of their stratum may be, so recall is not sure to be 1."""
    verdict = np.arange(40) < 20
    positive = np.arange(40) < 10
    found = recall(Sampled((~verdict).astype(np.int64), whole(100, 900)), positive, verdict)
    assert found.estimate == found.high == 1.0
    assert found.low < 0.4


def test_where_all_rows_have_a_label_the_corrected_rate_is_the_truth():
    positive, score = np.arange(12) % 3 == 0, np.linspace(0, 1, 12)
    sample = Sampled(np.arange(12) % 2, whole(6, 6))
    found = corrected_rate(sample, positive, score, np.array([score[::2].mean(), score[1::2].mean()]))
    assert found.interval == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert (found.labels, found.worth) == (12, 12.0)


def test_scores_that_know_the_labels_narrow_the_interval_and_others_do_not_widen_it_much():
    positive, flat = np.arange(100) % 2 == 0, np.full(100, 0.7)
    sample = Sampled(np.zeros(100, np.int64), whole(5000))
    known = corrected_rate(sample, positive, np.where(positive, 1.0, 0.0), np.array([0.4]))
    blind = corrected_rate(sample, positive, flat, np.array([0.7]))
    assert known.interval.estimate == pytest.approx(0.5 - 0.1 * 49 / (49 + 5))  # the labels say 0.5, the scores 0.4
    assert known.tuned == pytest.approx(49 / 54)
    assert known.worth == 5000.0
    assert blind.tuned == 0.0
    assert blind.worth == pytest.approx(100 / (1 - 100 / 5000))
    assert blind.raw == 0.7


def test_the_threshold_is_the_lowest_that_is_sure():
    score = np.arange(400) / 400
    positive = score >= 0.5
    sample = Sampled(np.zeros(400, np.int64), whole(4000))
    found = threshold(sample, positive, score, 0.9)
    assert found is not None
    assert found.sure
    assert 0.46 < found.at < 0.5
    assert found.precision.low >= 0.9
    assert found.kept == pytest.approx(1 - found.at)
    few = threshold(Sampled(np.zeros(8, np.int64), whole(100)), np.arange(8) > 3, np.arange(8.0), 0.9)
    assert few is not None
    assert (few.at, few.sure) == (4.0, False)
    assert threshold(sample, np.zeros(400, bool), score, 0.9) is None


def needed(hit: Booleans, rows: NDArray[np.int64], width: float, score: Floats | None = None) -> int:
    sample = Sampled(np.arange(len(hit)) % len(rows), rows)
    known = np.zeros(len(hit)) if score is None else score
    found = corrected_rate(sample, hit, known, sample.means(known))
    return labels_needed(sample, hit, found, width)


def test_so_many_more_labels_make_the_interval_so_narrow():
    hit, rows = np.arange(30) < 15, 400
    assert needed(hit, whole(rows), 0.9) == 0
    more = needed(hit, whole(rows), 0.1)
    sizes = [n / (1 - n / rows) for n in (30 + more, 29 + more)]  # a run of 400 rows has no more than these
    widths = [found.high - found.low for found in (wilson(n / 2, n) for n in sizes)]
    assert widths[0] <= 0.1 < widths[1]
    assert needed(hit, whole(rows), 0.1, np.where(hit, 0.8, 0.0)) < more  # scores that know the labels save some


def test_no_more_labels_are_needed_than_rows_have_none():
    hit = np.arange(30) % 3 == 0
    assert needed(hit, whole(30), 1e-9) == 0
    assert needed(hit, whole(20, 70), 1e-9) == 60
    half = np.arange(30) % 4 < 2  # in each of two strata, of which one has no more rows to label
    assert needed(half, whole(15, 2000), 0.2) == pytest.approx(needed(half[1::2], whole(2000), 0.2), abs=5)


def test_bands_have_as_many_labels_and_equal_scores_together():
    sure = np.array([0.5] * 25 + [0.9] * 5 + [0.95] * 20)
    bands = reliability(Sampled(np.zeros(50, np.int64), whole(500)), sure > 0.6, sure)
    assert [(b.low, b.high, b.labels) for b in bands] == [(0.5, 0.9, 30), (0.95, 0.95, 20)]
    assert bands[0].mean_score == pytest.approx((25 * 0.5 + 5 * 0.9) / 30)
    assert [b.accuracy.estimate for b in bands] == [pytest.approx(5 / 30), 1.0]
    unsure = Sampled(np.zeros(60, np.int64), whole(500))
    right = np.append(sure > 0.6, np.zeros(10, np.bool_))
    some = reliability(unsure, right, np.append(sure, np.full(10, math.nan)))
    assert [(b[:3], b.accuracy) for b in some] == [(b[:3], b.accuracy) for b in bands]  # rows without one are in none


def test_strata_of_few_labels_are_pooled_with_the_nearest_of_their_verdict():
    into = pooled(whole(0, 2, 5), whole(10, 10, 10, 0, 10, 10), whole(0, 0, 0, 0, 1, 1))
    assert into.tolist() == [2, 2, 2, 3, 5, 5]  # one label tells no spread, either
    assert pooled(whole(0, 1, 1, 2), whole(1, 9, 9), whole(0, 0, 0)).tolist() == [0, 1, 1]  # all of the first have one
    with pytest.raises(ConfigError, match="no row of stratum 1, nor another with its verdict, has a label"):
        pooled(whole(0), whole(5, 5), whole(0, 1))


@pytest.mark.parametrize(
    ("stratum", "rows", "message"),
    [
        ((), (10,), "there are no labels"),
        ((0,), (10, 5), r"strata \[1\] have rows but no label: label a row of each, or pool them"),
        ((0, 0), (1,), r"strata \[0\] have more labels than rows: give one label a row"),
    ],
)
def test_samples_that_stand_for_nothing_are_refused(stratum, rows, message):
    with pytest.raises(ConfigError, match=message):
        Sampled(whole(*stratum), whole(*rows))


def test_scores_that_are_no_probabilities_are_refused():
    sample, one = Sampled(whole(0, 0), whole(10)), np.array([True, False])
    for score in ([0.5, math.nan], [0.5, 2.0]):
        for call in (
            lambda s: corrected_rate(sample, one, s, np.array([0.5])),
            lambda s: corrected_rate(sample, one, np.array([0.1, 0.2]), s[1:]),
        ):
            with pytest.raises(ConfigError, match="is no number from 0 to 1"):
                call(np.array(score))
    with pytest.raises(ConfigError, match="is no number from 0 to 1"):
        reliability(sample, one, np.array([0.5, 2.0]))
    with pytest.raises(ConfigError, match="the score of a labelled row is no number"):
        threshold(sample, one, np.array([0.5, math.nan]), 0.9)
    with pytest.raises(ConfigError, match="the width of an interval is above 0, not 0"):
        needed(one, whole(10), 0)
