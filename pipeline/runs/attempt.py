"""Attempt: execute the graph of a job once and record the outcome."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Set
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial

from pipeline.api.errors import ExitCode, GraphError, Interrupted, PipelineError
from pipeline.api.protocols import overrides
from pipeline.api.runtime import Resources, RunContext
from pipeline.api.user_code import or_else, told
from pipeline.cluster.identity import check_here
from pipeline.cluster.start import driver_graph
from pipeline.config.build import CheckedJob
from pipeline.config.config_yaml import changes, origin, to_yaml
from pipeline.dataflow.executor import AccountingError, Executor
from pipeline.monitor.recorder import Recorder
from pipeline.monitor.run_log import FILE_ONLY, TERMINAL_ONLY
from pipeline.monitor.snapshot import Snapshot
from pipeline.monitor.summary import Outcome, closing_lines, report_lines, summary_lines
from pipeline.monitor.wording import of_the_limit
from pipeline.results.reader import read_results
from pipeline.results.reject_reasons import Key, of_all_rows
from pipeline.results.report.write import report_of_attempt
from pipeline.run_dir.chunk_record import ChunkRecord, RejectCounts
from pipeline.run_dir.manifest import write_manifest
from pipeline.run_dir.metrics_table import MetricsTable, MetricsTables
from pipeline.run_dir.names import CONFIG, DATA, remove_parts
from pipeline.run_dir.state import RunState, RunStatus
from pipeline.runs.ending import (
    conclude,
    ending_s,
    exit_code_of,
    recorded,
    remove_concluded,
    run_row,
    settled,
    show,
)
from pipeline.runs.watchdog import HANGS, Watchdog
from pipeline.settings import REFUSE
from pipeline.system.atomic_files import rename_shards, write_atomically
from pipeline.system.deadlines import within
from pipeline.system.failpoints import Failpoint, reached
from pipeline.system.machine import RUN_SCHEMA
from pipeline.system.signals import stopped_by_signals

SWITCH_INTERVAL_S = 0.0005
log = logging.getLogger(__name__)


class Attempt:
    """One attempt to finish a run, from the first uncommitted chunk.

    Args:
        job: the job; the caller holds the lock of its directory.
        state: of the run.
        process: resources shared with other jobs of this process.
        committed: called after every commit.
        begun: called when all operators are open, before the first row.

    Raises:
        ConfigError: the cluster or the graph cannot work so. As for all that is raised here, nothing is recorded.
        GraphError: an operator cannot resume after the committed chunks.
        StorageError: the attempt cannot be recorded.
    """

    def __init__(
        self,
        job: CheckedJob,
        state: RunState,
        process: Resources,
        committed: Callable[[], None],
        begun: Callable[[], None],
    ) -> None:
        self._job, self._begun = job, begun
        self._settings, self._graph, self._directory = job.settings, job.graph, job.directory
        self._state = state
        self._committed = committed
        first, states = state.committed_chunks, state.operator_states()
        if first:
            self._check_resumable(states.keys())
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._rows_before, self._rejects_before = state.committed_rows, state.rejects()
        attempt = state.attempts + 1
        self._tables = MetricsTables(job.directory, attempt)
        self._context = context = RunContext(job.directory, process, self._tables.get, attempt, state.run_id)
        graph, open_chunks = job.graph, job.settings.max_open_chunks
        if job.settings.cluster is not None:
            with ExitStack() as refused:
                refused.callback(context.resources.close)  # the pool, if workers were begun
                graph, open_chunks = driver_graph(job.settings, graph, context, self._tables, state)
                refused.pop_all()
        self._executor = Executor(
            graph,
            context,
            self._commit,
            max_open_chunks=open_chunks,
            first_chunk=first,
            states=states,
            opened=self._check_identity,
            ending_s=ending_s(job.settings),
        )
        self._executor.tally.know(self._rejects_before)
        self._recorder = Recorder(job, state, context, self._tables, self._executor, self._started_at)
        stall_timeout_s = getattr(job.settings.runtime, "stall_timeout_s", None)
        self._watchdog = Watchdog(stall_timeout_s, self._executor, self._note_failure, context.clock)
        self._ending_s = ending_s(job.settings)
        state.start_attempt(self._started_at)
        reached(Failpoint.ATTEMPT_STARTED)

    def run(self) -> Outcome:
        """Execute the graph, record the outcome, and print the summary."""
        status, error = self._execute()
        reached(Failpoint.GRAPH_ENDED)
        outcome = within(self._ending_s, "recording the results", partial(self._record, status, error))
        ended = outcome.status in (RunStatus.DONE, RunStatus.BUDGET)
        lines = report_lines(self._graph, self._directory, self._ending_s) if ended else []
        show([*lines, *summary_lines(outcome)])
        if said := of_the_limit(outcome.totals):
            log.info("calls of the model: %s", said, extra=FILE_ONLY)
        draw = partial(report_of_attempt, self._directory, wanted=self._settings.report)
        nothing: list[str] = []
        report = or_else("report.html is not drawn", partial(within, self._ending_s, "the report", draw), nothing)
        show([*report, *closing_lines(outcome)])
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
                self._executor.run(self._recorder.tick, self._watchdog)
                target = self._graph.target
                ended = RunStatus.DONE if target is None or target.reached else RunStatus.BUDGET
                # Rejects may have been written for chunks that no sink ended, if a node left early.
                self._clear(temporary_only=ended is not RunStatus.DONE or not self._state.salvaged)
                if ended is RunStatus.DONE:
                    for name in self._graph.nodes:
                        conclude(self._graph, name, self._directory, self._ending_s)
        except Interrupted as error:
            return RunStatus.INTERRUPTED, error
        except BaseException as error:
            log.error("%s", error, exc_info=_cause(error), extra=FILE_ONLY)  # now, before errors that it causes
            return RunStatus.FAILED, error
        finally:
            sys.setswitchinterval(interval)
        return ended, self._executor.left_in_close

    def _record(self, status: RunStatus, error: BaseException | None) -> Outcome:
        """Write metrics, manifest and status.json; last, when all of these exist, the status of the attempt."""
        state = self._state
        worked_on = self._recorder.finish()
        snapshot = settled(worked_on, state, status)
        outcome = self._outcome(status, error, snapshot, worked_on.rows - snapshot.rows)
        if isinstance(error, AccountingError):
            outcome = recorded(outcome, lambda o: state.note_defect(str(o.error)))
        self._tables.get("run", RUN_SCHEMA).append(*run_row(outcome, self._job.fingerprint))
        outcome = recorded(
            outcome,
            *(partial(_merge, table) for table in self._tables.to_merge()),
            lambda o: write_manifest(self._directory, state, o.status),
            lambda o: self._recorder.write_status(snapshot, o.status, o.exit_code),
            lambda o: state.end_attempt(self._context.attempt, o.status),
        )
        reached(Failpoint.ATTEMPT_ENDED)
        if outcome.unwritten:
            log.warning("these could not be written either: %s", ", ".join(map(str, outcome.unwritten)))
        return outcome

    def _outcome(self, status: RunStatus, error: BaseException | None, snapshot: Snapshot, uncommitted: int) -> Outcome:
        state, limit = self._state, self._settings.max_error_rate
        rejects = state.rejects()
        whole = self._whole_reasons(rejects)
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
            new_rows=snapshot.rows - self._rows_before,
            uncommitted=max(0, uncommitted),
            data_rows=sum(s.rows for s in state.shards() if s.path.startswith(f"{DATA}/")),
            rejects=RejectCounts({whole.get(key, key): n for key, n in rejects.items()}),
            warnings=state.warnings(),
            new_rejects=RejectCounts(rejects - self._rejects_before),
            tokens_in=snapshot.tokens_in,
            tokens_out=snapshot.tokens_out,
            wall_s=snapshot.elapsed_s,
            totals=self._context.counted(),
            max_error_rate=limit,
            target=self._graph.target,
        )
        return outcome if error is None else outcome.failed(error)

    def _whole_reasons(self, rejects: RejectCounts) -> dict[Key, Key]:
        """Return the keys of `rejects` whose rows all have one reason, with that reason in place of the counted one."""
        try:
            table = read_results(self._directory).rejects()
            whole = {} if table is None else of_all_rows(table, rejects)
        except Exception as error:  # it changes no result
            log.debug("reasons of rejects cannot be read: %s", error)
            return {}
        return {(node, kind, counted): (node, kind, reason) for (node, kind, counted), reason in whole.items()}

    def _note_failure(self) -> None:
        """Record that the attempt has failed, before the process is ended although its main thread hangs."""
        self._state.end_attempt(self._context.attempt, RunStatus.FAILED)
        log.error("%s", HANGS)

    def _prepare(self) -> None:
        # If the state replaces a damaged one, files that it does not list may be all that is left of the results: keep
        # each until it is written again.
        told.clear()
        self._clear(temporary_only=self._state.salvaged)
        remove_concluded(self._graph, self._directory)
        text = to_yaml(self._settings)
        changed = "; ".join(changes(self._state.config, text))
        log.info("attempt %d begins%s", self._context.attempt, changed and f", {changed}", extra=FILE_ONLY)
        self._state.note_config(text, origin())
        write_atomically(self._directory / CONFIG, text)
        reached(Failpoint.CONFIG_WRITTEN)
        self._recorder.start()

    def _clear(self, *, temporary_only: bool) -> None:
        keep = {shard.path for shard in self._state.shards()}
        if removed := remove_parts(self._directory, keep, temporary_only=temporary_only):
            log.info("removed %d files that were not committed", removed)

    def _commit(self, record: ChunkRecord) -> None:
        """Rename the files of a chunk, then record it: in this order every recorded file exists."""
        rename_shards(record.shards)
        self._state.commit(self._context.attempt, record)
        self._committed()

    def _check_identity(self) -> None:
        """Check that this machine gives the bytes of those that began the run; with workers these are checked."""
        settings, kept = self._settings, self._state.identity
        exact = getattr(settings.runtime, "deterministic", True) and settings.other_bits == REFUSE
        if settings.cluster is None and exact:
            here = check_here(self._graph, kept)
            if here and not kept:
                self._state.note_identity(here)
        self._begun()

    def _check_resumable(self, kept: Set[str]) -> None:
        """Check that all operators can resume. `kept`: names of the nodes with a committed state."""
        nodes, there = self._graph.nodes, self._directory
        source = nodes[self._graph.source].op
        stateful = {name for name, node in nodes.items() if overrides(node.op, "state")}
        wrong = {} if overrides(source, "seek") else {self._graph.source: f"{type(source).__name__} has no seek(chunk)"}
        wrong |= dict.fromkeys(sorted(stateful - kept), f"keeps state between chunks, but none is in {there}")
        wrong |= dict.fromkeys(sorted(kept - stateful), f"keeps no state, but some is in {there}")
        for name, what in wrong.items():
            raise GraphError(name, f"{what}, so the run cannot be resumed; begin anew: overwrite=true")


def _merge(table: MetricsTable, outcome: Outcome) -> None:
    table.merge()


def _cause(error: BaseException) -> BaseException | None:
    """Return the exception whose traceback is logged; None for an error with an exit code of its own."""
    expected = isinstance(error, PipelineError) and error.exit_code is not ExitCode.FAILED
    return None if expected else error.__cause__ or error
