"""Children are timed, weighed, and ended."""

from __future__ import annotations

import sys
import time

import psutil
import pytest

from tools.bench.child import ChildFailed, run_child


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_what_it_cost_is_told():
    big = "x = bytearray(80 * 2**20); import time; t = time.process_time()\nwhile time.process_time() < t + 0.2: pass"
    done = run_child(python(f"{big}\nprint('hello')"), timeout_s=60)
    assert done.output == "hello\n"
    assert 0.2 <= done.cpu_s <= done.wall_s + 1
    assert 80 <= done.peak_rss_mb < 400


def test_memory_is_its_own_and_not_its_parents():
    held = bytearray(300 * 2**20)
    held[::4096] = b"x" * len(held[::4096])
    done = run_child(python("import time; time.sleep(0.2)"), timeout_s=60)
    if sys.platform == "linux":
        assert done.peak_rss_mb < 150


def test_a_failure_has_its_last_words():
    with pytest.raises(ChildFailed, match=r"ended with 3: why \| it failed"):
        run_child(python("import sys; sys.stderr.write('why\\nit failed'); sys.exit(3)"), timeout_s=60)


def test_a_program_that_is_not_there_is_a_failure(tmp_path):
    with pytest.raises(ChildFailed, match="cannot be started"):
        run_child([str(tmp_path / "nothing")], timeout_s=60)


def test_one_that_takes_too_long_is_ended():
    began = time.monotonic()
    with pytest.raises(ChildFailed, match="timeout_s"):
        run_child(python("import time; time.sleep(60)"), timeout_s=0.1)
    assert time.monotonic() - began < 30


def test_a_cancelled_one_is_ended():
    with pytest.raises(ChildFailed, match="cancelled"):
        run_child(python("import time; time.sleep(60)"), timeout_s=60, cancelled=lambda: True)


def test_its_own_children_end_with_it(tmp_path):
    pid = tmp_path / "pid"
    nested = f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\nopen({str(pid)!r}, 'w')"
    code = f"import subprocess, sys, time; {nested}.write(f'{{child.pid}}.')\ntime.sleep(60)"
    with pytest.raises(ChildFailed, match="cancelled"):
        run_child(python(code), 60, lambda: pid.exists() and pid.read_text().endswith("."))
    deadline = time.monotonic() + 10
    while (alive := psutil.pid_exists(number := int(pid.read_text()[:-1]))) and time.monotonic() < deadline:
        if psutil.Process(number).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.02)
    assert not alive
