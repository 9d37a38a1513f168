"""A worker: the executor of each segment over the pieces that it is sent. It writes no files."""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.api.numbers import added
from pipeline.api.runtime import Resources, RunContext, Services
from pipeline.cluster.identity import WorkerIdentity, check_equal, program
from pipeline.cluster.pieces import SegmentTables, WorkerReport, WorkRequest, WorkResult
from pipeline.cluster.rpc import portable
from pipeline.cluster.segment_runner import SegmentPlan, SegmentRunner
from pipeline.system.deadlines import stacks
from pipeline.system.machine import count_memory

LOGGERS = ("",)
"""Whose records the driver's log gets: the root's, which are those of all."""
ALIKE = "Have the same version of the project, and the same model file at this path, on each machine"


@dataclass(frozen=True)
class WorkerPlan:
    """Everything that a worker needs to begin.

    Args:
        run_id, attempt, directory: of the run; the directory is the driver's, and only names things.
        content: the driver's code and model files, by what they are; a worker has the same.
    """

    segments: Sequence[SegmentPlan]
    run_id: str
    attempt: int
    directory: str
    content: Mapping[str, str]


class Worker:
    """Runs the segments of a job on the pieces that it is given. Thread-safe.

    Args:
        plan: from the driver.
        services: the way to objects of the driver.
        host: the machine that it runs on, for messages.
    """

    def __init__(self, plan: WorkerPlan, services: Services, host: str = platform.node()) -> None:
        self._plan, self._services, self._host = plan, services, host
        self._process, self._resources = Resources(), _Lent()
        self._log = _Log()
        self._segments: dict[str, SegmentRunner] = {}

    def open(self) -> WorkerIdentity:
        """Load models and begin; return what must be the same in all workers. Raises NotOpened if an operator cannot be
        opened; WorkerFailed if another program or model file is here than where the driver is."""
        try:
            return WorkerIdentity(self._host, program(), self._opened())
        except BaseException as error:
            raise portable(error, self._host) from error

    def _opened(self) -> dict[str, str]:
        for logger in map(logging.getLogger, LOGGERS):
            logger.addHandler(self._log)
            logger.setLevel(logging.INFO)
        self._segments = {segment.name: self._runner_of(segment) for segment in self._plan.segments}
        content = {key: value for segment in self._segments.values() for key, value in segment.content().items()}
        check_equal("the driver", self._plan.content, "a worker", content, ALIKE)
        nodes: dict[str, str] = {}
        for segment in self._segments.values():
            segment.start()
            nodes |= segment.identities()
        return nodes

    def compute(self, task: WorkRequest) -> WorkResult:
        """Compute a piece. Returns when it is done; several calls at a time share the slots. Raises WorkerFailed if an
        operator raised; Cancelled if the worker was stopped."""
        return self._segments[task.segment].compute(task).result()

    def report(self) -> WorkerReport:
        """Return counters, new rows of metrics tables, and new log records."""
        segments = self._segments.values()
        meters = {meter.name: meter.read() for segment in segments for meter in segment.meters}
        totals = added(*(segment.context.counted() for segment in segments))
        numbers = {name: number for segment in segments for name, number in segment.context.numbers.copy().items()}
        tables = [rows for segment in segments for rows in segment.tables.take()]
        return WorkerReport(meters, totals, numbers, tables, self._log.take())

    def stacks(self) -> str:
        """Return the stack of every thread of this process."""
        return stacks()

    def stop(self) -> WorkerReport:
        """Finish the current step and stop; return the last report."""
        for segment in self._segments.values():
            segment.stop()
        self._resources.close_lent()
        report = self.report()
        self._process.close()
        for logger in map(logging.getLogger, LOGGERS):
            logger.removeHandler(self._log)
        return report

    def _runner_of(self, segment: SegmentPlan) -> SegmentRunner:
        plan, tables = self._plan, SegmentTables()
        context = RunContext(
            Path(plan.directory),
            self._process,
            tables.get,
            plan.attempt,
            plan.run_id,
            self._services,
            resources=self._resources,
        )
        count_memory(context)
        return SegmentRunner(segment, context, tables)


class _Lent(Resources):
    """Resources of all segments of a worker: the end of one segment's executor does not close them."""

    def close(self) -> None:
        pass

    def close_lent(self) -> None:
        """Close all objects."""
        super().close()


class _Log(logging.Handler):
    """Collects log records for the driver's log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._records: list[tuple[int, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._records.append((record.levelno, record.name, record.getMessage()))
        except Exception:  # its arguments do not fit its text
            self.handleError(record)

    def take(self) -> list[tuple[int, str, str]]:
        """Return the records since the last call."""
        records, self._records = self._records, []
        return records
