"""The choice of how many tokens a call brings, with costs that are given instead of measured."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from operators.engine.strategies.speculative.pace import TRIALS_SHARE, Bid, Pace


def play(
    rows: int, right: float, seconds: Callable[[int], float], steps: int = 4000, most: int = 8
) -> tuple[dict[int, int], float]:
    """Return how often each number of tokens was chosen in the second half, and the gain over one token a step."""
    pace, random, chosen = Pace(), np.random.default_rng(0), dict[int, int]()
    time, tokens = 0.0, 0
    for step in range(steps):
        width = 1
        if not pace.rests(rows, most):
            rate = [pace.rate(3, None) for _ in range(rows)]
            width = pace.choose([Bid(1, most - 1, one) for one in rate], most, 0.0)
        counted = 0
        for _ in range(rows):
            hits = int((random.random(most - 1) < right).cumprod().sum())
            pace.learn(3, None, min(hits, max(width - 1, 1)), wrong=hits < max(width - 1, 1))
            counted += 1 + min(hits, width - 1)
        noise = 20.0 if random.random() < 0.1 else 1.0  # other work on the machine
        pace.note(rows, width, counted, noise * seconds(rows * width))
        time, tokens = time + seconds(rows * width), tokens + counted
        if step >= steps // 2:
            chosen[width] = chosen.get(width, 0) + 1
    return chosen, (tokens / time) / (rows / seconds(rows))


@pytest.mark.parametrize(
    ("rows", "right", "seconds", "likely"),
    [
        (1, 0.9, lambda n: 1 + 0.05 * n, {8}),
        (1, 0.6, lambda n: 1 + 0.2 * n, {2, 3, 4}),
        (1, 0.1, lambda n: 1 + 0.3 * n, {1}),
        (16, 0.9, lambda n: 0.1 * n, {1}),
        (16, 0.5, lambda n: 1 + 0.1 * n, {1}),
        (16, 0.9, lambda n: 5 + 0.02 * n, {8}),
    ],
)
def test_most_tokens_a_second_are_chosen(rows, right, seconds, likely):
    chosen, gain = play(rows, right, seconds)
    assert max(chosen, key=lambda width: chosen[width]) in likely
    assert gain > 1.0 - 2 * TRIALS_SHARE


def test_costs_that_change_are_noticed():
    pace, chosen = Pace(), []
    for step in range(10_000):
        width = 1 if pace.rests(1, 4) else pace.choose([Bid(1, 3, 0.9)], 4, 0.0)
        pace.note(1, width, width, 4.0 if width > 1 and step < 4000 else 1.0)
        chosen.append(width)
    assert chosen[3000:4000].count(1) > 950
    assert chosen[9000:].count(4) > 950


def test_certain_tokens_are_worth_a_larger_call():
    assert Bid(3, 0, 0.0).gain(4) == 3
    assert Bid(1, 2, 0.5).gain(4) == 1.75
    assert Bid(2, 5, 1.0).gain(3) == 3


def test_nothing_is_drafted_for_a_number_of_rows_whose_usual_step_is_not_known():
    """What 16 rows cost says nothing of 4: a call of 8 tokens of each would look cheap."""
    pace = Pace()
    for tokens in (2, 1):
        for _ in range(9):
            pace.note(16, tokens, 20, 0.4 + 0.6 * tokens)
    assert pace.rests(4, 8)
    assert not pace.rests(16, 8)
