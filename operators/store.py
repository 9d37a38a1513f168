"""CompletionStore: finished generations in SQLite, found again by what made them."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from operators.decoding.model import TokenIds
from operators.decoding.sampling.logprobs import Scored
from operators.logprobs import from_bytes, to_bytes
from pipeline.errors import InputError, PipelineError
from pipeline.failpoints import Failpoint, reached
from pipeline.storage import is_of_disk, storage_error

FLUSH_ROWS = 64
FLUSH_S = 1.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS completions (
    key BLOB PRIMARY KEY, ids BLOB NOT NULL, text TEXT NOT NULL, finish_reason TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logprobs (key BLOB PRIMARY KEY, scores BLOB NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class StoredCompletion:
    """A finished generation."""

    ids: Sequence[int] | TokenIds
    text: str
    finish_reason: str
    scores: Sequence[Scored] | None = None
    """Log-probabilities of the tokens, where they were asked for."""


class CompletionKeys:
    """Content keys of rows that share a model, a strategy and an engine.

    Args:
        context: everything beside the row's own values that can change its text.
    """

    def __init__(self, *context: object) -> None:
        self._base = hashlib.blake2b(repr(context).encode(), digest_size=16)

    def key(self, parameters: bytes, prompt: TokenIds) -> bytes:
        """16 bytes that stand for a row. `parameters`: its sampling values, with the seed unless it is greedy."""
        digest = self._base.copy()
        digest.update(len(parameters).to_bytes(4, "little"))
        digest.update(parameters)
        digest.update(np.ascontiguousarray(prompt).data)
        return digest.digest()


class CompletionStore:
    """Keeps completions by key. Safe to use from several threads and several processes.

    What is put is durable within FLUSH_S seconds or FLUSH_ROWS rows, if `flush_due` is called at least that often.

    Args:
        path: the database; made if it is not there.
        sync: `process` survives the death of the process, `power` also that of the machine.

    Raises:
        InputError: the file is no such database or cannot be written.
        StorageError: there is no room for it.
    """

    def __init__(self, path: Path, sync: str = "process") -> None:
        self._lock = threading.Lock()
        self._unsaved: dict[bytes, StoredCompletion] = {}
        self._flushed_at = time.monotonic()
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=60)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute(f"PRAGMA synchronous={'FULL' if sync == 'power' else 'NORMAL'}")
            self._database.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise unusable(path, error, opening=True) from error

    def find(self, keys: Sequence[bytes]) -> dict[bytes, StoredCompletion]:
        """The completions of those `keys` that are known."""
        with self._lock, self._reading():
            found = {k: self._unsaved[k] for k in keys if k in self._unsaved}
            for start in range(0, len(keys), 500):
                some = keys[start : start + 500]
                query = (
                    "SELECT key, ids, text, finish_reason, scores FROM completions LEFT JOIN logprobs USING (key)"
                    f" WHERE key IN ({','.join('?' * len(some))})"
                )
                for key, ids, text, reason, scores in self._database.execute(query, some):
                    scored = None if scores is None else from_bytes(scores)
                    found[key] = StoredCompletion(np.frombuffer(ids, np.int32), text, reason, scored)
        return found

    def put(self, completions: Mapping[bytes, StoredCompletion]) -> None:
        """Keep `completions`; written when enough have come or time has passed."""
        with self._lock:
            self._unsaved.update(completions)
        self.flush_due()

    def flush_due(self) -> None:
        """Write what waits, if FLUSH_ROWS or FLUSH_S is reached."""
        with self._lock:
            if len(self._unsaved) >= FLUSH_ROWS or time.monotonic() - self._flushed_at >= FLUSH_S:
                self._flush()

    def close(self) -> None:
        """Write what waits and close the database."""
        with self._lock:
            try:
                self._flush()
            finally:
                self._database.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise unusable(self._path, error) from error

    def _flush(self) -> None:
        self._flushed_at = time.monotonic()
        if not self._unsaved:
            return
        rows = [(k, np.asarray(c.ids, np.int32).tobytes(), c.text, c.finish_reason) for k, c in self._unsaved.items()]
        scores = [(k, to_bytes(c.scores)) for k, c in self._unsaved.items() if c.scores is not None]
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR REPLACE INTO logprobs VALUES (?, ?)", scores)
            self._database.executemany("INSERT OR REPLACE INTO completions VALUES (?, ?, ?, ?)", rows)
            reached(Failpoint.JOURNAL_COMMITTING)
            self._database.execute("COMMIT")
        except BaseException as error:
            if self._database.in_transaction:  # SQLite has ended it itself when the disk was full
                self._database.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise unusable(self._path, error) from error
            raise
        reached(Failpoint.JOURNAL_COMMITTED)
        self._unsaved.clear()


def unusable(path: Path, error: sqlite3.Error | OSError, *, opening: bool = False) -> PipelineError:
    """What an error of the database at `path` means.

    Args:
        opening: the run has not begun: another store can be named.
    """
    if isinstance(error, OSError) or is_of_disk(error):
        failed = storage_error(path, error)
        if failed.full or not opening:
            return failed
    if opening:
        return InputError(f"the completion store {path} cannot be used: {error}; name another with store.path=")
    return InputError(
        f"the completion store {path} fails: {error}; run the same command again. If it is damaged move it away first"
        f" (in an output directory python -m pipeline verify {path.parent} repair=true does that)"
    )
