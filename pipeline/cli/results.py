"""`python -m pipeline compare A B ...`: compare settings, rows, speed, texts, booleans and numbers of runs;
with `--labels FILE --verdict COLUMN` also which run's verdicts people agree with more.
`report DIR ...`: write report.html again, also of a run that is running or was killed.

The exit code is 0 also if the runs differ, and 2 if a directory is not a run directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.commands import parser_of
from pipeline.labels.paired_labels import by_labels
from pipeline.results.comparison import letters_of, sections
from pipeline.results.reader import read_results
from pipeline.results.report import write_report
from pipeline.run_dir.names import DATA
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
    parser.add_argument("--labels", type=Path, nargs="+", metavar="FILE", default=[], help="people's labels of rows")
    parser.add_argument("--verdict", metavar="COLUMN", help="with --labels: the column that they are about")
    parser.add_argument("--folder", help="with --labels: data/NAME of a second sink (data)")
    options = parser.parse_args(arguments)
    if bool(options.labels) != bool(options.verdict):
        raise ConfigError("--labels FILE and --verdict COLUMN go together: the labels are of rows, not of a column")
    if options.folder and not options.labels:
        raise ConfigError("--folder is that of labelled rows, and there are no --labels: all folders are compared")
    names = [options.first, *options.others]
    runs = [read_results(Path(name)) for name in names]
    for section in sections(runs, names):
        say([*section, ""])
    if options.labels:
        for other, letter in zip(runs[1:], letters_of(len(runs))[1:], strict=True):
            say([*by_labels(runs[0], other, options.labels, options.verdict, options.folder or DATA, letter), ""])
    return ExitCode.DONE
