"""What is written about a run while it runs, from the main thread: stage metrics, status.json, the progress line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pipeline.api.errors import ExitCode
from pipeline.api.meter import StageMeter
from pipeline.api.runtime import RunContext
from pipeline.monitor.display import Display
from pipeline.monitor.prometheus import PrometheusFile
from pipeline.monitor.snapshot import Observer, Snapshot
from pipeline.monitor.status_file import StatusFile
from pipeline.run_dir.metrics_table import STAGES_SCHEMA, MetricsTables, StageRecorder
from pipeline.run_dir.state import RunStatus

FLUSH_INTERVAL_S = 10.0
STATUS_INTERVAL_S = 1.0


class Timer:
    """Says when `interval_s` seconds have passed."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_s = 0.0

    def due(self, now_s: float) -> bool:
        """True at the first call and then once an interval."""
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._interval_s
        return True


class Telemetry:
    """Records one attempt.

    Args:
        context: of the run; its clock times everything.
        tables: its metrics.
        meters: gives the meters of all nodes and their parts.
        observer: takes the snapshots.
        display: where they are shown.
        status, prometheus: the files for other programs.
        metrics_interval_s: seconds between two rows of a stage.
    """

    def __init__(
        self,
        context: RunContext,
        tables: MetricsTables,
        meters: Callable[[], Sequence[StageMeter]],
        observer: Observer,
        display: Display,
        status: StatusFile,
        prometheus: PrometheusFile,
        metrics_interval_s: float,
    ) -> None:
        self._context = context
        self._tables = tables
        self._meters = meters
        self._observer = observer
        self._display = display
        self._status_file = status
        self._prometheus = prometheus
        self._stages = StageRecorder(tables.get("stages", STAGES_SCHEMA))
        self._record, self._flush = Timer(metrics_interval_s), Timer(FLUSH_INTERVAL_S)
        self._status = Timer(STATUS_INTERVAL_S)
        self._began = context.clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the attempt began."""
        return self._context.clock() - self._began

    def start(self) -> None:
        """Say that the attempt has begun: loading a model may take minutes."""
        self.write_status(self._observer.take(self.elapsed_s), RunStatus.RUNNING)

    def tick(self) -> None:
        """Do what is due."""
        now = self.elapsed_s
        if self._record.due(now):
            self._stages.record(now, list(self._meters()))
        if self._flush.due(now):
            for table in self._tables:
                table.flush()
        snapshot = self._take(now, ending=self._context.cancelled.is_set())
        if self._status.due(now):
            self.write_status(snapshot, RunStatus.RUNNING)
        self._display.show(snapshot)

    def finish(self) -> Snapshot:
        """Record the last interval. The caller merges the metrics tables and has status.json written."""
        now = self.elapsed_s
        self._stages.record(now, list(self._meters()))
        snapshot = self._take(now, ending=True)
        self._display.show(snapshot)
        self._display.close()
        return snapshot

    def _take(self, now: float, *, ending: bool) -> Snapshot:
        snapshot = self._observer.take(now)
        return replace(snapshot, eta_s=None, eta_unknown="the run is stopping", ending=True) if ending else snapshot

    def write_status(self, snapshot: Snapshot, status: RunStatus, exit_code: ExitCode | None = None) -> None:
        """Replace status.json, and then the file for Prometheus: what that counts, status.json can go on from."""
        self._prometheus.write(self._status_file.write(snapshot, self._meters(), status, exit_code))
