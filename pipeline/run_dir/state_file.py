"""StateFile: a connection to state.sqlite whose transactions are sealed, for all threads; its tables, set-up and seal.

SQLite's own check looks at the structure of a file, not at the values in it. So the table `seal` has a sum of the
digests of all rows and of the schema. Each transaction changes the sum with the rows: triggers of the connection
subtract the digest of a row that goes and add that of a row that comes, whatever statement it was. States of
UNSEALED_FORMAT have no seal; the first transaction gives them one.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pipeline.api.errors import ConfigError, StorageError
from pipeline.system.digests import DIGEST_BYTES, row_digest
from pipeline.system.disk_errors import damaged, using_database
from pipeline.system.failpoints import Failpoint, reached

T = TypeVar("T")
FORMAT = 7
"""Version of the tables and of what operators keep in them (SQLite's user_version)."""
UNSEALED_FORMAT = 6
"""Version of states that have no seal and are otherwise as those of today."""
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'seal' AND name NOT LIKE 'sqlite%'"
_SCHEMA = "SELECT * FROM sqlite_master WHERE name != 'seal'"
APPLICATION_ID = 0x6C6C6270
"""SQLite's application_id of every state.sqlite."""
_CREATE = f"""
BEGIN IMMEDIATE;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {UNSEALED_FORMAT};
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts (attempt INTEGER PRIMARY KEY, started_at TEXT NOT NULL, status TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS chunks (chunk INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, rows INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS shards (
    path TEXT PRIMARY KEY, chunk INTEGER NOT NULL, rows INTEGER NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rejects (
    chunk INTEGER NOT NULL, node TEXT NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL, rows INTEGER NOT NULL,
    PRIMARY KEY (chunk, node, kind, reason)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS operator_state (
    node TEXT NOT NULL, chunk INTEGER NOT NULL, state BLOB NOT NULL, PRIMARY KEY (node, chunk)
);
CREATE TABLE IF NOT EXISTS published (url TEXT, path TEXT, sha256 TEXT NOT NULL, PRIMARY KEY (url, path));
CREATE TABLE IF NOT EXISTS accounts (
    node TEXT PRIMARY KEY, rows_in INTEGER NOT NULL, expanded INTEGER NOT NULL, rejected INTEGER NOT NULL,
    rows_out INTEGER NOT NULL
) WITHOUT ROWID;
"""
CLOSE_S = 5.0
"""Seconds that closing the database waits for a thread that uses it."""


class StateFile:
    """Base of RunState: opens the database, and reads and writes it. Methods may be called from any thread.

    Every method may raise StorageError (the disk is full or cannot be written) and DamagedError.

    Args:
        path: of state.sqlite; created if it does not exist.
        source: URI that a reader opens in its place (see `reading`): all that it reads is of one moment.

    Raises:
        ConfigError: the file belongs to another program or version, or is not writable.
        DamagedError: the file is corrupt.
        StorageError: the disk is full.
    """

    def __init__(self, path: Path, source: str = "") -> None:
        self._lock = threading.Lock()
        self._path = path
        try:
            self._db = _connect(source or f"{path.absolute().as_uri()}?mode=rwc")
        except sqlite3.Error as error:
            raise ConfigError(f"{path} cannot be used: {error}; give another output_dir=") from error
        try:
            with using_database(path):
                if source:
                    self._db.execute("BEGIN")
                    if check(self._db, path):
                        return
                    self._db.close()
                    self._db = _connect(":memory:")
                self._seal = set_up(self._db, path)
        except BaseException as error:
            self._db.close()
            if isinstance(error, StorageError) and not error.full:
                raise ConfigError(f"{error}, or give another output_dir=") from error
            raise

    def close(self) -> None:
        """Close the database, unless a thread that was left behind hangs in it."""
        if self._lock.acquire(timeout=CLOSE_S):
            self._db.close()
            self._lock.release()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._sealed():
            yield
            reached(Failpoint.STATE_COMMITTING)
        reached(Failpoint.STATE_COMMITTED)

    @contextmanager
    def _sealed(self) -> Iterator[None]:
        with self._lock, using_database(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._seal.begin()
                yield
                self._seal.write()
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite has ended it itself when the disk was full
                    self._db.execute("ROLLBACK")
                raise

    def _set(self, key: str, value: object) -> None:
        text = json.dumps(value, ensure_ascii=False, sort_keys=not key.startswith("schema:"))
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, text))

    def _get(self, key: str, default: T) -> T:
        row = self._one("SELECT value FROM meta WHERE key = ?", key)
        value: T = default if row is None else json.loads(row[0])
        return value

    def _one(self, query: str, *values: object) -> Any:
        with self._lock, using_database(self._path):
            return self._db.execute(query, values).fetchone()

    def _all(self, query: str, *values: object) -> list[Any]:
        with self._lock, using_database(self._path):
            return self._db.execute(query, values).fetchall()


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)


def set_up(db: sqlite3.Connection, path: Path) -> Seal:
    """Check that `db`, opened from `path`, is ours, of this version and whole, and create the tables in a new file.
    Raises ConfigError if it belongs to another program or version; DamagedError if its values are not those that were
    written."""
    db.execute("PRAGMA busy_timeout = 10000")
    new = not check(db, path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    reached(Failpoint.STATE_OPENED)
    if new:
        db.executescript(_CREATE)
    seal = Seal(db)
    if new:
        seal.begin()
        db.execute("COMMIT")
    return seal


def check(db: sqlite3.Connection, path: Path) -> bool:
    """Raise as `set_up`. Returns False if the file has no tables yet."""
    tables = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
    ours = db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    if tables and not ours:
        raise ConfigError(f"{path} belongs to another program; give another output_dir=")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in (FORMAT, UNSEALED_FORMAT) and tables:
        raise ConfigError(
            f"{path} was written by another version of this program (format {version}, this one knows {FORMAT}); go on"
            " with that version, or give another output_dir="
        )
    if tables and (damage := seal_damage(db)):
        raise damaged(path, damage)
    return bool(tables)


class Seal:
    """Keeps the seal of the state that `db` writes. `db`: connection in autocommit mode, to a state with all its
    tables."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._sum = 0
        db.create_function("changed", -1, self._changed)
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("PRAGMA recursive_triggers = ON")  # INSERT OR REPLACE fires those of the row that it removes, too
        for table in _tables(db):
            for event, rows in (("INSERT", {"NEW": 1}), ("DELETE", {"OLD": -1}), ("UPDATE", {"OLD": -1, "NEW": 1})):
                calls = "".join(
                    f"SELECT changed({by}, '{table}', {_typed(db, table, row)});" for row, by in rows.items()
                )
                db.execute(f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table} BEGIN {calls} END")

    def begin(self) -> None:
        """Read the sum at the begin of a transaction; make that of a state that has none."""
        if self._db.execute("PRAGMA user_version").fetchone()[0] != FORMAT:
            self._db.execute("CREATE TABLE seal (sum BLOB NOT NULL)")
            self._db.execute("INSERT INTO seal VALUES (?)", (_bytes(_computed(self._db)),))
            self._db.execute(f"PRAGMA user_version = {FORMAT}")
        self._sum = _stored(self._db)

    def write(self) -> None:
        """Write the sum at the end of a transaction."""
        self._db.execute("UPDATE seal SET sum = ?", (_bytes(self._sum),))

    def _changed(self, by: int, table: str, *typed: str | bytes | None) -> None:
        self._sum += by * _number(table, typed)


def _stored(db: sqlite3.Connection) -> int:
    ((written,),) = db.execute("SELECT sum FROM seal").fetchall()
    return int.from_bytes(written, "little")


def _computed(db: sqlite3.Connection) -> int:
    total = sum(_number("sqlite_master", row) for row in db.execute(_SCHEMA))
    for table in _tables(db):
        total += sum(_number(table, row) for row in db.execute(f"SELECT {_typed(db, table)} FROM {table}"))
    return total


def seal_damage(db: sqlite3.Connection) -> str | None:
    """Return what is wrong with the values of a state; None if nothing is, or nothing can be said (`is_sealed`)."""
    try:
        if db.execute("PRAGMA user_version").fetchone()[0] == FORMAT:
            intact = _bytes(_stored(db)) == _bytes(_computed(db))
        else:
            intact = not is_sealed(db)
    except (sqlite3.OperationalError, TypeError, ValueError) as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) != sqlite3.SQLITE_ERROR:
            raise
        return f"cannot be read: {error}"
    return None if intact else "has other values than were written (their digest differs)"


def is_sealed(db: sqlite3.Connection) -> bool:
    """Return True if the state has a seal."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'seal'").fetchone() is not None


def _tables(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute(_TABLES).fetchall()]


def _typed(db: sqlite3.Connection, table: str, row: str = "") -> str:
    """Return SQL for the types and bytes of all values of a row, also of texts that are no UTF-8 any more."""
    at = f"{row}." if row else ""
    names = [column[1] for column in db.execute(f"PRAGMA main.table_info({table})")]
    return ", ".join(f'typeof({at}"{name}"), CAST({at}"{name}" AS BLOB)' for name in names)


def _number(table: str, values: Iterable[str | bytes | int | None]) -> int:
    return int.from_bytes(row_digest([table, *values]), "little")


def _bytes(total: int) -> bytes:
    return (total % (1 << 8 * DIGEST_BYTES)).to_bytes(DIGEST_BYTES, "little")
