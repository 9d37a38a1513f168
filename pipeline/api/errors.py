"""The exceptions of the engine and the exit code that each one ends a run with.

    PipelineError                 1
    ├── ConfigError               2   configuration or input that cannot work
    │   ├── GraphError            2   the graph breaks a rule; names the node and the rule
    │   ├── SchemaError           2   a column is missing or has another type
    │   ├── InputError            2   a file that is missing, unreadable or not what it should be
    │   └── DamagedError          2   results or the state of a run are not as they were written
    ├── NodeFailed                1   an operator raised; names the node, keeps the cause
    ├── StorageError              1   a file cannot be written: full, read-only or failing disk
    ├── SourceError               1   an input behind a network cannot be reached now; the run can be resumed
    ├── PublishError              1   the results are whole here, but not at output.publish
    └── Interrupted               4   SIGINT or SIGTERM; the run can be resumed

`Cancelled` and `Released` are signals between threads, not errors: they never leave the executor.
Messages that refuse a name end with the one that may be meant (`did_you_mean`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """Exit status of `python -m pipeline`."""

    DONE = 0
    FAILED = 1
    CONFIG = 2
    REJECTS = 3
    INTERRUPTED = 4
    BUDGET = 5


class PipelineError(Exception):
    """Base of every error that this project raises on purpose."""

    exit_code = ExitCode.FAILED


class ConfigError(PipelineError):
    """Configuration or input that cannot work. The message says what was found and what to write instead."""

    exit_code = ExitCode.CONFIG


class GraphError(ConfigError):
    """The graph breaks a rule. `node` is the node at fault."""

    def __init__(self, node: str, rule: str) -> None:
        super().__init__(f"node '{node}': {rule}")
        self.node = node
        self.rule = rule


class SchemaError(ConfigError):
    """A column that an operator needs is missing or has another type."""


class InputError(ConfigError):
    """An input file or model file is missing, unreadable or not what its name says."""


class DamagedError(ConfigError):
    """Files that a run has committed are missing or changed. The message names them and the command that mends them."""


class NodeFailed(PipelineError):
    """An operator raised while the graph ran. `__cause__` is what it raised, whose notes say at which row and line."""

    def __init__(self, node: str, cause: BaseException) -> None:
        where = "; ".join(getattr(cause, "__notes__", []))
        super().__init__(f"node '{node}' failed: {type(cause).__name__}: {cause}{f' ({where})' if where else ''}")
        self.node = node
        self.exit_code = cause.exit_code if isinstance(cause, PipelineError) else ExitCode.FAILED


class StorageError(PipelineError):
    """A file of the run cannot be written. The message names the file, the free space and the remedy.

    Args:
        path: the file.
        full: the disk is full.
    """

    def __init__(self, message: str, path: Path, *, full: bool = False) -> None:
        super().__init__(message)
        self.path = path
        self.full = full


class SourceError(PipelineError):
    """An input behind a network does not answer, after its file system's own retries. The same command resumes."""


class PublishError(PipelineError):
    """Something at `output.publish` cannot be listed, read or written. The message names it and the cause."""


class Interrupted(PipelineError):
    """The run was asked to stop (SIGINT, SIGTERM). What is finished is kept; the same command resumes it."""

    exit_code = ExitCode.INTERRUPTED


class Cancelled(Exception):
    """Raised out of a wait on a channel when the run is being cancelled."""


class Released(Exception):
    """Raised out of `Outbox.put`, and of every wait of a node, when all its readers have left."""


def install(extra: str) -> str:
    """Return how to install an extra. Not by this project's name: on a package index it may be anyone's."""
    return f"run pip install -e '.[{extra}]' in the project's folder"


def did_you_mean(wrong: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `; did you mean X?` for the end of a message, or nothing when no name is close."""
    near = difflib.get_close_matches(wrong, list(known), 1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
