"""Turn errors of a full, read-only or failing disk into a StorageError with the file, the free space and the remedy."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.api.errors import DamagedError, StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PROTECTED = (errno.EROFS, errno.EACCES, errno.EPERM)
_IN_THE_WAY = {
    errno.EISDIR: "a folder has that name; move it away",
    errno.ENOTDIR: "a file has the name of a folder above it; move it away",
    errno.EEXIST: "a file has that name; move it away",
}
_OF_SQLITE = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_IOERR: errno.EIO,
}
"""errno by SQLite's primary result code, for the codes that mean a disk error."""


def storage_error(path: Path, error: OSError | sqlite3.Error) -> StorageError:
    """Return the error for a file at `path` that could not be written, moved or removed."""
    number, free = _number(error), _free_bytes(path)
    room = "" if free is None else f" ({free:,} bytes are free there)"
    full = number in _FULL or free == 0  # without room SQLite may speak of an I/O error instead
    if full:
        remedy = "make room"
    elif number in _PROTECTED:
        remedy = "make it writable for this user"
    else:
        remedy = _IN_THE_WAY.get(number or 0, "check the disk")
    why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error) or type(error).__name__
    text = f"{path} cannot be written: {why}{room}; {remedy} and run the same command again"
    return StorageError(text, path, full=full)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block, or a sqlite3.Error that means a disk error, into a StorageError that names
    `path`."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if not is_of_disk(error):
            raise
        raise storage_error(path, error) from error


@contextmanager
def using_database(path: Path) -> Iterator[None]:
    """Like `writing`, for state.sqlite; a corrupt database raises a DamagedError with the command that repairs it."""
    try:
        with writing(path):
            yield
    except UnicodeDecodeError as error:  # of a message with a damaged name in it
        raise damaged(path, f"is damaged: {error}") from error
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        raise damaged(path, f"is damaged: {error}") from error


def damaged(path: Path, what: str) -> DamagedError:
    """Return the error for a damaged state.sqlite. `what`: the damage."""
    return DamagedError(
        f"{path} {what}; python -m pipeline verify {path.parent} says more, and repair=true makes it again from the"
        " stored completions. Or give another output_dir="
    )


def is_of_disk(error: OSError | sqlite3.Error) -> bool:
    """Return True if `error` means a disk error and not, for example, a wrong SQL statement."""
    return isinstance(error, OSError) or _number(error) is not None


def explained(error: BaseException, directory: Path) -> BaseException:
    """Return the StorageError for a disk error that an operator raised, any other error as it is. `directory`: of the
    run, named if the error does not name a file."""
    if isinstance(error, OSError | sqlite3.Error) and _number(error) in (*_FULL, errno.EROFS):
        named = getattr(error, "filename", None)
        return storage_error(Path(os.fsdecode(named)) if isinstance(named, str | bytes) else directory, error)
    return error


def _number(error: OSError | sqlite3.Error) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    code = getattr(error, "sqlite_errorcode", None)  # the module's own errors have none
    return None if code is None else _OF_SQLITE.get(code & 0xFF)


def _free_bytes(path: Path) -> int | None:
    """Return the free space of the file system of `path`, or of its nearest parent that exists."""
    for place in path.parents:
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return None
