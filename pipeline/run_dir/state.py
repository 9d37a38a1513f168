"""RunState: the committed part of a run, in state.sqlite. Resume, manifest and summary are derived from it."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.api.errors import ConfigError
from pipeline.api.meter import RowCounts
from pipeline.api.records import KEPT, RejectKind, Shard
from pipeline.run_dir.chunk_record import ChunkRecord, RejectCounts
from pipeline.run_dir.state_file import StateFile, is_sealed
from pipeline.system.failpoints import Failpoint, reached
from pipeline.system.redaction import comparable

STATE_FILE = "state.sqlite"
_NEXT_CHUNK = "SELECT COALESCE(MAX(chunk) + 1, 0) FROM chunks"
_SINCE_DONE = """
attempt > (SELECT COALESCE(MAX(attempt), 0) FROM attempts
WHERE status = 'done' AND attempt < (SELECT MAX(attempt) FROM attempts))
"""
_UNPUBLISHED = """
SELECT s.path, s.chunk, s.rows, s.bytes, s.sha256 FROM shards s
LEFT JOIN published p ON p.url = ? AND p.path = s.path
WHERE p.sha256 IS NOT s.sha256 ORDER BY s.chunk, s.path LIMIT ?
"""


class RunStatus(StrEnum):
    """Status of a run, or of one of its attempts. RUNNING without a held lock: it was killed."""

    NEW = "new"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    BUDGET = "budget"
    """A budget was spent before the target was reached."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A committed file. `path`: relative to the output directory. `size_bytes`, `sha256`: of the file."""

    path: str
    chunk: int
    rows: int
    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, shard: Shard, directory: Path) -> ShardRecord:
        """Return the record of `shard`, whose run is in `directory`."""
        path = shard.path.relative_to(directory).as_posix()
        return cls(path, shard.chunk, shard.rows, shard.size_bytes, shard.sha256)


class RunState(StateFile):
    """The state of the run in one output directory; see StateFile, whose arguments it has."""

    def begin(self, fingerprint: Mapping[str, Any], job: str, *, salvaged: bool = False) -> None:
        """Record the fingerprint and job of a new run. `salvaged`: see the property."""
        self.note(fingerprint=fingerprint, job=job, run_id=uuid.uuid4().hex, salvaged=salvaged)

    def note(self, **values: object) -> None:
        """Record properties of the run by their names (config, origin, defect, identity, spent), in one transaction."""
        with self._transaction():
            for key, value in values.items():
                self._set(key, value)

    @property
    def salvaged(self) -> bool:
        """True if the state replaces a damaged one. Files of the run before stay in data/ until this run has written
        them again."""
        return self._get("salvaged", False)

    @property
    def sealed(self) -> bool:
        """True if a digest tells that the values are those that were written; False in states of earlier versions."""
        with self._lock:
            return is_sealed(self._db)

    @property
    def config(self) -> str | None:
        """Text of config.yaml; None before the first attempt."""
        return self._get("config", None)

    @property
    def origin(self) -> dict[str, Any]:
        """Directory and import path of the last start (see pipeline.config.config_yaml.origin); empty if unknown."""
        return self._get("origin", {})

    @property
    def fingerprint(self) -> dict[str, Any] | None:
        """Fingerprint of the run, without secrets that an earlier version has written; None before it has begun."""
        fingerprint = self._get("fingerprint", None)
        return None if fingerprint is None else comparable(fingerprint)

    @property
    def defect(self) -> str | None:
        """Reason why the committed results are invalid (row counts that do not balance); None if they are valid."""
        return self._get("defect", None)

    @property
    def identity(self) -> dict[str, str]:
        """What the machines that began the run compute with, by what it is; empty if that is not kept."""
        return self._get("identity", {})

    @property
    def spent(self) -> dict[str, float]:
        """Tokens, seconds and cost of all attempts, of rows that are not committed too; empty without a target."""
        return self._get("spent", {})

    @property
    def run_id(self) -> str:
        """Identifies the run; the same for all its attempts."""
        return self._get("run_id", "")

    @property
    def job(self) -> str:
        """Name of the job."""
        return self._get("job", "")

    @property
    def status(self) -> RunStatus:
        """Status of the last attempt; NEW without one."""
        row = self._one("SELECT status FROM attempts ORDER BY attempt DESC LIMIT 1")
        return RunStatus(row[0]) if row else RunStatus.NEW

    @property
    def attempts(self) -> int:
        """Number of the last attempt; 0 without one."""
        return int(self._one("SELECT COALESCE(MAX(attempt), 0) FROM attempts")[0])

    def start_attempt(self, started_at: str) -> int:
        """Record a new attempt as running. Returns its number, from 1."""
        with self._transaction():
            last = self._db.execute("SELECT COALESCE(MAX(attempt), 0) FROM attempts").fetchone()[0]
            self._db.execute("INSERT INTO attempts VALUES (?, ?, ?)", (last + 1, started_at, RunStatus.RUNNING))
        return int(last) + 1

    def end_attempt(self, attempt: int, status: RunStatus) -> None:
        """Record how `attempt` ended."""
        with self._transaction():
            self._db.execute("UPDATE attempts SET status = ? WHERE attempt = ?", (status, attempt))

    def commit(self, attempt: int, record: ChunkRecord) -> None:
        """Record a chunk in one transaction, after all its files have their final names. Raises ConfigError if the
        chunk is not the next one."""
        chunk, directory = record.chunk, self._path.parent
        with self._transaction():
            expected = self._db.execute(_NEXT_CHUNK).fetchone()[0]
            if chunk != expected:
                raise ConfigError(f"chunk {chunk} was to be committed, but the next one is {expected}")
            self._db.execute("INSERT INTO chunks VALUES (?, ?, ?)", (chunk, attempt, record.rows))
            for shard in record.shards:
                s = ShardRecord.of(shard, directory)
                self._db.execute("INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?, ?)", astuple(s))
                key = f"schema:{PurePosixPath(s.path).parent}"
                if self._db.execute("SELECT 1 FROM meta WHERE key = ?", (key,)).fetchone() is None:
                    self._set(key, {field.name: str(field.type) for field in shard.schema})
            self._db.executemany(
                "INSERT INTO rejects VALUES (?, ?, ?, ?, ?)", [(chunk, *key, n) for key, n in record.rejects.items()]
            )
            for node, state in record.states.items():
                if not state.append:
                    self._db.execute("DELETE FROM operator_state WHERE node = ?", (node,))
                self._db.execute("INSERT INTO operator_state VALUES (?, ?, ?)", (node, chunk, state.value))
            self._db.executemany(
                "INSERT INTO accounts VALUES (?, ?, ?, ?, ?) ON CONFLICT (node) DO UPDATE SET"
                " rows_in = rows_in + excluded.rows_in, expanded = expanded + excluded.expanded,"
                " rejected = rejected + excluded.rejected, rows_out = rows_out + excluded.rows_out",
                [(node, c.rows_in, c.expanded, c.rejected, c.rows_out) for node, c in record.counts.items()],
            )
            if warnings := {node: c.told for node, c in record.counts.items() if c.told}:
                row = self._db.execute("SELECT value FROM meta WHERE key = 'told'").fetchone()
                counts = {node: Counter(rows) for node, rows in json.loads(row[0]).items()} if row else {}
                for node, rows in warnings.items():
                    counts.setdefault(node, Counter()).update(rows)
                self._set("told", counts)

    def operator_states(self) -> dict[str, Iterator[bytes]]:
        """Return the committed operator states by node: the last one or, with `append`, those of all chunks in order.
        They are read one at a time, since together they may be large."""
        nodes = self._all("SELECT DISTINCT node FROM operator_state ORDER BY node")
        return {node: self._states_of(node) for (node,) in nodes}

    def _states_of(self, node: str) -> Iterator[bytes]:
        for (chunk,) in self._all("SELECT chunk FROM operator_state WHERE node = ? ORDER BY chunk", node):
            yield self._one("SELECT state FROM operator_state WHERE node = ? AND chunk = ?", node, chunk)[0]

    def accounts(self) -> dict[str, RowCounts]:
        """Return the row counts of all committed chunks, by node."""
        accounts = self._all("SELECT node, rows_in, expanded, rejected, rows_out FROM accounts ORDER BY node")
        return {node: RowCounts(*counts) for node, *counts in accounts}

    @property
    def committed_chunks(self) -> int:
        """Number of committed chunks; since chunks are committed in order, also the number of the next chunk."""
        return int(self._one(_NEXT_CHUNK)[0])

    @property
    def committed_rows(self) -> int:
        """Number of source rows in the committed chunks."""
        return int(self._one("SELECT COALESCE(SUM(rows), 0) FROM chunks")[0])

    def shards(self) -> list[ShardRecord]:
        """Return all committed files, sorted by path."""
        return [ShardRecord(*r) for r in self._all("SELECT path, chunk, rows, bytes, sha256 FROM shards ORDER BY path")]

    def rejects(self) -> RejectCounts:
        """Return the committed rejects."""
        sums = self._all("SELECT node, kind, reason, SUM(rows) FROM rejects GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3")
        return RejectCounts({(node, kind, reason): n for node, kind, reason, n in sums})

    def failures(self) -> tuple[int, int]:
        """Return what `max_error_rate` compares: errors of rows, and source rows; of a run that appends those since it
        was done the time before."""
        rows = self._one(f"SELECT COALESCE(SUM(rows), 0) FROM chunks WHERE {_SINCE_DONE}")[0]
        errors = self._one(
            f"SELECT COALESCE(SUM(r.rows), 0) FROM rejects r JOIN chunks USING (chunk) WHERE {_SINCE_DONE}"
            " AND r.kind IN (?, ?)",
            *(RejectKind.ERROR, KEPT),
        )[0]
        return int(errors), int(rows)

    def warnings(self) -> list[dict[str, object]]:
        """Return what was told about rows of committed chunks, as JSON values, as in manifest.json."""
        warnings: dict[str, dict[str, int]] = self._get("told", {})
        return [{"node": node, "warning": text, "rows": n} for node, c in warnings.items() for text, n in c.items()]

    def schemas(self) -> dict[str, dict[str, str]]:
        """Return column types by column name, for each directory of files."""
        schemas = self._all("SELECT key, value FROM meta WHERE key LIKE 'schema:%' ORDER BY key")
        return {key.removeprefix("schema:"): json.loads(value) for key, value in schemas}

    def unpublished(self, url: str, limit: int) -> list[ShardRecord]:
        """Return up to `limit` committed files that are not at `url` with their present content, oldest chunk first."""
        return [ShardRecord(*row) for row in self._all(_UNPUBLISHED, url, limit)]

    def published(self, url: str, path: str) -> str | None:
        """Return the SHA-256 of the file uploaded to `path` below `url`; None if there is none."""
        row = self._one("SELECT sha256 FROM published WHERE url = ? AND path = ?", url, path)
        return None if row is None else str(row[0])

    def note_published(self, url: str, path: str, sha256: str) -> None:
        """Record that a file with this SHA-256 was uploaded to `path` below `url`."""
        with self._sealed():
            self._db.execute("INSERT OR REPLACE INTO published VALUES (?, ?, ?)", (url, path, sha256))
        reached(Failpoint.UPLOAD_NOTED)

    def forget_published(self, paths: Sequence[str], url: str | None = None) -> None:
        """Mark these files as not uploaded, to `url` or, if it is None, to any destination."""
        with self._sealed():
            forget = "DELETE FROM published WHERE path = ? AND url = COALESCE(?, url)"
            self._db.executemany(forget, [(path, url) for path in paths])
