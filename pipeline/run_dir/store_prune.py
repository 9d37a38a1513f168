"""Remove the entries of a completion store that nobody has written or used for some time, a few at a time, so that runs
may use the store meanwhile; and give the space back where none does.

The table `used` has the time of each entry, and under the empty key the time at which that table was made: entries of
versions before have none of their own, and count as used then.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from pipeline.api.errors import ConfigError, PipelineError
from pipeline.system.disk_errors import is_of_disk, storage_error

_TABLES = {"completions", "logprobs", "settings"}
_AT_ONCE = 500
"""Entries that are removed in one transaction."""
_BUSY_S = 60
_PAGE = """
SELECT completions.rowid, key, at, length(ids) + length(CAST(text AS BLOB)) + coalesce(length(scores), 0)
FROM completions LEFT JOIN used USING (key) LEFT JOIN logprobs USING (key)
WHERE completions.rowid > ? ORDER BY completions.rowid LIMIT ?
"""
_DELETE = """
DELETE FROM completions
WHERE key = ? AND NOT EXISTS (SELECT 1 FROM used WHERE used.key = completions.key AND at >= ?)
"""


class Pruned(NamedTuple):
    """What was found and done.

    Args:
        entries: how many there were.
        old: those that are too old.
        old_bytes: of their content.
        undated: entries without a time of their own.
        since: the time that these count as used at; None: the store keeps no times yet, so none is too old.
        freed_bytes: by how much the file is smaller.
        in_use: the file kept its size, since another process has it open.
    """

    entries: int = 0
    old: int = 0
    old_bytes: int = 0
    undated: int = 0
    since: int | None = None
    freed_bytes: int = 0
    in_use: bool = False


def prune(path: Path, before: int, *, dry_run: bool) -> Pruned:
    """Remove the entries of the store `path` that were last used before that time, in seconds since 1970; only count
    them with `dry_run`. Whatever ends the process leaves a whole store.

    Raises:
        ConfigError: the file is no store.
        StorageError: the disk is full, or the file may not be written.
        PipelineError: another process has held it for a minute, or it is damaged.
    """
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise ConfigError(f"{path} {found}; name the file of a store: store.path of the runs, or completions.sqlite")
    try:
        url = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(url, _BUSY_S, uri=True, isolation_level=None)) as db:
            _refuse_others(path, db)
            pruned = _remove(db, before, dry_run=dry_run)
            return pruned if dry_run else _give_back(path, db, pruned)
    except sqlite3.Error as error:
        if is_of_disk(error):
            raise storage_error(path, error) from error
        raise PipelineError(f"{path} cannot be pruned: {error}; run the same command again") from error


def _refuse_others(path: Path, db: sqlite3.Connection) -> None:
    """Raise ConfigError unless the file is a store."""
    try:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_NOTADB:
            raise
        tables = set()
    if not tables >= _TABLES:
        raise ConfigError(f"{path} is no completion store, and is left as it is; name the file that store.path names")


def _remove(db: sqlite3.Connection, before: int, *, dry_run: bool) -> Pruned:
    """Remove or count what is too old."""
    keeps_times = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'used'").fetchone() is not None
    if not keeps_times:
        count = int(db.execute("SELECT COUNT(*) FROM completions").fetchone()[0])
        return Pruned(entries=count, undated=count)
    since = int(next(iter(db.execute("SELECT at FROM used WHERE key = x''").fetchone() or (time.time(),))))
    pruned = Pruned(since=since)
    for page in _pages(db):
        old = [(key, size) for _, key, at, size in page if (since if at is None else at) < before]
        began = time.monotonic()
        gone = len(old) if dry_run or not old else _delete(db, [key for key, _ in old], before)
        pruned = pruned._replace(
            entries=pruned.entries + len(page),
            old=pruned.old + gone,
            old_bytes=pruned.old_bytes + sum(size for _, size in old),
            undated=pruned.undated + sum(at is None for _, _, at, _ in page),
        )
        if gone and not dry_run:
            time.sleep(time.monotonic() - began)  # what other processes have to write comes in between
    return pruned


def _pages(db: sqlite3.Connection) -> Iterator[list[tuple[int, bytes, int | None, int]]]:
    last = -1
    while page := db.execute(_PAGE, (last, _AT_ONCE)).fetchall():
        yield page
        last = page[-1][0]


def _delete(db: sqlite3.Connection, keys: Sequence[bytes], before: int) -> int:
    """Remove the entries, but for those that were used meanwhile; return how many were removed."""
    db.execute("BEGIN IMMEDIATE")
    try:
        gone = [key for key in keys if db.execute(_DELETE, (key, before)).rowcount]
        for table in ("logprobs", "used"):
            db.executemany(f"DELETE FROM {table} WHERE key = ?", [(key,) for key in gone])
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
    return len(gone)


def _give_back(path: Path, db: sqlite3.Connection, pruned: Pruned) -> Pruned:
    """Make the file as small as what it holds, if no other process has it open."""
    size = _size(path)
    if not db.execute("PRAGMA freelist_count").fetchone()[0]:
        return pruned
    db.execute("PRAGMA busy_timeout = 0")
    try:
        (mode,) = db.execute("PRAGMA journal_mode = DELETE").fetchone()  # wants the file for itself, as nothing else
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise
        mode = ""
    if mode != "delete":
        return pruned._replace(in_use=True)
    db.execute("VACUUM")
    db.execute("PRAGMA journal_mode = WAL")
    return pruned._replace(freed_bytes=max(0, size - _size(path)))


def _size(path: Path) -> int:
    return sum(part.stat().st_size for part in (path, path.with_name(f"{path.name}-wal")) if part.exists())
