"""The table of commands, used by dispatch, help and completion.

To add a command, write a function `arguments -> exit code` and add a line here.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import NamedTuple

from pipeline.api.errors import ConfigError

PROGRAM = "python -m pipeline"


class Command(NamedTuple):
    """A command: its arguments, a description, and its module and function, imported when the command is run."""

    usage: str
    about: str
    module: str
    function: str = "main"


COMMANDS = {
    "build": Command(
        "[backend=cpu|cuda|vulkan|metal|hip|openblas] [rebuild=true] [dry_run=true]",
        "build llama.cpp for this machine and prove it",
        "tools.build.command",
    ),
    "calibrate": Command(
        "outputs/NAME --labels FILE ... --verdict COLUMN [--probability COLUMN] [--positive VALUE] [--precision 0.95]"
        " [--width 0.1] [--swapped COLUMN] [--positions A,B] [--text COLUMN] [--folder data]",
        "say how far verdicts can be trusted, by people's labels",
        "pipeline.cli.calibrate",
    ),
    "compare": Command(
        "outputs/A outputs/B ... [--labels FILE ... --verdict COLUMN]",
        "compare runs",
        "pipeline.cli.results",
        "compare",
    ),
    "completion": Command(
        "[--config-dir DIR]",
        "print a script for bash: source <(python -m pipeline completion)",
        "pipeline.cli.jobs",
        "completion",
    ),
    "doctor": Command("[--json]", "check that this machine is set up", "tools.build.doctor"),
    "jobs": Command("[--config-dir DIR]", "list the jobs", "pipeline.cli.jobs"),
    "operators": Command("[NAME ...]", "list or explain what jobs are made of", "pipeline.cli.operators"),
    "prompt": Command(
        "job=NAME row=N [node=NAME] [KEY=VALUE ...]", "print the prompt of a row and its tokens", "pipeline.cli.prompt"
    ),
    "prune": Command(
        "STORE older=30d [dry_run=true]", "remove what nobody used for so long from a store", "pipeline.cli.prune"
    ),
    "report": Command("outputs/NAME ...", "make report.html again", "pipeline.cli.results", "report"),
    "review": Command(
        "outputs/NAME --columns A,B [--rows 100] [--by VERDICT,NUMBER] [--choices A,B] [--question TEXT] [--blind]",
        "write a page on which people label a sample",
        "pipeline.cli.labels",
        "review",
    ),
    "schema": Command("", "print a JSON schema of job files, for editors", "pipeline.cli.jobs", "schema"),
    "status": Command("outputs/NAME [--nodes] [--json]", "show how far a run is", "pipeline.cli.status"),
    "verify": Command("outputs/NAME [repair=true]", "check results; repair=true mends them", "pipeline.cli.verify"),
}


def usage_of(name: str) -> str:
    """Return the usage line of the command `name`."""
    return f"{PROGRAM} {name} {COMMANDS[name].usage}"


def parser_of(name: str) -> ArgumentParser:
    """Return a parser for the command `name` with usage and description from the table."""
    return ArgumentParser(f"{PROGRAM} {name}", usage_of(name), COMMANDS[name].about, allow_abbrev=False)


def config_dir(folder: str) -> Path:
    """Return the value of `--config-dir` as a path. Raises ConfigError if the directory does not exist."""
    if not Path(folder).is_dir():
        raise ConfigError(f"--config-dir {folder}: there is no such directory")
    return Path(folder)
