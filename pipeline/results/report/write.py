"""Writes report.html, at the end of every attempt and for the command `report`."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pipeline.run_dir.names import REPORT
from pipeline.system.atomic_files import write_atomically

VARIABLE = "PIPELINE_REPORT"
"""Environment variable; `off`: no run writes a report of its own, whatever its settings. For test suites."""
log = logging.getLogger(__name__)


def write_report(directory: Path) -> Path:
    """Write report.html of the run in `directory`; returns where it is.

    Raises:
        ConfigError: the directory is no run's.
        StorageError: the file cannot be written.
    """
    # Here, not above: who runs a job waits for this at its end, not at its start.
    from pipeline.results.reader import read_results
    from pipeline.results.report.page import page

    path = directory / REPORT
    write_atomically(path, page(read_results(directory)))
    return path


def report_of_attempt(directory: Path, *, wanted: bool) -> list[str]:
    """The report of an attempt that has ended, and the line of the summary that says where it is.

    Whatever goes wrong is logged and changes nothing: the results are whole without it.

    Args:
        wanted: the setting `report`.
    """
    if not is_written(wanted):
        return []
    try:
        return [f"report      {write_report(directory)}"]
    except Exception as error:
        log.warning("report.html cannot be written: %s: %s", type(error).__name__, error)
        return []


def is_written(wanted: bool) -> bool:
    """Return whether a run with the setting `report` writes one."""
    return wanted and os.environ.get(VARIABLE) != "off"
