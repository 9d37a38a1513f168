"""How long completions become, judged by some that were cut off."""

from __future__ import annotations

import numpy as np
import pytest

from operators.estimate.ranges import draw, mean_length, survival


def mean(tokens, ended, most):
    return survival(np.array(tokens), np.array(ended), most).sum()


def test_where_all_have_ended_it_is_their_mean():
    share = survival(np.array([3, 5, 5, 11]), np.array([True] * 4), most=100)
    assert len(share) == 100
    assert share.sum() == pytest.approx(6)
    drawn = draw(share, 4000)
    assert set(drawn.tolist()) == {3, 5, 11}
    assert drawn.mean() == pytest.approx(6, rel=0.05)


def test_one_that_was_cut_off_says_that_it_is_longer_and_no_more():
    ended = mean([10, 10, 10], [True] * 3, most=1000)
    assert ended == pytest.approx(10)
    assert mean([10, 10, 10, 9], [True, True, True, False], most=1000) == pytest.approx(ended)
    assert mean([10, 10, 10, 11], [True, True, True, False], most=1000) > ended + 0.25


def test_all_as_long_as_they_may_be_are_exactly_that():
    found = mean_length(np.array([64] * 8), np.array([True] * 8), range(8), most=64)
    assert (found.low, found.likely, found.high) == (64, 64, 64)


def test_where_none_ended_all_is_left_open_up_to_the_most():
    found = mean_length(np.array([5] * 4), np.array([False] * 4), range(4), most=500)
    assert found.low < 100
    assert 250 < found.high <= 500


@pytest.mark.parametrize(("typical", "watched"), [(30, 400), (80, 60), (80, 30), (80, 10), (300, 60)])
def test_the_range_holds_in_eight_of_ten_however_early_they_are_cut_off(typical, watched):
    random, held, trials = np.random.default_rng(typical + watched), 0, 40
    for _ in range(trials):
        all_of_them = np.minimum(random.geometric(1 / typical, 4000), 256)
        some = all_of_them[:32]
        found = mean_length(np.minimum(some, watched), some <= watched, range(32), most=256)
        held += found.low <= all_of_them.mean() <= found.high
    assert held >= 0.8 * trials


def test_completions_of_one_prompt_tell_less_than_those_of_as_many_prompts():
    tokens, ended = np.repeat([10, 90] * 8, 4), np.array([True] * 64)
    alike, apart = (mean_length(tokens, ended, p, most=100) for p in (np.repeat(range(16), 4).tolist(), range(64)))
    assert alike.high - alike.low > 1.5 * (apart.high - apart.low)
