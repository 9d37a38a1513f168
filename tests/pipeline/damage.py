"""A finished run to damage, ways to damage it, and what to compare."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.api.errors import ExitCode
from pipeline.api.runtime import Resources
from pipeline.runs.run import run_job
from pipeline.settings import JobSettings, NodeSettings

OPS = "tests.pipeline.job_ops"
ODD, LAST = "data/part-00002.parquet", "data/part-00004.parquet"
REJECT = "rejects/part-00004.parquet"


def job(directory: Path, square: dict[str, Any] | None = None, **settings: Any) -> JobSettings:
    nodes = {
        "numbers": NodeSettings({"_target_": f"{OPS}.Numbers", "rows": 45}),
        "square": NodeSettings({"_target_": f"{OPS}.Square", "bad": [4, 41], **(square or {})}, "numbers"),
        "write": NodeSettings({"_target_": f"{OPS}.Parquet"}, "square"),
    }
    return JobSettings(
        name="squares", nodes=nodes, output_dir=str(directory), progress="none", max_error_rate=1.0, **settings
    )


def run(settings: JobSettings) -> ExitCode:
    return run_job(settings, Resources())


def files(directory: Path) -> dict[str, bytes]:
    found = [p for folder in ("data", "rejects") for p in (directory / folder).rglob("*") if p.is_file()]
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in found}


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
