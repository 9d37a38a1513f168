"""CompletionStore: finished completions in SQLite, by content key; RemoteStore: that of the driver of a cluster."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from operators.engine.sampling.logprobs import Scored
from operators.generation.journal import Journal, StoredCompletion
from pipeline.api.errors import InputError, PipelineError
from pipeline.system.digests import as_text, row_digest
from pipeline.system.disk_errors import is_of_disk, storage_error
from pipeline.system.failpoints import Failpoint, reached

_FORMAT = 3
_UNSEALED_FORMAT = 2
"""Of stores whose rows have no seal; their rows serve as before, and new ones get one."""
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
# A seal is the digest of the other columns of its view (pipeline/run_dir/store_check.py reads these, too).
_SEALED = """
ALTER TABLE completions ADD COLUMN seal BLOB;
ALTER TABLE settings ADD COLUMN seal BLOB;
CREATE VIEW sealed_completions AS SELECT seal, key, ids, text, finish_reason, least, run, scores
    FROM completions LEFT JOIN logprobs USING (key);
CREATE VIEW sealed_settings AS SELECT seal, digest FROM settings;
"""
# When an entry was written or last served, by which `python -m pipeline prune` goes (pipeline/run_dir/store_prune.py).
# The trigger dates what earlier versions write, too. The empty key has the time at which this table was made: entries
# of before, which have none of their own, count as used then. An age is no value that is served, so it has no seal.
_AGES = (
    "CREATE TABLE IF NOT EXISTS used (key BLOB PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT OR IGNORE INTO used VALUES (x'', CAST(strftime('%s', 'now') AS INTEGER))",
    """CREATE TRIGGER IF NOT EXISTS written AFTER INSERT ON completions BEGIN
        INSERT OR REPLACE INTO used VALUES (new.key, CAST(strftime('%s', 'now') AS INTEGER)); END""",
)
_USED = "INSERT OR REPLACE INTO used SELECT key, ? FROM completions WHERE key = ?"
log = logging.getLogger(__name__)

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
        self.damaged = 0
        self._served: set[bytes] = set()
        super().__init__()
        self._reading, self._committing = threading.Lock(), threading.Lock()
        with ExitStack() as opened:  # if it cannot be used, nothing stays open
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = self._connect(sync, opened)
                self._set_up()
                self._reader = self._connect(sync, opened)
                self._reader.text_factory = as_text
                found = self._reader.execute("SELECT * FROM sealed_settings")
                self.settings = {digest for seal, digest in found if seal in (None, row_digest([digest]))}
            except (sqlite3.Error, OSError) as error:
                raise unusable(path, error, opening=True) from error
            self._opened = opened.pop_all()
        self._thread.start()

    def known_settings(self) -> set[bytes]:
        """Return `settings`, for a worker of a cluster."""
        return self.settings

    def read(self, keys: Sequence[bytes]) -> dict[bytes, StoredCompletion]:
        completions: dict[bytes, StoredCompletion] = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            query = f"SELECT * FROM sealed_completions WHERE key IN ({','.join('?' * len(some))})"
            try:
                with self._reading:
                    rows = self._reader.execute(query, some).fetchall()
            except sqlite3.Error as error:
                raise unusable(self._path, error) from error
            intact = [values for seal, *values in rows if _is_whole(seal, values)]
            self._count_damaged(len(rows) - len(intact))
            for key, ids, text, reason, least, run, scores in intact:
                scored = None if scores is None else from_bytes(scores)
                stored = StoredCompletion(np.frombuffer(ids, np.int32), text, reason, scored, least, run)
                completions[key] = stored
        with self._reading:
            self._served |= completions.keys()
        return completions

    def count(self, run: str) -> int:
        try:
            with self._reading:
                (count,) = self._reader.execute("SELECT COUNT(*) FROM completions WHERE run = ?", [run]).fetchone()
        except sqlite3.Error as error:
            raise unusable(self._path, error) from error
        return int(count)

    def _count_damaged(self, rows: int) -> None:
        """Count rows that are not as they were written, and say so once: they are not served, and made again."""
        if rows and not self.damaged:
            log.warning(
                "%s is damaged: %d stored completions have other values than were written; they are made again, as any"
                " further ones are. python -m pipeline verify on the run counts them",
                self._path,
                rows,
            )
        self.damaged += rows

    def close(self) -> None:
        """Write what is pending, and close the database. Raises PipelineError if it cannot be written."""
        try:
            super().close()
        finally:
            self._opened.close()

    def explained(self, error: Exception) -> PipelineError:
        if isinstance(error, sqlite3.Error | OSError):
            return unusable(self._path, error)
        return PipelineError(f"the completion store {self._path} fails: {type(error).__name__}: {error}")

    def _connect(self, sync: str, opened: ExitStack) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None, timeout=60)
        opened.callback(connection.close)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if sync == 'power' else 'NORMAL'}")
        return connection

    def _set_up(self) -> None:
        """Make the tables of a new store, and add seals to one of an earlier version; another process may do so now."""
        self._writer.execute("BEGIN IMMEDIATE")
        version = self._writer.execute("PRAGMA user_version").fetchone()[0]
        new = self._writer.execute("SELECT 1 FROM sqlite_master").fetchone() is None
        if version not in (_FORMAT, _UNSEALED_FORMAT) and not new:
            raise InputError(
                f"the completion store {self._path} cannot be used: it has format {version}, and this version of the"
                f" program reads {_FORMAT}; name another with store.path="
            )
        if version != _FORMAT:
            for statement in [*_SCHEMA.split(";"), *_SEALED.split(";")]:  # executescript would commit first
                self._writer.execute(statement)
            self._writer.execute(f"PRAGMA user_version = {_FORMAT}")
        for statement in _AGES:
            self._writer.execute(statement)
        self._writer.execute("COMMIT")

    def write(self, completions: Mapping[bytes, StoredCompletion], settings: set[bytes]) -> None:
        self.insert(*encoded(completions), settings)

    def _write(self) -> None:
        super()._write()
        self._note_served()

    def _note_served(self) -> None:
        """Date the entries that were served. Where that fails they only count as older than they are."""
        with self._reading:
            served, self._served = self._served, set()
        if not served:
            return
        now = int(time.time())
        with self._committing:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                self._writer.executemany(_USED, [(now, key) for key in served])
                self._writer.execute("COMMIT")
            except sqlite3.Error as error:
                log.debug("%s: %d entries that were served have no date: %s", self._path, len(served), error)
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def insert(self, rows: Lines, scores: Lines, new_settings: set[bytes]) -> None:
        """Write lines of the tables, as `encoded` returns them, and digests of settings; workers of a cluster do."""
        settings = [(digest, row_digest([digest])) for digest in new_settings]
        with self._committing:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                self._writer.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", settings)
                self._writer.executemany("INSERT OR REPLACE INTO logprobs VALUES (?, ?)", scores)
                self._writer.executemany("INSERT OR REPLACE INTO completions VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
                reached(Failpoint.JOURNAL_COMMITTING)
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:  # SQLite rolls back by itself if the disk is full
                    self._writer.execute("ROLLBACK")
                raise
            reached(Failpoint.JOURNAL_COMMITTED)


def _is_whole(seal: bytes | None, values: Sequence[Any]) -> bool:
    """Return True if a row has the values that were written or, without a seal, texts that can be."""
    if seal is not None:
        return seal == row_digest(values)
    try:
        "".join(value for value in values if isinstance(value, str)).encode()
    except UnicodeEncodeError:
        return False
    return True


def encoded(completions: Mapping[bytes, StoredCompletion]) -> tuple[Lines, Lines]:
    """Return `completions` as lines of the tables `completions` and `logprobs`."""
    scores = {key: to_bytes(c.scores) for key, c in completions.items() if c.scores is not None}
    rows = [
        (key, np.asarray(c.ids, np.int32).tobytes(), c.text, c.finish_reason, c.least, c.run)
        for key, c in completions.items()
    ]
    return [(*row, row_digest([*row, scores.get(row[0])])) for row in rows], list(scores.items())


def to_bytes(scores: Sequence[Scored]) -> bytes:
    """Encode, little-endian: the number of top entries (int32) of each token, its logprob (float32), their ids and
    logprobs."""
    counts = np.array([len(s.top) for s in scores], "<i4")
    logprobs = np.array([s.logprob for s in scores], "<f4")
    ids = np.array([token for s in scores for token, _ in s.top], "<i4")
    tops = np.array([logprob for s in scores for _, logprob in s.top], "<f4")
    return b"".join([np.array([len(scores)], "<i4").tobytes(), *(a.tobytes() for a in (counts, logprobs, ids, tops))])


def from_bytes(content: bytes) -> list[Scored]:
    """Decode the result of `to_bytes`; logprobs are float32."""
    count = int(np.frombuffer(content, "<i4", 1)[0])
    counts = np.frombuffer(content, "<i4", count, 4)
    logprobs = np.frombuffer(content, "<f4", count, 4 + 4 * count).tolist()
    start, entries = 4 + 8 * count, int(counts.sum())
    ids = np.frombuffer(content, "<i4", entries, start).tolist()
    tops = np.frombuffer(content, "<f4", entries, start + 4 * entries).tolist()
    pairs = zip(ids, tops, strict=True)
    return [Scored(logprob, tuple(islice(pairs, n))) for logprob, n in zip(logprobs, counts.tolist(), strict=True)]


def unusable(path: Path, error: sqlite3.Error | OSError, *, opening: bool = False) -> PipelineError:
    """Return the pipeline error for an error of the database at `path`. `opening`: the run has not begun, so another
    store can be named."""
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
