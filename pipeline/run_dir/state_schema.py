"""Tables and set-up of state.sqlite."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from pipeline.api.errors import ConfigError
from pipeline.system.failpoints import Failpoint, reached

APPLICATION_ID = 0x6C6C6270
"""SQLite's application_id of every state.sqlite."""
FORMAT = 6
"""Version of the tables and of what operators keep in them (SQLite's user_version); a file of another version is
refused."""

_TABLES = f"""
BEGIN IMMEDIATE;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
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
COMMIT;
"""


def set_up(db: sqlite3.Connection, path: Path) -> None:
    """Check that `db`, opened from `path`, is ours and of this version, and create the tables in a new file."""
    db.execute("PRAGMA busy_timeout = 10000")
    tables = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
    ours = db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    if tables and not ours:
        raise ConfigError(f"{path} belongs to another program; give another output_dir=")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != FORMAT and tables:
        raise ConfigError(
            f"{path} was written by another version of this program (format {version}, this one knows {FORMAT}); go on"
            " with that version, or give another output_dir="
        )
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    reached(Failpoint.STATE_OPENED)
    if not tables:
        db.executescript(_TABLES)
