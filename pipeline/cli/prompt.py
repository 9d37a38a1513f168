"""`python -m pipeline prompt job=NAME row=N`: print the exact prompt of a row as the model gets it, with its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.api.runtime import Resources
from pipeline.cli.commands import parser_of, usage_of
from pipeline.cli.run import config_dirs_of, run_jobs
from pipeline.dry_run.one_row import prompt_of_row
from pipeline.settings import JobSettings
from pipeline.system.terminal import say

OWN = ("row", "node")
"""Arguments of this command; all others are the job's."""


def main(arguments: Sequence[str]) -> ExitCode:
    """Print the prompt."""
    if {"--help", "-h"} & set(arguments):
        parser_of("prompt").parse_args(["--help"])
    options = dict(pair for a in arguments if (pair := a.split("=", 1))[0] in OWN and len(pair) == 2)
    row = options.get("row", "")
    if not (row.isascii() and row.isdigit()):
        raise ConfigError(f"row={row} is no row of the input, which count from 0; write {usage_of('prompt')}")
    job_arguments = [a for a in arguments if a.partition("=")[0] not in OWN]

    def show(settings: JobSettings, process: Resources) -> ExitCode:
        say(prompt_of_row(settings, int(row), options.get("node"), process))
        return ExitCode.DONE

    return run_jobs(job_arguments, config_dirs_of(job_arguments), show)
