"""Recorder: record and show a running attempt: stage metrics, status.json, Prometheus file, progress line.

status.json has the progress of the run, and is replaced every second and at the end; the command `status` reads it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.api.errors import ConfigError, ExitCode, StorageError
from pipeline.api.meter import RowCounts
from pipeline.api.numbers import added
from pipeline.api.runtime import OF_WORKERS, RunContext
from pipeline.config.build import CheckedJob
from pipeline.dataflow.executor import Executor
from pipeline.monitor.display import make_display
from pipeline.monitor.prometheus import exposition
from pipeline.monitor.snapshot import Observer, Snapshot
from pipeline.monitor.summary import Outcome
from pipeline.run_dir.manifest import read_values
from pipeline.run_dir.metrics_table import MeterRecorder, MetricsTables
from pipeline.run_dir.names import STATUS
from pipeline.run_dir.state import RunState, RunStatus
from pipeline.system.atomic_files import write_atomically
from pipeline.system.known_secrets import hidden

FLUSH_INTERVAL_S = 10.0
STATUS_INTERVAL_S = 1.0
_OF_STATUS = ("accounts", "counters", "caches", "histograms", "steps")
_KEYS = {*_OF_STATUS, *(field.name for field in fields(Snapshot) if field.name != "kept")}
"""Keys of status.json in every version that can be read."""
log = logging.getLogger(__name__)


class Recorder:
    """Records one attempt, from the main thread. The clock of `context` measures all times. `started_at`: start of the
    attempt, ISO 8601."""

    def __init__(
        self,
        job: CheckedJob,
        state: RunState,
        context: RunContext,
        tables: MetricsTables,
        executor: Executor,
        started_at: str,
    ) -> None:
        self._state = state
        self._context = context
        self._tables = tables
        self._executor = executor
        self._observer = Observer(job.graph, executor, context.statuses, state.committed_rows, state.rejects())
        self._display = make_display(job.settings.progress)
        self._recorder = MeterRecorder(tables)
        self._intervals_s = {
            "metrics": job.settings.metrics_interval_s,
            "flush": FLUSH_INTERVAL_S,
            "status": STATUS_INTERVAL_S,
        }
        self._next_s = dict.fromkeys(self._intervals_s, 0.0)
        self._began = context.clock()
        self._directory = job.directory
        self._about = {
            "job": state.job,
            "run_id": state.run_id,
            "attempt": context.attempt,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started_at": started_at,
            "steps": job.graph.steps,
        }
        before = read_status(job.directory) or {}
        self._before = before if before.get("run_id") == state.run_id else {}
        self._accounts_before = state.accounts()
        self._prometheus_file = job.settings.prometheus_file
        self._warned = False
        self._target, self._cost_noted = job.graph.target, 0.0
        if self._target is not None:
            self._target.spent_before(state.spent)

    def start(self) -> None:
        """Write the first status.json, before models are loaded, which may take minutes."""
        self.write_status(self._observer.take(self._now_s()), RunStatus.RUNNING)

    def tick(self) -> Snapshot:
        """Record and show whatever is due by its interval. Returns the progress."""
        now = self._now_s()
        if self._is_due("metrics", now):
            self._recorder.stages(now, self._executor.meters)
        if self._is_due("flush", now):
            self._recorder.histograms(now, self._executor.meters)
            for table in self._tables:
                table.flush()
        snapshot = self._take(now, ending=self._context.cancelled.is_set())
        paid = self._target is not None and self._target.cost > self._cost_noted
        if self._is_due("status", now):
            self._note_spent()
            self.write_status(snapshot, RunStatus.RUNNING)
        elif paid:
            self._note_spent()
        self._display.show(snapshot)
        return snapshot

    def finish(self) -> Snapshot:
        """Record the last interval. The caller then merges the metrics tables and calls `write_status`."""
        now = self._now_s()
        self._recorder.stages(now, self._executor.meters)
        self._recorder.histograms(now, self._executor.meters)
        snapshot = self._take(now, ending=True)
        self._display.show(snapshot)
        with suppress(StorageError):  # of the last second; what cannot be written is told with the outcome
            self._note_spent()
        self._display.close()
        return snapshot

    def _note_spent(self) -> None:
        """Keep what the budgets have spent: a killed attempt counts, though none of its rows is committed."""
        if self._target is not None:
            self._cost_noted = self._target.cost
            self._state.note(spent=self._target.sums)

    def write_status(self, snapshot: Snapshot, status: RunStatus, exit_code: ExitCode | None = None) -> None:
        """Replace status.json, then the Prometheus file. In this order the counters in it are never ahead of
        status.json, from which the next attempt continues them. When the attempt has ended, row counts are of committed
        chunks only. Raises StorageError if status.json cannot be written."""
        state = self._state
        accounts = self._accounts() if status is RunStatus.RUNNING else state.accounts()
        values: dict[str, Any] = {
            "state": status.value,
            "exit_code": exit_code,
            **self._about,
            "updated_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "committed_chunks": state.committed_chunks,
            "committed_rows": state.committed_rows,
            **asdict(snapshot),
            "accounts": {name: asdict(counts) for name, counts in accounts.items()},
            **self._counted(),
            "numbers": {name: asdict(number) for name, number in self._context.numbers.copy().items() if number.about},
        }
        # A line a key; Python's encoder indents without its C code, which takes five times as long.
        lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
        write_atomically(self._directory / STATUS, hidden(f"{{\n{lines}\n}}\n"))
        if self._prometheus_file is None:
            return
        try:
            write_atomically(Path(self._prometheus_file), hidden(exposition(values)))
        except StorageError as error:
            if not self._warned:
                self._warned = True
                log.warning("prometheus_file is not kept up to date: %s", error)

    def _accounts(self) -> dict[str, RowCounts]:
        """Return row counts by node: of earlier attempts the committed rows, of this one all rows so far."""
        accounts = {}
        for meter in self._executor.meters:
            if "/" not in meter.name:
                now = RowCounts(meter.rows_in, meter.expanded, meter.rejected, meter.rows_out)
                now.add(self._accounts_before.get(meter.name, RowCounts()))
                accounts[meter.name] = now
        return accounts

    def _counted(self) -> dict[str, dict[str, Any]]:
        """Return counters and clocks, caches and histograms by node or part, and the totals of the run. They continue
        from status.json of the attempt before, so they never fall; the last second of a killed attempt is not
        counted."""
        counted: dict[str, dict[str, Any]] = {"counters": {}, "caches": {}, "histograms": {}}
        for meter in self._executor.meters:
            reading = meter.read()
            counted["counters"][meter.name] = {k: v for k, v in reading["counts"].items() if k != "queue_rows"}
            counted["caches"] |= {meter.name: reading["caches"]} if reading["caches"] else {}
            times = {
                name: {"buckets": times["buckets"], "sum_s": sum(times["sums_s"].values())}
                for name, times in reading["histograms"].items()
            }
            counted["histograms"] |= {meter.name: times} if times else {}
        counted["totals"] = self._context.counted()
        workers = {k.removeprefix(OF_WORKERS): v for k, v in counted["totals"].items() if k.startswith(OF_WORKERS)}
        earlier = {kind: self._before.get(kind, {}) for kind in counted}
        return {**added(earlier, counted), "workers": workers}

    def _now_s(self) -> float:
        """Return the seconds since the attempt began."""
        return self._context.clock() - self._began

    def _is_due(self, task: str, now_s: float) -> bool:
        """Return True at the first call and then once per interval."""
        due = now_s >= self._next_s[task]
        if due:
            self._next_s[task] = now_s + self._intervals_s[task]
        return due

    def _take(self, now: float, *, ending: bool) -> Snapshot:
        snapshot = self._observer.take(now)
        return replace(snapshot, eta_s=None, eta_unknown="the run is stopping", ending=True) if ending else snapshot


def check_prometheus_file(path: str | None) -> None:
    """Check before a run that the file can be created. Raises ConfigError if its directory does not exist."""
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise ConfigError(
            f"prometheus_file={path}: there is no directory {Path(path).parent}; make it, or name the one that"
            " node_exporter was given as --collector.textfile.directory"
        )


def write_without_attempt(path: Path, outcome: Outcome) -> None:
    """Write into the Prometheus file at `path` how a run ended that was refused, or found nothing to do: its exit code,
    now, beside what the run in the directory has counted before. A failure is logged."""
    values: dict[str, Any] = {"counters": {}, "caches": {}, "histograms": {}, "nodes": [], "rows_total": None}
    values |= dict.fromkeys(("errors", "filtered", "rows", "committed_rows", "attempt"), 0)
    status = read_status(outcome.directory) or {}
    if status.get("job") == outcome.job:
        values |= status
    values |= {"job": outcome.job, "state": outcome.status.value, "exit_code": int(outcome.exit_code), "eta_s": None}
    values["updated_at"] = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        if path.absolute().parent.is_dir():  # else this is what was refused
            write_atomically(path, exposition(values))
    except StorageError as error:
        log.warning("prometheus_file is not kept up to date: %s", error)


def read_status(directory: Path) -> Mapping[str, Any] | None:
    """Return the values of status.json; None if it is missing, damaged or of a version with other keys."""
    values = read_values(directory / STATUS)
    return values if values.keys() >= _KEYS else None
