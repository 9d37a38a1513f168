"""`python -m pipeline report DIR ...`: report.html is made again, also of a run that works or was killed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.api.errors import ExitCode
from pipeline.cli.usage import senseless
from pipeline.results.report.write import write_report

USAGE = "write python -m pipeline report outputs/NAME"


def main(arguments: Sequence[str]) -> ExitCode:
    """The command; takes directories of runs.

    Raises:
        ConfigError: there is none, or one is no run's.
        StorageError: a report cannot be written.
    """
    if not arguments or any("=" in a or a.startswith("-") for a in arguments):
        raise senseless("report", arguments, USAGE)
    for directory in arguments:
        print(write_report(Path(directory)))
    return ExitCode.DONE
