"""What of a run is at a URL already, in state.sqlite: so a resumed run uploads what is missing, and nothing twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from pipeline.run_dir.state import STATE_FILE, ShardRecord
from pipeline.system.disk_errors import using_database
from pipeline.system.failpoints import Failpoint, reached

_MISSING = """
SELECT s.path, s.chunk, s.rows, s.bytes, s.sha256 FROM shards s
LEFT JOIN published p ON p.url = ? AND p.path = s.path
WHERE p.sha256 IS NOT s.sha256 ORDER BY s.chunk, s.path LIMIT ?
"""


class Published:
    """Which files are at `url`, with the hash that they had when they were put there.

    Has a connection of its own, so that the thread that uploads shares nothing with the one that commits. Methods may
    be called from one thread at a time, and may raise StorageError and DamagedError.
    """

    def __init__(self, directory: Path, url: str) -> None:
        self._path = directory / STATE_FILE
        self._url = url
        with using_database(self._path):
            self._db = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None, timeout=30)
            self._db.execute("PRAGMA synchronous = FULL")

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def missing(self, limit: int) -> list[ShardRecord]:
        """Committed files that are not there as they are now, the oldest chunk first; `limit` of them at most."""
        with using_database(self._path):
            return [ShardRecord(*row) for row in self._db.execute(_MISSING, (self._url, limit))]

    def sha256(self, path: str) -> str | None:
        """Of what was put at `path`; None for nothing."""
        with using_database(self._path):
            row = self._db.execute(
                "SELECT sha256 FROM published WHERE url = ? AND path = ?", (self._url, path)
            ).fetchone()
        return None if row is None else str(row[0])

    def note(self, path: str, sha256: str) -> None:
        """`path` is there with these bytes."""
        with using_database(self._path):
            self._db.execute("INSERT OR REPLACE INTO published VALUES (?, ?, ?)", (self._url, path, sha256))
        reached(Failpoint.UPLOAD_NOTED)

    def forget(self, paths: Sequence[str]) -> None:
        """These are to be put there again."""
        with using_database(self._path):
            self._db.executemany(
                "DELETE FROM published WHERE url = ? AND path = ?", [(self._url, path) for path in paths]
            )


def forget_everywhere(directory: Path, chunks: Sequence[int]) -> None:
    """The files of `chunks` were made again: they are to be put again wherever they have been published.

    Raises:
        StorageError, DamagedError: state.sqlite cannot be written.
    """
    path = directory / STATE_FILE
    with using_database(path):
        db = sqlite3.connect(path, isolation_level=None, timeout=30)
        try:
            db.executemany(
                "DELETE FROM published WHERE path IN (SELECT path FROM shards WHERE chunk = ?)", [(k,) for k in chunks]
            )
        finally:
            db.close()
