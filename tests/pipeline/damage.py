"""A finished run to damage, ways to damage it, and what to compare."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.settings import JobSettings
from tests.pipeline import squares
from tests.pipeline.squares import OPS, files, run

__all__ = ["OPS", "files", "run"]

ODD, LAST = "data/part-00002.parquet", "data/part-00004.parquet"
REJECT = "rejects/part-00004.parquet"


def job(directory: Path, square: dict[str, Any] | None = None, **settings: Any) -> JobSettings:
    """The job of squares, with rejects in the first chunk and in the last."""
    return squares.job(directory, square={"bad": [4, 41], **(square or {})}, max_error_rate=1.0, **settings)


def inodes(directory: Path) -> dict[str, int]:
    return {name: (directory / name).stat().st_ino for name in files(directory)}


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)


def garbage(path: Path) -> None:
    path.write_bytes(b"these are not the bytes of a database" * 300)


def misname(path: Path) -> None:
    """Give a table of a database a name that is no text."""
    path.write_bytes(path.read_bytes().replace(b"attempts", b"attempt\xc5"))


def misname_index(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"autoindex_operator", b"autoindex_operato\xc5"))


def empty(path: Path) -> None:
    path.write_bytes(b"")


_TYPES = {str: "TEXT", bytes: "BLOB", int: "INTEGER"}


def damaged_values(db: sqlite3.Connection, bits: int = 8) -> Iterator[str]:
    """Flip `bits` of each value in each table of `db`, one at a time, and remove each row; yield what was done, and put
    it back. SQLite finds nothing wrong with any of it. `db`: in autocommit mode."""
    tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        columns = [(name, key) for _, name, _, _, _, key in db.execute(f"PRAGMA table_info({table})")]
        by = [name for name, key in columns if key] or ["rowid"]
        where = " AND ".join(f"{name} IS ?" for name in by)
        rows = db.execute(f"SELECT {', '.join([*by, *(name for name, _ in columns)])} FROM {table}").fetchall()
        for row in rows:
            key = row[: len(by)]
            changes: list[tuple[str, str, tuple[object, ...]]] = [("", f"DELETE FROM {table} WHERE {where}", ())]
            for (name, _), value in zip(columns, row[len(by) :], strict=True):
                for bit in range(bits):
                    if (other := _flipped(value, bit)) is not None:
                        text = f"UPDATE OR IGNORE {table} SET {name} = CAST(? AS {_TYPES[type(value)]}) WHERE {where}"
                        changes.append((f"{name}, bit {bit}", text, (other,)))
            for what, statement, values in changes:
                db.execute("BEGIN")
                if db.execute(statement, (*values, *key)).rowcount:
                    yield f"{table}: {what or 'removed'} of {key}"
                db.execute("ROLLBACK")


def _flipped(value: str | bytes | int, bit: int) -> bytes | int | None:
    """Return the value with another bit, spread over its length; None of nothing."""
    if isinstance(value, int):
        return value ^ 1 << bit * 4
    content = bytearray(value.encode() if isinstance(value, str) else value)
    if not content:
        return None
    content[bit * len(content) // 8] ^= 1 << bit
    return bytes(content)
