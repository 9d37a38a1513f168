"""`python -m pipeline compare A B ...`: compare settings, rows, speed, texts, booleans and numbers of runs.
`report DIR ...`: write report.html again, also of a run that is running or was killed.

The exit code is 0 also if the runs differ, and 2 if a directory is not a run directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.api.errors import ExitCode
from pipeline.cli.commands import parser_of
from pipeline.results.comparison import sections
from pipeline.results.reader import read_results
from pipeline.results.report import write_report
from pipeline.system.terminal import say


def report(arguments: Sequence[str]) -> ExitCode:
    """Write the reports."""
    parser = parser_of("report")
    parser.add_argument("directories", nargs="+", type=Path, metavar="outputs/NAME", help="directories of runs")
    for directory in parser.parse_args(arguments).directories:
        say([str(write_report(directory))])
    return ExitCode.DONE


def compare(arguments: Sequence[str]) -> ExitCode:
    """Print the comparison."""
    parser = parser_of("compare")
    parser.add_argument("first", metavar="outputs/A", help="directory of a run")
    parser.add_argument("others", metavar="outputs/B", nargs="+", help="directories of runs to compare with it")
    options = parser.parse_args(arguments)
    names = [options.first, *options.others]
    for section in sections([read_results(Path(name)) for name in names], names):
        say([*section, ""])
    return ExitCode.DONE
