"""How long completions become, judged by some that were cut off."""

from __future__ import annotations

import numpy as np
import pytest

from operators.estimate.lengths import Lengths


def test_where_all_have_ended_it_is_their_mean():
    lengths = Lengths([3, 5, 5, 11], [True] * 4, most=100)
    assert lengths.mean() == pytest.approx(6)
    drawn = lengths.draw(4000, np.random.default_rng(1))
    assert set(drawn.tolist()) == {3, 5, 11}
    assert drawn.mean() == pytest.approx(6, rel=0.05)


def test_one_that_was_cut_off_says_that_it_is_longer_and_no_more():
    ended = Lengths([10, 10, 10], [True] * 3, most=1000).mean()
    assert ended == pytest.approx(10)
    assert Lengths([10, 10, 10, 9], [True, True, True, False], most=1000).mean() == pytest.approx(ended)
    assert Lengths([10, 10, 10, 11], [True, True, True, False], most=1000).mean() > ended + 0.25


def test_all_as_long_as_they_may_be_are_exactly_that():
    lengths = Lengths([64] * 8, [False] * 8, most=64)
    assert lengths.mean() == 64
    assert set(lengths.replicates(np.random.default_rng(1)).tolist()) == {64.0}


def test_where_none_ended_all_is_left_open_up_to_the_most():
    found = Lengths([5] * 4, [False] * 4, most=500).replicates(np.random.default_rng(1))
    low, high = np.quantile(found, [0.05, 0.95])
    assert low < 100
    assert 250 < high <= 500


@pytest.mark.parametrize(("typical", "watched"), [(30, 400), (80, 60), (80, 30), (300, 60)])
def test_the_range_holds_in_eight_of_ten_however_early_they_are_cut_off(typical, watched):
    random, held, trials = np.random.default_rng(typical + watched), 0, 40
    for _ in range(trials):
        all_of_them = np.minimum(random.geometric(1 / typical, 4000), 256)
        some = all_of_them[:32]
        lengths = Lengths(np.minimum(some, watched).tolist(), ((some <= watched) & (some < 256)).tolist(), most=256)
        low, high = np.quantile(lengths.replicates(random), [0.05, 0.95])
        held += bool(low <= all_of_them.mean() <= high)
    assert held >= 0.8 * trials
