"""Wilson's interval against its coverage by enumeration, and McNemar's test against the binomial distribution.

Reference values are those of statsmodels 0.15.0; test_against_packages.py in tests/pipeline/labels compares many.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.api.intervals import Interval, mcnemar, wilson

# proportion_confint(successes, rows, 0.05, "wilson")
WILSON = {
    (0, 30): (0.0, 0.1135133931739688),
    (5, 30): (0.07336542371848548, 0.33564350506416035),
    (29, 30): (0.8332960900859081, 0.9940914096183875),
    (50, 100): (0.4038315303659956, 0.5961684696340044),
}


def covered(rows: int, share: float) -> float:
    """The probability that Wilson's interval of `rows` draws holds their true share: a sum over all outcomes."""
    inside = (k for k in range(rows + 1) if (found := wilson(k, rows)).low <= share <= found.high)
    return sum(math.comb(rows, k) * share**k * (1 - share) ** (rows - k) for k in inside)


@pytest.mark.parametrize(("successes", "rows"), WILSON)
def test_the_interval_is_that_of_statsmodels(successes, rows):
    found = wilson(successes, rows)
    assert (found.low, found.high) == pytest.approx(WILSON[successes, rows], abs=1e-12)


@pytest.mark.parametrize(("rows", "share"), [(30, 0.5), (100, 0.02), (100, 0.5)])
def test_the_interval_covers_what_it_says(rows, share):
    assert 0.935 <= covered(rows, share) <= 0.965


def test_thirty_rows_at_two_percent_cover_more_for_no_interval_can_cover_95_percent():
    assert covered(30, 0.02) == pytest.approx(0.978, abs=1e-3)
    without_two = sum(math.comb(30, k) * 0.02**k * 0.98 ** (30 - k) for k in range(2))
    assert without_two == pytest.approx(0.879, abs=1e-3)


@given(st.floats(0, 1), st.floats(1e-6, 1e9), st.floats(0.5, 0.999))
def test_limits_are_shares_around_the_estimate(share, rows, confidence):
    found = wilson(share * rows, rows, confidence)
    assert found.estimate is not None
    assert 0 <= found.low <= found.estimate <= found.high <= 1


def test_without_rows_nothing_is_known():
    assert wilson(0, 0) == Interval(None, 0.0, 1.0)


@given(st.integers(0, 300), st.integers(0, 300))
def test_the_p_value_is_twice_the_tail_of_the_binomial_distribution(only_a, only_b):
    n, k = only_a + only_b, min(only_a, only_b)
    exact = min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n)
    assert mcnemar(only_a, only_b) == pytest.approx(exact, rel=1e-9) == mcnemar(only_b, only_a)


def test_the_p_value_of_many_rows_is_that_of_the_normal_distribution():
    for n, z in ((10**6, 3), (10**9, 2)):
        k = int((n - z * math.sqrt(n)) / 2)
        with_continuity = (abs(n - 2 * k) - 1) / math.sqrt(n)
        assert mcnemar(k, n - k) == pytest.approx(math.erfc(with_continuity / math.sqrt(2)), rel=1e-4)
    assert mcnemar(0, 10**9) == 0.0
