"""status.json: the progress of a run, replaced every second while it runs and once at its end; `status` reads it."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.api.errors import ExitCode
from pipeline.api.meter import RowCounts, StageMeter
from pipeline.monitor.snapshot import Snapshot
from pipeline.run_dir.names import STATUS
from pipeline.run_dir.state import RunState, RunStatus
from pipeline.system.atomic_files import write_atomically

Counters = dict[str, dict[str, float]]
"""By node or part: rows_in, tokens_out, busy_s ... of a run, over all its attempts."""
_KEYS = {"accounts", "counters", *(field.name for field in dataclasses.fields(Snapshot))}


class StatusFile:
    """Writes status.json of one attempt.

    Counters go on where the last attempt of the same run has left them, so that they never fall. (Of a killed attempt
    what it counted in its last second is not in them.)

    Args:
        directory: of the run.
        state: of the run; its committed chunks are told.
        attempt: number of the attempt.
        started_at: when it began, ISO 8601.
    """

    def __init__(self, directory: Path, state: RunState, attempt: int, started_at: str) -> None:
        self._path = directory / STATUS
        self._state = state
        self._about = {
            "job": state.job,
            "run_id": state.run_id,
            "attempt": attempt,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started_at": started_at,
        }
        before = read_status(directory) or {}
        self._earlier: Counters = before["counters"] if before.get("run_id") == state.run_id else {}
        self._committed_before = state.accounts()

    def counters(self, meters: Sequence[StageMeter]) -> Counters:
        """The counters of the run up to now."""
        found = {name: dict(values) for name, values in self._earlier.items()}
        for meter in meters:
            values = {**meter.counts(), **meter.clock.seconds()}
            del values["queue_rows"]
            before = self._earlier.get(meter.name, {})
            found[meter.name] = {key: round(before.get(key, 0) + value, 3) for key, value in values.items()}
        return found

    def accounts(self, meters: Sequence[StageMeter]) -> dict[str, RowCounts]:
        """By node, what became of the rows that earlier attempts have committed, and of those of this one so far."""
        found = {}
        for meter in meters:
            if "/" not in meter.name:
                now = RowCounts(meter.rows_in, meter.expanded, meter.rejected, meter.rows_out)
                now.add(self._committed_before.get(meter.name, RowCounts()))
                found[meter.name] = now
        return found

    def write(
        self, snapshot: Snapshot, meters: Sequence[StageMeter], status: RunStatus, exit_code: ExitCode | None = None
    ) -> dict[str, Any]:
        """Replace the file. Returns what it says. When the attempt has ended, rows are those of the committed chunks.

        Raises:
            StorageError: it cannot be written.
        """
        accounts = self.accounts(meters) if status is RunStatus.RUNNING else self._state.accounts()
        values: dict[str, Any] = {
            "state": status.value,
            "exit_code": exit_code,
            **self._about,
            "updated_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "committed_chunks": self._state.committed_chunks,
            "committed_rows": self._state.committed_rows,
            **dataclasses.asdict(snapshot),
            "accounts": {name: dataclasses.asdict(counts) for name, counts in accounts.items()},
            "counters": self.counters(meters),
        }
        write_atomically(self._path, json.dumps(values, indent=1) + "\n")
        return values


def read_status(directory: Path) -> Mapping[str, Any] | None:
    """The values of status.json; None if it is not there, cannot be read, or is of a version with other keys."""
    try:
        found = json.loads((directory / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.keys() >= _KEYS else None
