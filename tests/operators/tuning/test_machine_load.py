"""A run says once that other work takes its cores."""

from __future__ import annotations

import pytest

from operators.tuning.machine_load import SharedCores, Ticks


@pytest.mark.parametrize(("others", "threads", "warnings"), [(0.0, 2, 0), (0.25, 2, 0), (0.5, 2, 1), (0.5, 1, 0)])
def test_other_work_is_told_once_and_only_where_threads_wait_for_each_other(others, threads, warnings):
    now, said = [0.0], list[str]()

    def read() -> Ticks:
        """Two cores of 100 ticks a second: we take one of them, other work its share of both."""
        return Ticks(int(now[0] * (100 + 200 * others)), int(now[0] * 200), now[0] * 100)

    cores = SharedCores(said.append, threads, read, lambda: now[0])
    for now[0] in (1.0, 4.9, 5.0, 5.2, 10.0, 20.0):
        assert cores.look() == ""
        assert not said or now[0] >= 5.0
    assert len(said) == warnings
    assert all("other work takes 50% of the cores" in text and "runtime.threads=1" in text for text in said)


def test_where_the_kernel_does_not_tell_nothing_is_said():
    said = list[str]()
    SharedCores(said.append, 2, lambda: None, iter((0.0, 9.0, 9.0)).__next__).look()
    assert said == []
