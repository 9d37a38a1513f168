"""`python -m pipeline jobs`: list the jobs."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.api.errors import ExitCode
from pipeline.cli.commands import config_dir, parser_of
from pipeline.config.jobs import jobs_table


def main(arguments: Sequence[str]) -> ExitCode:
    """Print the list of jobs."""
    parser = parser_of("jobs")
    parser.add_argument("--config-dir", "-cd", action="append", default=[], type=config_dir)
    print(jobs_table(parser.parse_args(arguments).config_dir))
    return ExitCode.DONE
