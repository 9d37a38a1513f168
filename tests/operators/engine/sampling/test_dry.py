"""DRY on examples that can be followed by hand; tests/llama compares it with llama.cpp on random ones."""

from __future__ import annotations

import numpy as np
import pytest

from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.penalties import Breakers, Dry
from operators.engine.sequence import Sequence

A, B, C, D, X, Y = range(6)


def penalties(tokens: list[int], breakers: Breakers | None = None, last_n: int | None = None) -> dict[int, float]:
    step = Dry(1.0, 2.0, 2, last_n, breakers or Breakers())
    change = step.change(Sequence(0, np.array(tokens, np.int32), SamplingParams(), 0, 9))
    if change is None:
        return {}
    penalised = change.apply(np.zeros(len(change.ids), np.float32), slice(None))
    return dict(zip(change.ids.tolist(), (-penalised).tolist(), strict=True))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([A, B, C, A, B], {C: 1.0}),  # from the first token on
        ([X, A, B, C, Y, A, B], {C: 1.0}),
        ([A, B, C, D, X, A, B, C], {D: 2.0}),  # three repeated: base ** (3 - 2)
        ([A, B, C, Y, B, D, A, B], {C: 1.0}),  # B alone is too short to count
        ([X, A, B, C, Y, A, B, D, X, A, B], {C: 2.0, D: 1.0}),  # each by the longest that it would prolong
        ([A, A, A, A], {A: 2.0}),
        ([A, B], {}),
        ([A, B, C, D], {}),
    ],
)
def test_what_would_prolong_a_repetition_is_penalised_by_its_length(tokens, expected):
    assert penalties(tokens) == expected


def test_only_the_window_is_searched():
    assert penalties([A, B, C, Y, A, B], last_n=6) == {C: 1.0}
    assert penalties([A, B, C, Y, A, B], last_n=5) == {}


def test_no_repetition_reaches_over_a_breaker():
    tokens = [X, A, B, C, Y, X, A, B]
    assert penalties(tokens) == {C: 2.0}
    assert penalties(tokens, Breakers([(X,)])) == {C: 1.0}
    assert penalties(tokens, Breakers([(A,)])) == {}
    assert penalties(tokens, Breakers([(C,)])) == {}  # what breaks by itself is never penalised
    assert penalties(tokens, Breakers([(X, A)])) == {}
    assert penalties(tokens, Breakers([(X, Y)])) == {C: 2.0}  # not what stands there


def test_of_breakers_that_begin_alike_the_longest_counts():
    tokens = np.array([Y, X, A, B], np.int32)
    assert Breakers([(X,)]).limit(tokens) == 2
    assert Breakers([(X,), (X, A)]).limit(tokens) == 1
    assert Breakers([(D,)]).limit(tokens) == 4


def test_breakers_are_told_apart_by_their_content():
    assert repr(Breakers([(1, 2), (3,)])) == repr(Breakers([(3,), (1, 2), (3,)]))
    assert repr(Breakers([(1, 2)])) != repr(Breakers([(1,), (2,)]))
