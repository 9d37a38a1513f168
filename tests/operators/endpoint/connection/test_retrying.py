"""The waits between the tries of a request."""

from __future__ import annotations

import math

import pytest

from operators.endpoint.connection.patience import pause_s
from operators.endpoint.connection.verdict import Again, retry_after

NO = Again("no")


def test_waits_double_up_to_the_longest_with_jitter(monkeypatch):
    drawn = [pause_s(number, NO, math.inf) for number in range(9)]
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    waits = [pause_s(number, NO, math.inf) for number in range(2000)]
    assert waits[:9] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert set(waits[9:]) == {30.0}
    assert all(0 <= wait <= most for wait, most in zip(drawn, waits, strict=False))


def test_what_a_server_asks_for_is_the_least_and_a_second_of_jitter_the_most():
    waits = [pause_s(number, Again("no", 7.0), math.inf) for number in range(50)]
    assert all(7.0 <= wait <= 8.0 for wait in waits)
    assert len(set(waits)) > 1


@pytest.mark.parametrize("after_s", [None, 5.0])
def test_no_wait_passes_the_deadline(monkeypatch, after_s):
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    assert max(pause_s(number, Again("no", after_s), 5.0) for number in range(20)) == 5.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "-7"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "2", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "x", "Retry-After": "2"}, 2.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1h2m3.5s"}, 3723.5),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}, 0.02),
        ({"x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "1h"}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "5"}, 5.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "soon"}, None),
    ],
    ids=str,
)
def test_how_long_a_server_asks_to_be_left_alone(headers, seconds):
    assert retry_after(headers) == seconds
