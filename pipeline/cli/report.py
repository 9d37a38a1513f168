"""`python -m pipeline report DIR ...`: write report.html again, also of a run that is running or was killed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.api.errors import ExitCode
from pipeline.cli.commands import parser_of
from pipeline.results.report.write import write_report


def main(arguments: Sequence[str]) -> ExitCode:
    """Write the reports.

    Raises:
        ConfigError: a directory is not a run directory.
        StorageError: a report cannot be written.
    """
    parser = parser_of("report")
    parser.add_argument("directories", nargs="+", type=Path, metavar="outputs/NAME", help="directories of runs")
    for directory in parser.parse_args(arguments).directories:
        print(write_report(directory))
    return ExitCode.DONE
