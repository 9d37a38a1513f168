"""A process to fork cases from, and the table at the end of `make faults`."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests.faults.forks import Forks
from tests.faults.matrix import Case, Line, as_text

CASE = pytest.StashKey[Case]()
TABLE: dict[str, Line] = {}
"""Filled in the process that prints it, from the reports of those that run tests."""


@pytest.fixture
def matrix(request) -> Case:
    """The test's entry in the table; its `fault` may be changed."""
    return case_of(request.node)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Processes that may die."""
    with Forks() as forks:
        yield forks


def case_of(item: pytest.Item) -> Case:
    """By default a test counts for the fault that its module's docstring begins with, up to a colon or full stop."""
    module = item.getparent(pytest.Module)
    text = (module.obj.__doc__ if module else None) or item.name
    return item.stash.setdefault(CASE, Case(text.partition("\n")[0].partition(":")[0].rstrip(".")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    case = case_of(item)
    report.user_properties.append(("case", {"fault": case.fault, "seen": dict(case.seen), "most": case.most}))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    found: Any = dict(report.user_properties).get("case")
    if found is not None and (report.when == "call" or (report.when == "setup" and not report.passed)):
        case = Case(found["fault"])
        case.saw(**found["seen"])
        case.had_at_most(**found["most"])
        line = TABLE.setdefault(case.fault, Line())
        if report.skipped:
            line.skipped[report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)] += 1
        else:
            line.ran(case, passed=report.passed)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if TABLE and "not faults" not in config.option.markexpr:
        terminalreporter.section("faults")
        for line in as_text(TABLE):
            terminalreporter.write_line(line)
