"""The end of an attempt: what is recorded of it, however it ended and whatever the disk still takes."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.api.errors import ExitCode, StorageError
from pipeline.dataflow.graph import Graph
from pipeline.dataflow.runtime import RunContext
from pipeline.dataflow.target import NODE as TARGET
from pipeline.monitor.recorder import Telemetry
from pipeline.monitor.run_log import FILE_ONLY
from pipeline.monitor.snapshot import Snapshot
from pipeline.monitor.summary import Outcome, too_many_errors
from pipeline.run_dir.manifest import digest, write_manifest
from pipeline.run_dir.names import DATA
from pipeline.run_dir.state import RunState, RunStatus, errors_of
from pipeline.settings import JobSettings
from pipeline.system.failpoints import Failpoint, reached
from pipeline.system.machine import RUN_SCHEMA, machine, versions
from pipeline.system.terminal import say

log = logging.getLogger(__name__)


def exit_code_of(status: RunStatus, state: RunState, max_error_rate: float) -> ExitCode:
    """DONE, unless the run has come to its end and has too many errors, or too few rows for its target."""
    ended = status in (RunStatus.DONE, RunStatus.BUDGET)
    if ended and too_many_errors(errors_of(state.rejects()), state.committed_rows, max_error_rate):
        return ExitCode.REJECTS
    return ExitCode.BUDGET if status is RunStatus.BUDGET else ExitCode.DONE


@dataclass
class Ending:
    """How an attempt ended."""

    status: RunStatus
    error: BaseException | None = None
    unwritten: list[Path] = field(default_factory=list)
    """What could not be written any more after the error."""

    def step(self, do: Callable[[], object]) -> None:
        """One step of the accounting. If it cannot be written, the next ones are tried all the same; it is how the
        attempt ended unless something else ended it before."""
        try:
            do()
        except StorageError as error:
            if self.error is None:
                log.error("%s", error, extra=FILE_ONLY)
                self.status, self.error = RunStatus.FAILED, error
            else:
                log.debug("%s", error)
                self.unwritten.append(error.path)


def settled(shot: Snapshot, state: RunState, status: RunStatus) -> Snapshot:
    """`shot` of an attempt that has ended with `status`: its counts of rows are those of the committed chunks."""
    rejects, rows = state.rejects(), state.committed_rows
    errors = errors_of(rejects)
    done = status is RunStatus.DONE
    total = rows if done and shot.wanted is None else shot.rows_total
    shot = replace(
        shot,
        rows=rows,
        rows_total=total,
        rows_total_exact=done or shot.rows_total_exact,
        fraction=rows / total if total else None,
        errors=errors,
        filtered=rejects.total() - errors,
        eta_s=None,
        eta_unknown="",
    )
    if shot.wanted is None:
        return shot
    accounts = state.accounts()
    accepted = accounts[TARGET].rows_out if TARGET in accounts else 0
    return replace(shot, accepted=accepted, fraction=accepted / shot.wanted)


class Accounting:
    """Closes the books of one attempt.

    Args:
        settings, directory, state, context: of the run.
        telemetry: of the attempt.
        started_at: when it began, ISO 8601.
        graph: that is executed.
    """

    def __init__(
        self,
        settings: JobSettings,
        directory: Path,
        state: RunState,
        context: RunContext,
        telemetry: Telemetry,
        started_at: str,
        graph: Graph,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._state = state
        self._context = context
        self._telemetry = telemetry
        self._started_at = started_at
        self._graph = graph
        self._rows_before, self._rejects_before = state.committed_rows, state.rejects()

    def close(self, ending: Ending) -> Outcome:
        """Write metrics, manifest and status, and last, when all of that is there, how the attempt ended."""
        worked_on = self._telemetry.finish()
        context, state = self._context, self._state
        snapshot = settled(worked_on, state, ending.status)
        outcome = self._outcome(ending, snapshot, worked_on.rows - snapshot.rows)
        self._record(outcome)
        for table in context.tables.values():
            ending.step(table.merge)
        ending.step(lambda: write_manifest(self._directory, state, ending.status))
        ending.step(lambda: self._telemetry.write_status(snapshot, ending.status, self._exit_code(ending)))
        ending.step(lambda: state.end_attempt(context.attempt, ending.status))
        reached(Failpoint.ATTEMPT_ENDED)
        if ending.unwritten:
            log.warning("these could not be written either: %s", ", ".join(map(str, ending.unwritten)))
        return replace(outcome, status=ending.status, exit_code=self._exit_code(ending))

    def _exit_code(self, ending: Ending) -> ExitCode:
        if ending.error is not None:
            return ExitCode(getattr(ending.error, "exit_code", ExitCode.FAILED))
        return exit_code_of(ending.status, self._state, self._settings.max_error_rate)

    def _outcome(self, ending: Ending, snapshot: Snapshot, uncommitted: int) -> Outcome:
        totals: dict[str, float] = {}
        for values in self._context.totals:
            for key, value in values().items():
                totals[key] = totals.get(key, 0) + value
        accounts = self._state.accounts()
        return Outcome(
            job=self._settings.name,
            status=ending.status,
            exit_code=self._exit_code(ending),
            attempt=self._context.attempt,
            directory=self._directory,
            rows=snapshot.rows,
            uncommitted=max(0, uncommitted),
            data_rows=sum(s.rows for s in self._state.shards() if s.path.startswith(f"{DATA}/")),
            rejects=self._state.rejects(),
            tokens_in=snapshot.tokens_in,
            tokens_out=snapshot.tokens_out,
            wall_s=snapshot.elapsed_s,
            totals=totals,
            max_error_rate=self._settings.max_error_rate,
            accounts={node: accounts[node] for node in self._graph.order if node in accounts},
            goal=self._graph.goal,
        )

    def _record(self, o: Outcome) -> None:
        """The attempt's row of metrics/run.parquet."""
        rejects = Counter(o.rejects) - self._rejects_before
        values: dict[str, object] = {
            "job": o.job,
            "state": o.status.value,
            "exit_code": int(o.exit_code),
            "started_at": self._started_at,
            "wall_s": o.wall_s,
            "rows": o.rows - self._rows_before,
            "rejects_error": errors_of(rejects),
            "rejects_filtered": rejects.total() - errors_of(rejects),
            "tokens_in": o.tokens_in,
            "tokens_out": o.tokens_out,
            "tokens_per_s": o.tokens_out / o.wall_s if o.wall_s > 0 else 0.0,
            "versions": json.dumps(versions()),
            "machine": json.dumps(machine()),
            "fingerprint": digest(self._state.fingerprint or {}),
            "totals": json.dumps(o.totals),
        }
        self._context.table("run", RUN_SCHEMA).append(*(values[field.name] for field in RUN_SCHEMA))


def show(lines: Sequence[str]) -> None:
    """Print the last lines of a run, and keep them in run.log."""
    for line in lines:
        log.info("%s", line, extra=FILE_ONLY)
    say(lines)
