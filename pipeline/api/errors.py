"""Exceptions and their exit codes. Each class has the code of its base unless it sets its own.

    PipelineError            1  whatever ends a run
        ConfigError          2  the job, an option or the input cannot work as given; nothing was done
            GraphError          at a node
                HookFailed      raised by code of the user's
            SchemaError         of columns
            InputError          of a file that is read
            DamagedError        of results that are not as they were written
        NodeFailed              an operator failed while it ran; the code of its cause
        StorageError            a disk
        SourceError             a network or a server that is read
        PublishError            a place to which results are copied
        Interrupted          4  a signal

`Cancelled` and `Released` are signals between threads, not errors: they never leave the executor.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path

from pipeline import PACKAGES, PROJECT

HALF_A_CHARACTER = (
    "half a character (an escape from \\ud800 to \\udfff without the other one); write the whole character"
)
"""Part of the reason of a reject for a lone surrogate: JSON can spell one, UTF-8 and Arrow cannot store it."""


class ExitCode(IntEnum):
    """Exit status of `python -m pipeline`."""

    DONE = 0
    FAILED = 1
    CONFIG = 2
    REJECTS = 3
    INTERRUPTED = 4
    BUDGET = 5


_SEVERITY = (ExitCode.DONE, ExitCode.BUDGET, ExitCode.REJECTS, ExitCode.INTERRUPTED, ExitCode.CONFIG, ExitCode.FAILED)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the most severe of `codes`; DONE if there is none."""
    return max(codes, key=_SEVERITY.index, default=ExitCode.DONE)


class PipelineError(Exception):
    """Base of every error that this project raises on purpose."""

    exit_code = ExitCode.FAILED
    of_row = False
    """True if a row that is processed may be at fault; see `machine_errors.of_machine` for other exceptions."""


class ConfigError(PipelineError):
    """Invalid configuration or input. The message says what was found and what to write instead."""

    exit_code = ExitCode.CONFIG
    of_row = True
    node: str | None = None
    """The node that it is about."""


class GraphError(ConfigError):
    """The graph breaks `rule` at `node`."""

    def __init__(self, node: str, rule: str) -> None:
        super().__init__(f"node '{node}': {rule}")
        self.node = node


class HookFailed(GraphError):
    """An operator raised what it does not raise on purpose while the graph was planned; `__cause__` is that."""


class SchemaError(ConfigError):
    """A column that an operator needs is missing or has another type."""


class InputError(ConfigError):
    """An input file or model file is missing, unreadable or of another format."""


class DamagedError(ConfigError):
    """Committed files or the state of a run are missing or changed. The message names the command that repairs them."""

    of_row = False


class NodeFailed(PipelineError):
    """An operator raised while the graph ran. The notes of `__cause__`, its exception, name the row and the line."""

    def __init__(self, node: str, cause: BaseException) -> None:
        where = "; ".join(getattr(cause, "__notes__", []))
        super().__init__(f"node '{node}' failed: {type(cause).__name__}: {cause}{f' ({where})' if where else ''}")
        self.exit_code = cause.exit_code if isinstance(cause, PipelineError) else ExitCode.FAILED


class StorageError(PipelineError):
    """A file of the run cannot be written (full, read-only or failing disk). The message names the file, the free space
    and the remedy."""

    def __init__(self, message: str, path: Path, *, full: bool = False) -> None:
        super().__init__(message)
        self.path = path
        self.full = full


class SourceError(PipelineError):
    """A remote input does not answer, even after retries. The same command resumes."""


class PublishError(PipelineError):
    """Something at `output.publish` cannot be listed, read or written; the results are complete here."""


class Interrupted(PipelineError):
    """The run was stopped (SIGINT, SIGTERM). Committed chunks are kept; the same command resumes."""

    exit_code = ExitCode.INTERRUPTED


def exit_code_of(error: BaseException | None) -> ExitCode:
    """Return the exit code of a run that `error` has ended."""
    return ExitCode(getattr(error, "exit_code", ExitCode.FAILED))


class Cancelled(Exception):
    """Raised by every wait of a node when the run is cancelled."""


class Released(Exception):
    """Raised by `Outbox.put` and by every wait of a node when all its readers have left."""


def install(extra: str) -> str:
    """Return the command that installs an extra, from folder or wheel: on PyPI the name may be someone else's."""
    if PROJECT != PACKAGES:
        return f"install the wheel again with it: pip install 'llama_batch_pipeline-VERSION-py3-none-any.whl[{extra}]'"
    return f"run pip install -e '.[{extra}]' in the project's folder"


def did_you_mean(wrong: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `; did you mean X?` for the end of a message, or nothing when no name is close."""
    near = difflib.get_close_matches(wrong, list(known), 1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
