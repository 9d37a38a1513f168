"""A run says once that other work takes its cores."""

from __future__ import annotations

import subprocess
import sys

import pytest

from operators.tuning.machine_load import OtherWork, SharedCores, cpu_seconds


@pytest.mark.parametrize(
    ("busy", "total", "own", "share"), [(2.0, 2.0, 2.0, 0.0), (2.0, 2.0, 1.0, 0.5), (1.0, 2.0, 1.5, 0.0), (0, 0, 0, 0)]
)
def test_what_other_processes_compute_is_told_from_what_we_do(busy, total, own, share):
    read = iter([(10.0, 100.0, 5.0), (10.0 + busy, 100.0 + total, 5.0 + own)]).__next__
    assert OtherWork(read).share() == share


def test_the_machine_itself_is_read():
    busy, total, own = cpu_seconds()
    assert 0 < busy <= total
    assert own > 0


@pytest.mark.parametrize(("others", "threads", "warnings"), [(0.0, 2, 0), (0.25, 2, 0), (0.5, 2, 1), (0.5, 1, 0)])
def test_other_work_is_told_once_and_only_where_threads_wait_for_each_other(others, threads, warnings):
    now, said = [0.0], list[str]()

    def read() -> tuple[float, float, float]:
        """Two cores: we take one of them, other work its share of both."""
        return now[0] * (1 + 2 * others), now[0] * 2, now[0]

    cores = SharedCores(said.append, threads, read, lambda: now[0])
    for now[0] in (1.0, 4.9, 5.0, 5.2, 10.0, 20.0):
        assert cores.look() == ""
        assert not said or now[0] >= 5.0
    assert len(said) == warnings
    assert all("other work takes 50% of the cores" in text and "runtime.threads=1" in text for text in said)


def test_the_work_of_children_is_our_own():
    """A conversion of weights runs in one."""
    before = cpu_seconds()[2]
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert cpu_seconds()[2] - before >= 0.25
