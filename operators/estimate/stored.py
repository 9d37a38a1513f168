"""Which rows a completion store has, without a byte being written beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from collections.abc import Sequence as Seq
from contextlib import closing
from pathlib import Path

from operators.engine.sequence import FinishReason, Sequence
from operators.generation.store import unusable
from operators.generation.store_lookup import CompletionKeys

_AT_ONCE = 500
"""Keys of one query."""


def stored_rows(path: Path, rows: Seq[Sequence], keys: CompletionKeys, retry: Collection[str]) -> set[bytes]:
    """The keys of those of `rows` that a run would find in the store at `path`. All `rows` are given their keys.

    Args:
        retry: finish reasons with which a completion does not count.

    Raises:
        InputError: the file is no such database.
    """
    keys.give(rows)
    if not path.is_file():
        return set()
    wanted = {row.key: row.max_tokens for row in rows}
    try:
        with closing(sqlite3.connect(_address(path), uri=True)) as database:
            return {
                key
                for key, reason, tokens in _found(database, list(wanted))
                if reason not in retry and not (reason == FinishReason.LENGTH and tokens < wanted[key])
            }
    except sqlite3.Error as error:
        raise unusable(path, error, opening=True) from error


def _found(database: sqlite3.Connection, keys: Seq[bytes]) -> list[tuple[bytes, str, int]]:
    found: list[tuple[bytes, str, int]] = []
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        places = ",".join("?" * len(some))
        query = f"SELECT key, finish_reason, length(ids) / 4 FROM completions WHERE key IN ({places})"
        found += database.execute(query, some).fetchall()
    return found


def _address(path: Path) -> str:
    """Where no log lies beside the file nobody writes it, and SQLite need not make files of its own to read it."""
    log = path.with_name(f"{path.name}-wal")
    in_use = log.exists() and log.stat().st_size > 0
    return f"{path.absolute().as_uri()}?mode=ro{'' if in_use else '&immutable=1'}"
