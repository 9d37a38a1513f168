"""One execution of the graph of a job against the state of its run."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

import pyarrow.parquet as pq

from pipeline.api.errors import ExitCode, GraphError, Interrupted, PipelineError
from pipeline.api.protocols import Accumulating, Stateful
from pipeline.api.records import ChunkEnd, Shard
from pipeline.config.build import Job
from pipeline.config.config_yaml import changes, origin, to_yaml
from pipeline.dataflow.executor import Executor, ExecutorSettings
from pipeline.dataflow.reject_writer import RejectTally, RejectWriter
from pipeline.dataflow.row_counts import AccountingError
from pipeline.dataflow.runtime import Resources, RunContext
from pipeline.dataflow.target import NODE as TARGET
from pipeline.monitor.display import make_display
from pipeline.monitor.prometheus import PrometheusFile
from pipeline.monitor.recorder import Telemetry
from pipeline.monitor.run_log import FILE_ONLY, TERMINAL_ONLY
from pipeline.monitor.snapshot import Before, Observer, Snapshot
from pipeline.monitor.status_file import StatusFile
from pipeline.monitor.summary import Outcome, closing_lines, full_lines, report_lines, summary_lines
from pipeline.results.report.write import report_of_attempt
from pipeline.run.ending import exit_code_of, recorded, run_row, settled, show
from pipeline.run.final_files import conclude, remove_concluded
from pipeline.run.watchdog import Watchdog
from pipeline.run_dir.manifest import write_manifest
from pipeline.run_dir.metrics_table import MetricsTable
from pipeline.run_dir.names import CONFIG, DATA, REJECTS, remove_parts
from pipeline.run_dir.state import RejectCounts, RunState, RunStatus, ShardRecord
from pipeline.settings import FULL
from pipeline.system.atomic_files import publish, write_atomically
from pipeline.system.failpoints import Failpoint, reached
from pipeline.system.machine import RUN_SCHEMA
from pipeline.system.signals import stopped_by_signals

SWITCH_INTERVAL_S = 0.0005
log = logging.getLogger(__name__)


class Attempt:
    """One attempt to finish a run, from the first chunk that is not committed.

    Args:
        job: the job; the lock of its directory is held.
        state: what is committed.
        process: what it shares with other jobs of this process.
        committed: told of every chunk that is committed.

    Raises:
        GraphError: an operator cannot go on where the last attempt ended.
        StorageError: the attempt cannot be recorded.
    """

    def __init__(
        self,
        job: Job,
        state: RunState,
        process: Resources,
        committed: Callable[[], None] | None = None,
    ) -> None:
        self._settings, self._graph, self._directory = settings, graph, directory = (
            job.settings,
            job.graph,
            job.directory,
        )
        self._job = job
        self._state = state
        self._committed = committed
        self._first_chunk = state.next_chunk
        states, additions = self._operator_states()
        self._seek_source()
        self._started_at = started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._rejects_before = rejects = state.rejects()
        self._before = Before(state.committed_rows, rejects.errors, rejects.filtered)
        self._tally = RejectTally()
        self._context = RunContext(directory, Resources(), process, state.start_attempt(started_at), state.run_id)
        reached(Failpoint.ATTEMPT_STARTED)
        self._schemas = state.schemas()
        limits = ExecutorSettings(settings.max_open_chunks, self._first_chunk, states, additions)
        writer = RejectWriter(directory / REJECTS, self._tally)
        self._executor = Executor(graph, writer, self._context, self._commit, limits)
        self._telemetry = telemetry = self._new_telemetry(started_at)
        self._watchdog = Watchdog(
            getattr(settings.runtime, "stall_timeout_s", None),
            lambda: self._executor.meters,
            self._executor.describe,
            self._executor.stop,
            self._abandon,
            self._context.clock,
        )

        def tick() -> None:
            telemetry.tick()
            self._watchdog.check()

        limits.tick = tick

    def run(self) -> Outcome:
        """Execute, record how it ended, and print the summary."""
        status, error = self._execute()
        reached(Failpoint.GRAPH_ENDED)
        outcome = self._record(status, error)
        ended = outcome.status in (RunStatus.DONE, RunStatus.BUDGET)
        lines = report_lines(self._graph, self._directory) if ended else []
        full = full_lines(outcome, self._executor.meters) if self._settings.progress == FULL else []
        show([*lines, *summary_lines(outcome), *full])
        show([*report_of_attempt(self._directory, wanted=self._settings.report), *closing_lines(outcome)])
        if outcome.status is RunStatus.FAILED and isinstance(outcome.error, PipelineError):
            log.error("%s", outcome.error, extra=TERMINAL_ONLY)  # last, where it is seen
        return outcome

    def _execute(self) -> tuple[RunStatus, BaseException | None]:
        interval = sys.getswitchinterval()
        # The thread that decodes gives up the interpreter at every call into llama.cpp and must get it back to form
        # the next step. Python lets others compute for 5 ms before it asks them; a step of a small model takes less.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            with stopped_by_signals(self._executor.interrupt):
                self._prepare()
                self._executor.run()
                ended = self._came_to()
                # Of chunks that no sink ended because a node had left early, rejects may have been written.
                self._clear(temporary_only=ended is not RunStatus.DONE or not self._state.salvaged)
                if ended is RunStatus.DONE:
                    conclude(self._graph, self._directory)
        except Interrupted as error:
            return RunStatus.INTERRUPTED, error
        except BaseException as error:
            log.error("%s", error, exc_info=_cause(error), extra=FILE_ONLY)  # before what goes wrong from now on
            return RunStatus.FAILED, error
        finally:
            sys.setswitchinterval(interval)
            self._context.resources.close()
        return ended, None

    def _record(self, status: RunStatus, error: BaseException | None) -> Outcome:
        """Write metrics, manifest and status, and last, when all of that is there, how the attempt ended."""
        state, context = self._state, self._context
        worked_on = self._telemetry.finish()
        snapshot = settled(worked_on, state, status)
        outcome = self._outcome(status, error, snapshot, worked_on.rows - snapshot.rows)
        if isinstance(error, AccountingError):
            outcome = recorded(outcome, lambda o: state.note_defect(str(o.error)))
        context.table("run", RUN_SCHEMA).append(*run_row(outcome, self._job.fingerprint))
        outcome = recorded(
            outcome,
            *(partial(_merge, table) for table in context.tables.values()),
            lambda o: write_manifest(self._directory, state, o.status),
            lambda o: self._telemetry.write_status(snapshot, o.status, o.exit_code),
            lambda o: state.end_attempt(context.attempt, o.status),
        )
        reached(Failpoint.ATTEMPT_ENDED)
        if outcome.unwritten:
            log.warning("these could not be written either: %s", ", ".join(map(str, outcome.unwritten)))
        return outcome

    def _outcome(self, status: RunStatus, error: BaseException | None, snapshot: Snapshot, uncommitted: int) -> Outcome:
        state, limit = self._state, self._settings.max_error_rate
        accounts, rejects = state.accounts(), state.rejects()
        totals: Counter[str] = Counter()
        for values in self._context.totals:
            totals.update(values())
        outcome = Outcome(
            job=self._settings.name,
            run_id=state.run_id,
            status=status,
            exit_code=exit_code_of(status, state, limit),
            error=None,
            attempt=self._context.attempt,
            started_at=self._started_at,
            directory=self._directory,
            rows=snapshot.rows,
            new_rows=snapshot.rows - self._before.rows,
            uncommitted=max(0, uncommitted),
            data_rows=sum(s.rows for s in state.shards() if s.path.startswith(f"{DATA}/")),
            rejects=rejects,
            new_rejects=RejectCounts(rejects - self._rejects_before),
            tokens_in=snapshot.tokens_in,
            tokens_out=snapshot.tokens_out,
            wall_s=snapshot.elapsed_s,
            totals=totals,
            max_error_rate=limit,
            accounts={node: accounts[node] for node in self._graph.order if node in accounts},
            goal=self._graph.goal,
        )
        return outcome if error is None else outcome.failed(error)

    def _came_to(self) -> RunStatus:
        """How the graph ended, which has run to its end."""
        goal = self._graph.goal
        return RunStatus.DONE if goal is None or goal.reached else RunStatus.BUDGET

    def _abandon(self) -> None:
        """Leave though threads still run: nothing will ever wake them. What is committed or journaled is safe."""
        self._state.end_attempt(self._context.attempt, RunStatus.FAILED)
        log.error("the run does not end; the process leaves. Run the same command again to resume")
        logging.shutdown()
        os._exit(ExitCode.FAILED)

    def _prepare(self) -> None:
        # Where the state took the place of a damaged one, what it does not know may be all that is left of the results:
        # a file stays until it is made again.
        self._clear(temporary_only=self._state.salvaged)
        remove_concluded(self._graph, self._directory)
        text = to_yaml(self._settings)
        changed = "; ".join(changes(self._state.config, text))
        log.info("attempt %d begins%s", self._context.attempt, changed and f", {changed}", extra=FILE_ONLY)
        self._state.note_config(text, origin())
        write_atomically(self._directory / CONFIG, text)
        reached(Failpoint.CONFIG_WRITTEN)
        self._telemetry.start()

    def _clear(self, *, temporary_only: bool) -> None:
        keep = {shard.path for shard in self._state.shards()}
        if removed := remove_parts(self._directory, keep, temporary_only=temporary_only):
            log.info("removed %d files that were not committed", removed)

    def _commit(self, end: ChunkEnd, shards: Sequence[Shard]) -> None:
        """Give the files of a chunk their names, then record it. In this order: what is recorded is there."""
        publish(list(shards))
        records = [
            ShardRecord(s.path.relative_to(self._directory).as_posix(), s.chunk, s.rows, s.size_bytes, s.sha256)
            for s in shards
        ]
        new = self._new_schemas(shards)
        rejects, kept = self._tally.take(end.chunk), self._executor.take_states(end.chunk)
        accounts = self._executor.take_accounts(end.chunk)
        self._state.commit(
            self._context.attempt, end.chunk, end.rows, records, rejects, new, kept.whole, kept.added, accounts
        )
        self._schemas.update(new)
        if self._committed is not None:
            self._committed()

    def _new_schemas(self, shards: Sequence[Shard]) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for shard in shards:
            folder = shard.path.parent.relative_to(self._directory).as_posix()
            if folder not in self._schemas:
                # As a reader of the file sees it: Parquet has names of its own for the items of a list.
                schema = pq.read_schema(shard.path) if shard.path.suffix == ".parquet" else shard.schema
                found[folder] = {f.name: str(f.type) for f in schema}
        return found

    def _seek_source(self) -> None:
        """Have the source begin at the first chunk that is not committed.

        Raises:
            GraphError: it cannot.
        """
        source = self._graph.nodes[self._graph.source].op
        seek = getattr(source, "seek", None)
        if self._first_chunk and seek is None:
            raise GraphError(
                self._graph.source,
                f"{type(source).__name__} has no seek(chunk), so the run cannot be resumed; begin anew: overwrite=true",
            )
        if self._first_chunk and seek is not None:
            seek(self._first_chunk)

    def _operator_states(self) -> tuple[dict[str, bytes], dict[str, Iterator[bytes]]]:
        """What each stateful operator kept with the last committed chunk, and each accumulating one with all of them.

        Raises:
            GraphError: an operator is stateful now and was not when the chunks were committed, or the other way round.
        """
        kept, added = self._state.operator_states(), self._state.operator_additions()
        operators = {name: node.op for name, node in self._graph.nodes.items()}
        stateful = {name for name, op in operators.items() if isinstance(op, Stateful | Accumulating)}
        for node in sorted(stateful ^ (kept.keys() | added.keys())) if self._first_chunk else ():
            what = "keeps state between chunks, but none is" if node in stateful else "keeps no state, but some is"
            raise GraphError(
                node, f"{what} in {self._directory}, so the run cannot be resumed; begin anew: overwrite=true"
            )
        return kept, added

    def _new_telemetry(self, started_at: str) -> Telemetry:
        graph, state, context = self._graph, self._state, self._context
        observer = Observer(
            lambda: self._executor.meters,
            {name: graph.nodes[name].inputs for name in graph.order},
            graph.sinks if graph.goal is None else (TARGET,),  # which holds the rows that the sink gets
            self._tally,
            context.statuses,
            graph.nodes[graph.source].op,
            lambda: self._executor.source_ended,
            self._before,
            graph.goal,
        )
        return Telemetry(
            context,
            lambda: self._executor.meters,
            observer,
            make_display(self._settings.progress),
            StatusFile(self._directory, state, context.attempt, started_at),
            PrometheusFile(self._settings.prometheus_file),
            self._settings.metrics_interval_s,
        )


def _merge(table: MetricsTable, outcome: Outcome) -> None:
    table.merge()


def _cause(error: BaseException) -> BaseException | None:
    """What to log with its traceback: errors that are no one's configuration."""
    expected = isinstance(error, PipelineError) and error.exit_code is not ExitCode.FAILED
    return None if expected else error.__cause__ or error
