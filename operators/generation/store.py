"""CompletionStore: finished completions in SQLite, by content key."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from operators.engine.backend.interface import TokenIds
from operators.engine.sampling.logprobs import Scored
from pipeline.api.errors import InputError, PipelineError
from pipeline.system.disk_errors import is_of_disk, storage_error
from pipeline.system.failpoints import Failpoint, reached

FLUSH_ROWS = 64
FLUSH_S = 0.5
_FORMAT = 2
_AT_ONCE = 500
"""Keys per query."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS completions (
    key BLOB PRIMARY KEY, ids BLOB NOT NULL, text TEXT NOT NULL, finish_reason TEXT NOT NULL,
    least INTEGER NOT NULL, run TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logprobs (key BLOB PRIMARY KEY, scores BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settings (digest BLOB PRIMARY KEY) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class StoredCompletion:
    """A finished generation."""

    ids: Sequence[int] | TokenIds
    text: str
    finish_reason: str
    scores: Sequence[Scored] | None = None
    """Log-probabilities of the tokens, if they were asked for."""
    least: int = 0
    """The smallest max_tokens that does not cut the text."""
    run: str = ""
    """Name of the run that made it."""


class CompletionStore:
    """Keeps completions by key. Safe to use from several threads and several processes.

    Completions are written by a thread of its own, at the latest after FLUSH_S seconds and at once when there are
    FLUSH_ROWS.

    Args:
        path: the database; made if it is not there.
        sync: `process` survives the death of the process, `power` also that of the machine.

    Raises:
        InputError: the file is no such database or cannot be written.
        StorageError: there is no room for it.
    """

    def __init__(self, path: Path, sync: str = "process") -> None:
        self._path = path
        self._changed = threading.Condition()
        self._unsaved: dict[bytes, StoredCompletion] = {}
        self._writing: dict[bytes, StoredCompletion] = {}
        self._new_settings: set[bytes] = set()
        self._reading = threading.Lock()
        self._closing = False
        self._failure: PipelineError | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer, self._reader = self._connect(sync), self._connect(sync)
            self._writer.executescript(_SCHEMA)
            self.settings = {bytes(d) for (d,) in self._reader.execute("SELECT digest FROM settings")}
            """Digests of the settings under which something was generated before."""
        except (sqlite3.Error, OSError) as error:
            raise unusable(path, error, opening=True) from error
        self._thread = threading.Thread(target=self._write_on, name="journal")
        self._thread.start()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, StoredCompletion]:
        """Return the completions of those `keys` that are in the store."""
        with self._changed:
            self._raise_failure()
            fresh = self._writing | self._unsaved
        found = {k: fresh[k] for k in keys if k in fresh}
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
                found.setdefault(key, stored)
        return found

    def put(self, completions: Mapping[bytes, StoredCompletion]) -> None:
        """Keep `completions`.

        Raises:
            PipelineError: earlier completions cannot be written.
        """
        with self._changed:
            self._raise_failure()
            before = len(self._unsaved)
            self._unsaved.update(completions)
            if before < FLUSH_ROWS <= len(self._unsaved):
                self._changed.notify_all()

    def note_settings(self, digests: set[bytes]) -> None:
        """Store the digests of settings that rows are generated with."""
        with self._changed:
            self._new_settings |= digests

    def close(self) -> None:
        """Write what is pending, and close the database.

        Raises:
            PipelineError: it cannot be written.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._writer.close()
        self._reader.close()
        self._raise_failure()

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

    def _write_on(self) -> None:
        """Run the writer's thread."""
        try:
            while self._wait():
                self._write()
            self._write()
        except (sqlite3.Error, OSError) as error:
            with self._changed:
                self._failure = unusable(self._path, error)
                self._failure.__cause__ = error

    def _wait(self) -> bool:
        """Wait until enough completions are pending or time has passed. Return False when the store is being closed."""
        with self._changed:
            until = time.monotonic() + FLUSH_S
            while not self._closing and len(self._unsaved) < FLUSH_ROWS and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._closing

    def _write(self) -> None:
        with self._changed:
            self._writing, self._unsaved = self._unsaved, {}
            new_settings, self._new_settings = self._new_settings, set()
        if self._writing or new_settings:
            self._transact(self._writing, new_settings)
        with self._changed:
            self._writing = {}

    def _transact(self, completions: Mapping[bytes, StoredCompletion], new_settings: set[bytes]) -> None:
        rows = [
            (key, np.asarray(c.ids, np.int32).tobytes(), c.text, c.finish_reason, c.least, c.run)
            for key, c in completions.items()
        ]
        scores = [(key, to_bytes(c.scores)) for key, c in completions.items() if c.scores is not None]
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

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


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
