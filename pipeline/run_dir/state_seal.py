"""The seal of state.sqlite: a sum of the digests of all its rows and of its schema, kept in the table `seal`.

SQLite's own check looks at the structure of a file, not at the values in it. Each transaction changes the sum with the
rows: triggers of the connection subtract the digest of a row that goes and add that of a row that comes, whatever
statement it was. States of UNSEALED_FORMAT have no seal; the first transaction gives them one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from pipeline.system.digests import DIGEST_BYTES, row_digest

FORMAT = 7
"""Version of the tables and of what operators keep in them (SQLite's user_version)."""
UNSEALED_FORMAT = 6
"""Version of states that have no seal and are otherwise as those of today."""
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'seal' AND name NOT LIKE 'sqlite%'"
_SCHEMA = "SELECT * FROM sqlite_master WHERE name != 'seal'"


class Seal:
    """Keeps the seal of the state that `db` writes.

    Args:
        db: connection in autocommit mode, to a state with all its tables.
    """

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
