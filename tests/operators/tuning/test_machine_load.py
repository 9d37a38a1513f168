"""Other work on the machine is told from our own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from operators.tuning.machine_load import OtherWork, cpu_seconds


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


def test_the_work_of_children_is_our_own():
    """A conversion of weights runs in one."""
    before = cpu_seconds()[2]
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert cpu_seconds()[2] - before >= 0.25
