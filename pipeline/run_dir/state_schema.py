"""Tables and set-up of state.sqlite."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from pipeline.api.errors import ConfigError
from pipeline.run_dir.state_seal import FORMAT, UNSEALED_FORMAT, Seal, seal_damage
from pipeline.system.disk_errors import damaged
from pipeline.system.failpoints import Failpoint, reached

APPLICATION_ID = 0x6C6C6270
"""SQLite's application_id of every state.sqlite."""
_TABLES = f"""
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


def set_up(db: sqlite3.Connection, path: Path) -> Seal:
    """Check that `db`, opened from `path`, is ours, of this version and whole, and create the tables in a new file.

    Raises:
        ConfigError: it belongs to another program or version.
        DamagedError: its values are not those that were written.
    """
    db.execute("PRAGMA busy_timeout = 10000")
    new = not check(db, path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    reached(Failpoint.STATE_OPENED)
    if new:
        db.executescript(_TABLES)
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
    if tables and (what := seal_damage(db)):
        raise damaged(path, what)
    return bool(tables)
