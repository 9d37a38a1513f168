"""status.json: the progress of a run, replaced every second and at the end; the command `status` reads it."""

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
"""By node or part: rows_in, tokens_out, busy_s ... of the run, over all its attempts."""
_KEYS = {"accounts", "counters", *(field.name for field in dataclasses.fields(Snapshot))}


class StatusFile:
    """Writes status.json of one attempt.

    Counters continue from those of the attempt before, so they never fall. (The last second of a killed attempt is not
    counted.)

    Args:
        directory: of the run.
        state: of the run.
        attempt: number of the attempt.
        started_at: start of the attempt, ISO 8601.
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
        """Return the counters of the run, earlier attempts included."""
        found = {name: dict(values) for name, values in self._earlier.items()}
        for meter in meters:
            values = {**meter.counts(), **meter.clock.seconds()}
            del values["queue_rows"]
            before = self._earlier.get(meter.name, {})
            found[meter.name] = {key: round(before.get(key, 0) + value, 3) for key, value in values.items()}
        return found

    def accounts(self, meters: Sequence[StageMeter]) -> dict[str, RowCounts]:
        """Return row counts by node: of earlier attempts the committed rows, of this one all rows so far."""
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
        """Replace the file. Returns its values. When the attempt has ended, row counts are of committed chunks only.

        Raises:
            StorageError: the file cannot be written.
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
    """Return the values of status.json; None if it is missing, damaged or of a version with other keys."""
    try:
        found = json.loads((directory / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.keys() >= _KEYS else None
