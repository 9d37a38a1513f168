"""CompletionStore: finished completions in SQLite, by content key."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from operators.engine.sampling.logprobs import Scored
from operators.generation.journal import Journal, StoredCompletion
from pipeline.api.errors import InputError, PipelineError
from pipeline.system.disk_errors import is_of_disk, storage_error
from pipeline.system.failpoints import Failpoint, reached

_FORMAT = 2
_AT_ONCE = 500
"""Keys per query."""
# Lines lie in the order of writing, beside an index of keys: ordered by key, each would change a page of its own.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS completions (
    key BLOB PRIMARY KEY, ids BLOB NOT NULL, text TEXT NOT NULL, finish_reason TEXT NOT NULL,
    least INTEGER NOT NULL, run TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS logprobs (key BLOB PRIMARY KEY, scores BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS settings (digest BLOB PRIMARY KEY) WITHOUT ROWID;
"""

Lines = Sequence[tuple[object, ...]]


class CompletionStore(Journal):
    """Keeps completions in a database. Safe to use from several threads and several processes.

    Args:
        path: the database; made if it is not there.
        sync: `process` survives the death of the process, `power` also that of the machine.

    Raises:
        InputError: the file is no such database or cannot be written.
        StorageError: there is no room for it.
    """

    def __init__(self, path: Path, sync: str = "process") -> None:
        self._path = path
        super().__init__()
        self._reading, self._committing = threading.Lock(), threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer, self._reader = self._connect(sync), self._connect(sync)
            self._writer.executescript(_SCHEMA)
            self.settings = {bytes(d) for (d,) in self._reader.execute("SELECT digest FROM settings")}
        except (sqlite3.Error, OSError) as error:
            raise unusable(path, error, opening=True) from error
        self._thread.start()

    def known_settings(self) -> set[bytes]:
        """Return `settings`, for a worker of a cluster."""
        return self.settings

    def read(self, keys: Sequence[bytes]) -> dict[bytes, StoredCompletion]:
        found: dict[bytes, StoredCompletion] = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            query = (
                "SELECT key, ids, text, finish_reason, scores, least, run"
                " FROM completions LEFT JOIN logprobs USING (key)"
                f" WHERE key IN ({','.join('?' * len(some))})"
            )
            try:
                with self._reading:
                    rows = self._reader.execute(query, some).fetchall()
            except sqlite3.Error as error:
                raise unusable(self._path, error) from error
            for key, ids, text, reason, scores, least, run in rows:
                scored = None if scores is None else from_bytes(scores)
                stored = StoredCompletion(np.frombuffer(ids, np.int32), text, reason, scored, least, run)
                found[key] = stored
        return found

    def close(self) -> None:
        """Write what is pending, and close the database.

        Raises:
            PipelineError: it cannot be written.
        """
        try:
            super().close()
        finally:
            self._writer.close()
            self._reader.close()

    def explained(self, error: Exception) -> PipelineError:
        if isinstance(error, sqlite3.Error | OSError):
            return unusable(self._path, error)
        return PipelineError(f"the completion store {self._path} fails: {type(error).__name__}: {error}")

    def _connect(self, sync: str) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None, timeout=60)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if sync == 'power' else 'NORMAL'}")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != _FORMAT and connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise InputError(
                f"the completion store {self._path} cannot be used: it has format {version}, and this version of the"
                f" program reads {_FORMAT}; name another with store.path="
            )
        connection.execute(f"PRAGMA user_version = {_FORMAT}")
        return connection

    def write(self, completions: Mapping[bytes, StoredCompletion], settings: set[bytes]) -> None:
        self.insert(*encoded(completions), settings)

    def insert(self, rows: Lines, scores: Lines, new_settings: set[bytes]) -> None:
        """Write lines of the tables, as `encoded` returns them, and digests of settings; workers of a cluster do."""
        with self._committing:
            self._transact(rows, scores, new_settings)

    def _transact(self, rows: Lines, scores: Lines, new_settings: set[bytes]) -> None:
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            self._writer.executemany("INSERT OR IGNORE INTO settings VALUES (?)", [(d,) for d in new_settings])
            self._writer.executemany("INSERT OR REPLACE INTO logprobs VALUES (?, ?)", scores)
            self._writer.executemany("INSERT OR REPLACE INTO completions VALUES (?, ?, ?, ?, ?, ?)", rows)
            reached(Failpoint.JOURNAL_COMMITTING)
            self._writer.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:  # SQLite rolls back by itself if the disk is full
                self._writer.execute("ROLLBACK")
            raise
        reached(Failpoint.JOURNAL_COMMITTED)


def encoded(completions: Mapping[bytes, StoredCompletion]) -> tuple[Lines, Lines]:
    """Return `completions` as lines of the tables `completions` and `logprobs`."""
    rows = [
        (key, np.asarray(c.ids, np.int32).tobytes(), c.text, c.finish_reason, c.least, c.run)
        for key, c in completions.items()
    ]
    return rows, [(key, to_bytes(c.scores)) for key, c in completions.items() if c.scores is not None]


def to_bytes(scores: Sequence[Scored]) -> bytes:
    """Encode, little-endian: the number of top entries (int32) of each token, its logprob (float32), their ids and
    logprobs."""
    counts = np.array([len(s.top) for s in scores], "<i4")
    own = np.array([s.logprob for s in scores], "<f4")
    ids = np.array([token for s in scores for token, _ in s.top], "<i4")
    tops = np.array([logprob for s in scores for _, logprob in s.top], "<f4")
    return b"".join([np.array([len(scores)], "<i4").tobytes(), *(a.tobytes() for a in (counts, own, ids, tops))])


def from_bytes(content: bytes) -> list[Scored]:
    """Decode the result of `to_bytes`; logprobs are float32."""
    count = int(np.frombuffer(content, "<i4", 1)[0])
    counts = np.frombuffer(content, "<i4", count, 4)
    own = np.frombuffer(content, "<f4", count, 4 + 4 * count).tolist()
    start, entries = 4 + 8 * count, int(counts.sum())
    ids = np.frombuffer(content, "<i4", entries, start).tolist()
    tops = np.frombuffer(content, "<f4", entries, start + 4 * entries).tolist()
    pairs = zip(ids, tops, strict=True)
    return [Scored(logprob, tuple(islice(pairs, n))) for logprob, n in zip(own, counts.tolist(), strict=True)]


def unusable(path: Path, error: sqlite3.Error | OSError, *, opening: bool = False) -> PipelineError:
    """Return the pipeline error for an error of the database at `path`.

    Args:
        opening: the run has not begun, so another store can be named.
    """
    if is_of_disk(error):
        failed = storage_error(path, error)
        if failed.full or not opening:
            return failed
    if opening:
        return InputError(f"the completion store {path} cannot be used: {error}; name another with store.path=")
    return InputError(
        f"the completion store {path} fails: {error}; run the same command again. If it is damaged move it away first"
        f" (in an output directory python -m pipeline verify {path.parent} repair=true does that)"
    )
