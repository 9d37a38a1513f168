"""Checks of a completion store: its views `sealed_TABLE` have the digest of a row of TABLE, then the values that it
covers, the key of the table first. A row of an earlier version has no digest."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.system.digests import as_text, row_digest
from pipeline.system.disk_errors import writing

_KEYS = {"completions": "key", "settings": "digest"}
_UNSEALED_FORMAT = 2


class RowCheck(NamedTuple):
    """Number of rows whose digest differs, and of rows that have none."""

    damaged: int
    unsealed: int


def check_rows(db: sqlite3.Connection) -> RowCheck:
    """Compare all rows with their digests. Raises sqlite3.OperationalError if the tables are not those of a store."""
    if db.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
        return RowCheck(0, 0)
    if db.execute("PRAGMA user_version").fetchone()[0] == _UNSEALED_FORMAT:
        return RowCheck(0, db.execute("SELECT COUNT(*) FROM completions").fetchone()[0])
    unsealed = [seal is None for _, seal, _ in _suspects(db)]
    return RowCheck(unsealed.count(False), unsealed.count(True))


def remove_damaged(path: Path) -> None:
    """Remove the rows whose digest differs: whoever needs one makes it again."""
    with writing(path), closing(sqlite3.connect(path, timeout=10)) as db, db:
        for table, seal, key in list(_suspects(db)):
            if seal is not None:
                db.execute(f"DELETE FROM {table} WHERE {_KEYS[table]} IS ? AND seal IS ?", (key, seal))


def _suspects(db: sqlite3.Connection) -> Iterator[tuple[str, Any, Any]]:
    """Yield table, digest and key of each row that is not proven to be as it was written."""
    db.text_factory = as_text
    for table in _KEYS:
        for seal, *values in db.execute(f"SELECT * FROM sealed_{table}"):
            if seal != row_digest(values):
                yield table, seal, values[0]
