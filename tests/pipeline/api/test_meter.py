"""Three clocks that add up to the wall clock, on a clock that the test sets."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pipeline.api.meter import RowCounts, StageClock, StageMeter, StageState


class FakeClock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_interval_counts_for_the_state_it_was_in():
    fake = FakeClock()
    clock = StageClock(fake)
    clock.start()
    fake.now += 1
    with clock.during(StageState.STARVED):
        fake.now += 2
        with clock.during(StageState.BLOCKED):
            fake.now += 4
    fake.now += 8
    clock.stop()
    fake.now += 16
    assert clock.seconds() == {"busy_s": 9, "starved_s": 2, "blocked_s": 4, "wall_s": 15}


def test_a_clock_that_does_not_run_counts_nothing():
    fake = FakeClock()
    clock = StageClock(fake)
    with clock.during(StageState.STARVED):
        fake.now += 5
    assert set(clock.seconds().values()) == {0.0}


@given(st.lists(st.tuples(st.sampled_from(StageState), st.integers(0, 1000), st.booleans())))
def test_the_three_clocks_add_up_to_the_wall_clock_at_any_moment(steps):
    fake = FakeClock()
    clock = StageClock(fake)
    clock.start()
    for state, seconds, look in steps:
        clock.enter(state)
        fake.now += seconds
        if look:
            found = clock.seconds()
            assert found["busy_s"] + found["starved_s"] + found["blocked_s"] == found["wall_s"]
    assert clock.seconds()["wall_s"] == fake.now - 100


def test_counts_carry_the_rows_that_wait():
    meter = StageMeter("node", FakeClock())
    meter.queue_rows = lambda: 7
    meter.rows_in = 3
    assert (meter.counts()["queue_rows"], meter.counts()["rows_in"], meter.counts()["rejected"]) == (7, 3, 0)


def test_what_workers_tell_of_rows_comes_with_their_counts():
    meter = StageMeter("node", FakeClock())
    for _ in range(2):
        meter.add(3, RowCounts(rows_in=2, rows_out=2, told=Counter(odd=1)))
    assert (meter.rows_in, meter.take(3).told) == (4, {"odd": 2})
