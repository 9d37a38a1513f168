"""Recorder: record and show a running attempt: stage metrics, status.json, Prometheus file, progress line."""

from __future__ import annotations

from dataclasses import replace

from pipeline.api.errors import ExitCode
from pipeline.api.runtime import RunContext
from pipeline.config.build import Job
from pipeline.dataflow.executor import Executor
from pipeline.monitor.display import make_display
from pipeline.monitor.prometheus import PrometheusFile
from pipeline.monitor.snapshot import Observer, Snapshot
from pipeline.monitor.status_file import StatusFile
from pipeline.run_dir.metrics_table import STAGES_SCHEMA, MetricsTables, StageRecorder
from pipeline.run_dir.state import RunState, RunStatus

FLUSH_INTERVAL_S = 10.0
STATUS_INTERVAL_S = 1.0


class Recorder:
    """Records one attempt, from the main thread.

    Args:
        job: the job.
        state: of the run, with the chunks that earlier attempts have committed.
        context: of the run; its clock measures all times.
        tables: the metrics tables.
        executor: of the attempt.
        started_at: start of the attempt, ISO 8601.
    """

    def __init__(
        self,
        job: Job,
        state: RunState,
        context: RunContext,
        tables: MetricsTables,
        executor: Executor,
        started_at: str,
    ) -> None:
        self._context = context
        self._tables = tables
        self._executor = executor
        rows, rejects = state.committed_rows, state.rejects()
        self._observer = Observer(job.graph, executor, context.statuses, executor.tally, rows, rejects)
        self._display = make_display(job.settings.progress)
        self._status_file = StatusFile(job.directory, state, context.attempt, started_at)
        self._prometheus = PrometheusFile(job.settings.prometheus_file)
        self._stages = StageRecorder(tables.get("stages", STAGES_SCHEMA))
        self._intervals_s = {
            "metrics": job.settings.metrics_interval_s,
            "flush": FLUSH_INTERVAL_S,
            "status": STATUS_INTERVAL_S,
        }
        self._next_s = dict.fromkeys(self._intervals_s, 0.0)
        self._began = context.clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the attempt began."""
        return self._context.clock() - self._began

    def start(self) -> None:
        """Write the first status.json, before models are loaded, which may take minutes."""
        self.write_status(self._observer.take(self.elapsed_s), RunStatus.RUNNING)

    def tick(self) -> None:
        """Record and show whatever is due by its interval."""
        now = self.elapsed_s
        if self._is_due("metrics", now):
            self._stages.record(now, self._executor.meters)
        if self._is_due("flush", now):
            for table in self._tables:
                table.flush()
        snapshot = self._take(now, ending=self._context.cancelled.is_set())
        if self._is_due("status", now):
            self.write_status(snapshot, RunStatus.RUNNING)
        self._display.show(snapshot)

    def finish(self) -> Snapshot:
        """Record the last interval. The caller then merges the metrics tables and calls `write_status`."""
        now = self.elapsed_s
        self._stages.record(now, self._executor.meters)
        snapshot = self._take(now, ending=True)
        self._display.show(snapshot)
        self._display.close()
        return snapshot

    def write_status(self, snapshot: Snapshot, status: RunStatus, exit_code: ExitCode | None = None) -> None:
        """Replace status.json, then the Prometheus file. In this order the counters in it are never ahead of
        status.json, from which the next attempt continues them."""
        self._prometheus.write(self._status_file.write(snapshot, self._executor.meters, status, exit_code))

    def _is_due(self, what: str, now_s: float) -> bool:
        """Return True at the first call and then once per interval."""
        due = now_s >= self._next_s[what]
        if due:
            self._next_s[what] = now_s + self._intervals_s[what]
        return due

    def _take(self, now: float, *, ending: bool) -> Snapshot:
        snapshot = self._observer.take(now)
        return replace(snapshot, eta_s=None, eta_unknown="the run is stopping", ending=True) if ending else snapshot
