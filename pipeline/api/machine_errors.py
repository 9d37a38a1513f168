"""Tell an error of the machine (memory, disk, open files, a lost database) from one that a row may be at fault for."""

from __future__ import annotations

import errno
import re
import sqlite3
from collections.abc import Iterator

from pipeline.api.errors import PipelineError

NUMBERS = frozenset(
    getattr(errno, name)
    for name in (
        *("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS", "ESTALE", "ENXIO", "ENODEV"),  # the disk
        *("EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "ENOBUFS", "ENOLCK"),  # what a process may have
    )
)
"""errno of what befalls every row."""
_OF_SQLITE = frozenset(
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("FULL", "IOERR", "NOMEM", "CANTOPEN", "READONLY", "CORRUPT", "NOTADB", "BUSY", "PROTOCOL")
)
"""Primary result codes of a database that is lost, not of a statement that is wrong."""
_IN_RUST = re.compile(r"\(os error (\d+)\)|\[errno (\d+)\]", re.IGNORECASE)
_NO_MEMORY = re.compile("out ?of ?memory|cannot allocate|allocation .*failed|can't start new thread", re.IGNORECASE)
_LIBRARIES = ("polars", "pyarrow", "torch", "pyo3_runtime", "duckdb")
"""Packages whose own exceptions say of memory and disk in their text only."""


def of_machine(error: BaseException) -> bool:
    """Return True for an error that no row is at fault for, or one that was raised from such: it ends the run, whatever
    `on_error` says, so that a resume makes the rows. As a reject they would be lost."""
    return any(map(_is_of_machine, _chain(error, set())))


def _is_of_machine(error: BaseException) -> bool:
    if isinstance(error, PipelineError):
        return not error.of_row
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        return True
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_SQLITE
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in NUMBERS
    package, text = type(error).__module__.partition(".")[0], str(error)
    if isinstance(error, OSError) or package in _LIBRARIES:
        named = _IN_RUST.search(text)
        return (named is not None and int(named[1] or named[2]) in NUMBERS) or bool(_NO_MEMORY.search(text))
    return type(error) is RuntimeError and text == "can't start new thread"


def _chain(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    """Yield `error`, what a group holds, and what it was raised from."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    for inner in getattr(error, "exceptions", None) or ():
        if isinstance(inner, BaseException):
            yield from _chain(inner, seen)
    yield from _chain(error.__cause__ or (None if error.__suppress_context__ else error.__context__), seen)
