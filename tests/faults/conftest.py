"""A process to fork cases from, and the table at the end of `make faults`."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.faults.forks import Forks
from tests.faults.matrix import Case, Line, as_text

TABLE = pytest.StashKey[dict[str, Line]]()
CASE = pytest.StashKey[Case]()
ASKED_FOR = pytest.StashKey[bool]()


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
    item.config.stash[ASKED_FOR] = item.get_closest_marker("faults") is not None or item.config.stash.get(
        ASKED_FOR, False
    )
    if call.when == "call" or (call.when == "setup" and not report.passed):
        case = case_of(item)
        line = item.config.stash.setdefault(TABLE, {}).setdefault(case.fault, Line())
        if report.skipped:
            line.skipped[report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)] += 1
        else:
            line.ran(case, passed=report.passed)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash.get(ASKED_FOR, False):
        terminalreporter.section("faults")
        for line in as_text(config.stash[TABLE]):
            terminalreporter.write_line(line)
