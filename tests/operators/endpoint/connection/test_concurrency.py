"""The policies of an endpoint's client, in simulated time, and the waits between the tries of a request."""

from __future__ import annotations

import math
import random
from itertools import accumulate, product
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.endpoint.connection.concurrency import FIRST, REMEMBER_S, Adaptive, Fixed, RateLimit
from operators.endpoint.connection.patience import pause_s
from operators.endpoint.connection.verdict import Again, retry_after
from tests.operators.endpoint.connection.simulated import Clock, Server, Simulation, batching, throughput

SERVERS: dict[str, tuple[dict[str, Any], float]] = {
    "one slot": ({"slots": 1}, 1.0),
    "16 slots": ({"slots": 16}, 16.0),
    "batching, full at 64": ({"speed": batching(64)}, 1024 * batching(64)(1024)),
    "batching, full at 256": ({"speed": batching(256)}, 1024 * batching(256)(1024)),
    "429 above 20": ({"refuses_above": 20}, 20.0),
}
"""What is special of each, and the throughput of the best fixed number of requests, in requests alone."""


OFTEN = [(0.05, 0.0, True), (0.05, 0.2, False), (1.0, 0.2, True), (5.0, 0.0, False)]
REST = [each for each in product((0.05, 0.3, 1.0, 5.0), (0.0, 0.2), (True, False)) if each not in OFTEN]


@pytest.mark.parametrize(
    ("seconds", "noise", "tokens"), [*OFTEN, *(pytest.param(*each, marks=pytest.mark.laws) for each in REST)]
)
@pytest.mark.parametrize("name", SERVERS)
def test_the_throughput_of_the_best_fixed_number_is_found_within_30_seconds_or_12_requests(
    name, seconds, noise, tokens
):
    special, best = SERVERS[name]
    server = Server(seconds, noise=noise, tokens=tokens, **special)
    if name == "429 above 20" and seconds == 5.0:  # three quarters is what AIMD has between two refusals
        assert throughput(server, Adaptive, 60.0, 120.0) >= 0.7 * best
    else:
        assert throughput(server, Adaptive, max(30.0, 12 * seconds)) >= 0.9 * best


def test_a_quick_server_has_64_requests_within_three_seconds():
    simulation = Simulation(Server(0.1))
    policy = Adaptive(clock=simulation.clock)
    simulation.run(policy, 3.0)
    assert policy.limit >= 64


@pytest.mark.parametrize(("slots", "least", "usual", "most"), [(1, 1, 4, 16), (4, 4, 16, 32), (16, 16, 64, 128)])
def test_noise_neither_drives_the_limit_away_nor_down(slots, least, usual, most):
    for seed in range(4):
        simulation = Simulation(Server(0.5, slots=slots, noise=0.2, random=random.Random(seed)))
        policy = Adaptive(clock=simulation.clock)
        simulation.run(policy, 30)
        limits = []
        for minute in range(1, 21):
            simulation.run(policy, 60.0 * minute)
            limits.append(policy.limit)
        assert least <= min(limits) <= median(limits) <= usual
        assert max(limits) <= most  # while it tries whether the double pays


def test_a_level_that_was_refused_is_left_alone():
    simulation = Simulation(Server(0.2, refuses_above=20))
    policy = Adaptive(clock=simulation.clock)
    simulation.run(policy, 30)
    for _ in range(10):
        before = simulation.refusals
        simulation.run(policy, simulation.clock() + REMEMBER_S)
        assert simulation.refusals - before <= 2


def test_a_burst_of_refusals_halves_once():
    policy, clock = grown(Clock())
    before = policy.limit
    for _ in range(50):
        policy.refused()
    assert policy.limit == before // 2
    clock.now += 0.9  # of a second that a request takes
    policy.refused()
    assert policy.limit == before // 2
    clock.now += 0.2
    policy.refused()
    assert policy.limit == before // 4


def test_the_limit_falls_to_one_and_comes_back():
    simulation = Simulation(Server(0.5, slots=64))
    policy = Adaptive(clock=simulation.clock)
    simulation.run(policy, 30)
    before, simulation.server.refuses_above = policy.limit, 0
    simulation.run(policy, 45)
    assert policy.limit == 1
    simulation.server.refuses_above = 1000
    simulation.run(policy, 75)
    assert policy.limit >= before - 1 >= 63


def test_a_server_that_becomes_larger_is_noticed():
    simulation = Simulation(Server(0.5, slots=4))
    policy = Adaptive(clock=simulation.clock)
    simulation.run(policy, 60)
    simulation.server.slots = 64
    simulation.run(policy, 180)
    assert policy.limit >= 64


@pytest.mark.parametrize("longest_s", [2.0, 20.0])
def test_no_request_comes_near_its_timeout(longest_s):
    simulation = Simulation(Server(0.2, speed=batching(256)))
    policy = Adaptive(longest_s=longest_s, clock=simulation.clock)
    simulation.run(policy, 60)
    assert simulation.slowest_s <= longest_s / 2 * 1.05


def test_slow_answers_do_not_raise_the_limit():
    assert grown(Clock(), longest_s=3.9)[0].limit == FIRST


def test_rows_that_come_slowly_do_not_raise_the_limit():
    policy, clock = grown(Clock())
    before = policy.limit
    for _ in range(10_000):
        clock.now += random.Random(7).uniform(0.05, 0.5)
        policy.answered(0.01, 10)
    assert policy.limit == before


def grown(clock: Clock, longest_s: float = 600.0) -> tuple[Adaptive, Clock]:
    """A policy after a generation of `FIRST` answers of a second each."""
    policy = Adaptive(longest_s=longest_s, clock=clock)
    clock.now += 1.0
    for _ in range(FIRST):
        policy.answered(1.0, 10)
    return policy, clock


def test_a_fixed_number_stays():
    policy = Fixed(7)
    policy.answered(1.0, 10)
    policy.refused()
    assert policy.limit == 7


ESTIMATES = st.lists(st.tuples(st.integers(0, 900), st.floats(0, 1), st.floats(0, 20)), min_size=1, max_size=80)
"""Estimated tokens, the share of them that is used, and the seconds to the next request."""


@given(ESTIMATES, st.sampled_from([None, 1, 7.5, 30]), st.sampled_from([None, 900, 1000, 20_000]), st.booleans())
def test_no_minute_holds_more_than_the_limit(requests, per_minute, tokens_per_minute, corrected):
    clock = Clock()
    pace = RateLimit(per_minute, tokens_per_minute, clock)
    sent = []
    for estimated, share, then_s in requests:
        while wait_s := pace.delay(estimated):
            clock.now += wait_s
        used = int(estimated * share) if corrected else estimated
        sent.append((clock.now, used))
        clock.now += then_s
        pace.correct(estimated, used)
    for i, (start_s, _) in enumerate(sent):
        window = [used for then, used in sent[i:] if then < start_s + 60 - 1e-6]
        assert per_minute is None or len(window) <= per_minute
        assert tokens_per_minute is None or sum(window) <= tokens_per_minute


@given(st.integers(1, 1000), st.integers(20, 300))
def test_the_whole_limit_is_used_in_an_even_flow(tokens_per_minute, tokens):
    clock = Clock()
    pace = RateLimit(None, tokens_per_minute, clock)
    times: list[float] = []
    while clock.now < 300 or len(times) < 2:
        while wait_s := pace.delay(tokens):
            clock.now += wait_s
        times.append(clock.now)
    even_s = tokens * 60 / tokens_per_minute
    assert all(then >= i * even_s - 3 - 1e-6 for i, then in enumerate(times))
    # The limit may not be a multiple of what a request needs, and then a minute cannot be filled.
    slowest_s = max(even_s, 60 / max(1, tokens_per_minute // tokens)) if tokens <= tokens_per_minute else even_s
    assert all(then <= i * slowest_s + 60 for i, then in enumerate(times))


def test_a_request_beyond_the_limit_goes_out_when_a_minute_is_empty():
    clock = Clock()
    pace = RateLimit(None, 1000, clock)
    assert pace.delay(10) == 0.0
    waits = list(iter(lambda: advance(clock, pace.delay(5000)), 0.0))
    assert list(accumulate(waits))[-1] == 60
    assert pace.delay(1) > 60


def advance(clock: Clock, seconds: float) -> float:
    clock.now += seconds
    return seconds


def test_tokens_booked_too_few_are_booked_later_and_too_many_given_back():
    clock = Clock()
    pace = RateLimit(None, 6000, clock)
    assert pace.delay(100) == 0.0
    pace.correct(100, 900)
    assert pace.delay(1) == pytest.approx(9 - 3)
    pace.correct(900, 0)
    assert pace.delay(1) == 0.0


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
