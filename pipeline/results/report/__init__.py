"""report.html: one page about a run, without network access and scripts. It is written at the end of every attempt, and
by the command `report`."""

from __future__ import annotations

import logging
from pathlib import Path

from pipeline.run_dir.names import REPORT
from pipeline.system.atomic_files import write_atomically

log = logging.getLogger(__name__)


def write_report(directory: Path) -> Path:
    """Write report.html of the run in `directory`. Returns its path. Raises ConfigError if `directory` is not a run
    directory; StorageError if the file cannot be written."""
    # Imported here, since this takes long: a job is to start at once.
    from pipeline.results.reader import read_results
    from pipeline.results.report.page import page

    path = directory / REPORT
    write_atomically(path, page(read_results(directory)))
    return path


def report_of_attempt(directory: Path, *, wanted: bool) -> list[str]:
    """Write the report of an attempt that has ended. Returns the line of the summary with its path. A failure is logged
    and changes nothing else: the results are complete without a report. `wanted`: the setting `report`."""
    try:
        return [f"report      {write_report(directory)}"] if wanted else []
    except Exception as error:
        log.warning("report.html cannot be written: %s: %s", type(error).__name__, error)
        return []
