"""CPU seconds of each test file, at the end of a run: what the sets cost, and which files say why they take long.

Counted is the processor time of the process that runs the tests and of the processes that it started and waited for,
from the first test of a file to its last, fixtures included. A wall clock would count what runs beside the tests.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

MOST_SECONDS = 10.0
"""A file that takes longer says why, in the reason of its mark `slow`."""
PROPERTY = "cpu_s"
SHOWN = 15
KEPT = Path(__file__).parents[1] / ".cache/test_seconds.txt"
"""All files of the last run of a set."""
A_SET_S = 100.0
"""A run of fewer seconds is of some files."""
BEGAN = pytest.StashKey[float]()

_files: Counter[str] = Counter()
_reasons: dict[str, str] = {}


def cpu_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    item.stash[BEGAN] = cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "teardown":
        reason = next((str(mark.args[0]) for mark in item.iter_markers("slow") if mark.args), "")
        report.user_properties.append((PROPERTY, (cpu_seconds() - item.stash[BEGAN], reason)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    found: Any = dict(report.user_properties).get(PROPERTY)
    if found is not None:
        file = report.nodeid.partition("::")[0]
        _files[file] += found[0]
        if found[1]:
            _reasons[file] = found[1]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the files that take longest, and all that take longer than MOST_SECONDS."""
    total = sum(_files.values())
    if total < MOST_SECONDS:
        return
    if total >= A_SET_S and KEPT.parent.is_dir():
        KEPT.write_text(
            "".join(f"{seconds:7.1f}  {file}\n" for file, seconds in _files.most_common()), encoding="utf-8"
        )
    terminalreporter.section(f"CPU seconds a file: {total:.0f} in {len(_files)} files")
    for place, (file, seconds) in enumerate(_files.most_common()):
        if seconds <= MOST_SECONDS and place >= SHOWN:
            break
        why = _reasons.get(file, "above 10 s, and gives no reason" if seconds > MOST_SECONDS else "")
        terminalreporter.write_line(f"{seconds:7.1f}  {file}  {why}".rstrip())
