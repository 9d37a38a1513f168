"""How long completions become, judged by some that were cut off, and what some rows say of all."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import FinishReason, Sequence
from operators.estimate.generation import completion_lengths
from operators.estimate.trial import mean_of
from pipeline.api.forecast import Range
from tests.sets import often_cases


def mean(tokens: Iterable[int], ended: Iterable[bool], most: int, *, whole: bool = False, samples: int = 1) -> Range:
    """Judge rows with so many tokens, `samples` of each prompt."""
    rows = []
    for i, (count, done) in enumerate(zip(tokens, ended, strict=True)):
        row = Sequence(i, np.array([i // samples], np.int32), SamplingParams(), seed=i, max_tokens=most)
        row.tokens = [1] * int(count)
        row.finish_reason = FinishReason.STOP if done else None
        rows.append(row)
    return completion_lengths(rows, whole=whole, fixed=False)[0]


def test_where_all_have_ended_it_is_their_mean():
    assert mean([3, 5, 5, 11], [True] * 4, most=100, whole=True) == Range.exact(6)
    some = mean([3, 5, 5, 11], [True] * 4, most=100)
    assert some.low < some.likely == 6 < some.high


def test_one_that_was_cut_off_is_between_what_it_has_and_the_most():
    found = mean([10, 10, 10, 10], [True, True, True, False], most=50, whole=True)
    assert (found.low, found.high) == (10, 20)
    assert 10 < found.likely < 20


def test_all_as_long_as_they_may_be_are_exactly_that():
    assert mean([64] * 8, [True] * 8, most=64) == Range.exact(64)


def test_where_none_ended_all_is_left_open_up_to_the_most():
    found = mean([5] * 4, [False] * 4, most=500)
    assert (found.low, found.high) == (5, 500)


@pytest.mark.parametrize(("typical", "watched"), often_cases([(30, 400), (80, 60), (80, 30), (80, 10), (300, 60)], 10))
def test_the_range_holds_in_eight_of_ten_however_early_they_are_cut_off(typical, watched):
    random, held, trials = np.random.default_rng(typical + watched), 0, 40
    for _ in range(trials):
        all_of_them = np.minimum(random.geometric(1 / typical, 4000), 256)
        some = all_of_them[:32]
        found = mean(np.minimum(some, watched), some <= watched, most=256)
        held += found.low <= all_of_them.mean() <= found.high
    assert held >= 0.8 * trials


def test_what_is_likely_is_right_where_ends_come_at_a_constant_rate():
    random = np.random.default_rng(0)
    all_of_them = np.minimum(random.geometric(1 / 80, 4000), 256)
    found = mean(np.minimum(all_of_them, 40), all_of_them <= 40, most=256)
    assert found.likely == pytest.approx(all_of_them.mean(), rel=0.05)


def test_completions_of_one_prompt_tell_less_than_those_of_as_many_prompts():
    tokens, ended = np.repeat([10, 90] * 8, 4), [True] * 64
    alike, apart = mean(tokens, ended, most=100, samples=4), mean(tokens, ended, most=100)
    assert alike.high - alike.low > 1.5 * (apart.high - apart.low)


def test_the_mean_of_some_rows_is_known_by_its_standard_error():
    values = np.random.default_rng(1).normal(50, 10, 400)
    found = mean_of(values, whole=False)
    assert found.high - found.likely == pytest.approx(1.645 * values.std() / 20)
    assert mean_of(values, whole=True) == Range.exact(values.mean())
    assert mean_of([], whole=False) == Range.exact(0.0)
