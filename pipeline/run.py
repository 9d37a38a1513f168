"""One run of one job: lock, resume or refuse, execute, commit, account."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from pipeline.construct import build_graph
from pipeline.errors import ConfigError, ExitCode, GraphError, Interrupted, PipelineError
from pipeline.executor import AccountingError, Executor, ExecutorSettings
from pipeline.failpoints import Failpoint, reached
from pipeline.fingerprint import differences, digest, fingerprint_of
from pipeline.graph import Graph
from pipeline.lock import locked
from pipeline.manifest import write_manifest
from pipeline.output_dir import CONFIG, DATA, REJECTS, refuse_foreign, remove_parts, wipe
from pipeline.progress import make_display
from pipeline.provenance import RUN_SCHEMA, machine, versions
from pipeline.records import ChunkEnd, Shard
from pipeline.rejects import RejectTally, RejectWriter
from pipeline.run_log import run_log
from pipeline.runtime import Resources, RunContext
from pipeline.settings import JobSettings
from pipeline.shards import publish, write_atomically
from pipeline.snapshot import Observer, Snapshot
from pipeline.state import STATE_FILE, RunState, RunStatus, ShardRecord, errors_of
from pipeline.stopping import RECORDS, stopped_by_signals
from pipeline.summary import Outcome, report_lines, summary_lines
from pipeline.telemetry import Telemetry

SWITCH_INTERVAL_S = 0.0005
log = logging.getLogger(__name__)


def run_job(settings: JobSettings, process: Resources) -> ExitCode:
    """Run a job, or resume it, or find it finished. Prints a summary.

    Args:
        settings: the job.
        process: what it shares with other jobs of this process (models, contexts).

    Raises:
        ConfigError: the graph, the output directory or the settings cannot work. No model has been loaded.
    """
    graph = build_graph(settings)
    fingerprint = fingerprint_of(settings, graph)
    directory = settings.directory.absolute()
    refuse_foreign(directory)
    with (
        locked(directory),
        _admitted(directory, fingerprint, settings) as state,
        run_log(directory, settings.progress),
    ):
        if state.status is RunStatus.DONE:
            return _already_done(settings, directory, state)
        if state.committed_chunks:
            chunks, rows = state.committed_chunks, state.committed_rows
            log.info("resuming: %d chunks with %d rows are reused", chunks, rows)
        attempt = _Attempt(settings, graph, directory, state, process)
        with stopped_by_signals(lambda: None, RECORDS):
            return attempt.run()


@contextlib.contextmanager
def _admitted(directory: Path, fingerprint: dict[str, object], settings: JobSettings) -> Iterator[RunState]:
    """The state of this very job: kept, or begun anew where there was none or `overwrite` is set.

    Raises:
        ConfigError: the directory holds results of a run with another fingerprint, or of one that lost rows.
    """
    state = RunState(directory / STATE_FILE)
    try:
        before = state.fingerprint
        other = before is not None and before != fingerprint
        if state.defect is not None and not settings.overwrite:
            raise ConfigError(
                f"the results in {directory} cannot be trusted: {state.defect}\n"
                "Mend the operator and add overwrite=true"
            )
        if before is not None and other and state.committed_chunks and not settings.overwrite:
            changed = "\n".join(f"  {line}" for line in differences(before, fingerprint))
            raise ConfigError(
                f"{directory} holds a run with other settings:\n{changed}\n"
                "To replace its results add overwrite=true; to keep them give another output_dir="
            )
        # A run with other settings that has committed nothing has nothing to lose: it is replaced without asking.
        if before is not None and (settings.overwrite or other):
            state.close()
            wipe(directory)
            state = RunState(directory / STATE_FILE)
        if state.fingerprint is None:
            state.begin(fingerprint, settings.name)
        yield state
    finally:
        state.close()


def _already_done(settings: JobSettings, directory: Path, state: RunState) -> ExitCode:
    """The exit code is decided anew: max_error_rate may have been raised since."""
    code = _exit_code(RunStatus.DONE, state, settings.max_error_rate)
    rows = state.committed_rows
    print(f"{settings.name} is finished already: {rows:,} rows, results in {directory / DATA}")
    print("To make them again add overwrite=true")
    return code


def _exit_code(status: RunStatus, state: RunState, max_error_rate: float) -> ExitCode:
    if status is RunStatus.DONE and errors_of(state.rejects()) > max_error_rate * state.committed_rows:
        return ExitCode.REJECTS
    return ExitCode.DONE


@dataclass
class _Ending:
    """How an attempt ended."""

    status: RunStatus
    error: BaseException | None = None


class _Attempt:
    """One execution of the graph against a state."""

    def __init__(
        self, settings: JobSettings, graph: Graph, directory: Path, state: RunState, process: Resources
    ) -> None:
        self._settings = settings
        self._graph = graph
        self._directory = directory
        self._state = state
        self._first_chunk = state.committed_chunks
        self._base_rows = state.committed_rows
        self._seek_source()
        self._started_at = datetime.now().astimezone().isoformat(timespec="seconds")
        self._number = state.start_attempt(self._started_at)
        reached(Failpoint.ATTEMPT_STARTED)
        self._tally = RejectTally()
        self._context = RunContext(directory, Resources(), process, attempt=self._number)
        self._schemas = state.schemas()
        limits = ExecutorSettings(settings.max_open_chunks, self._first_chunk)
        rejects = RejectWriter(directory / REJECTS, self._tally)
        self._executor = Executor(graph, rejects, self._context, self._commit, limits)
        self._telemetry = self._new_telemetry()
        limits.tick = self._telemetry.tick

    def run(self) -> ExitCode:
        """Execute, then account for it however it ended."""
        keep = {shard.path for shard in self._state.shards()}
        if removed := remove_parts(self._directory, keep):
            log.info("removed %d files that an earlier attempt had not committed", removed)
        resolved = yaml.safe_dump(asdict(self._settings), sort_keys=False, allow_unicode=True)
        write_atomically(self._directory / CONFIG, resolved)
        reached(Failpoint.CONFIG_WRITTEN)
        ending = self._execute()
        reached(Failpoint.GRAPH_ENDED)
        if ending.error is not None and not isinstance(ending.error, Interrupted):
            log.error("%s", ending.error, exc_info=_cause(ending.error))
        if isinstance(ending.error, AccountingError):
            self._state.note_defect(str(ending.error))
        code = self._account(ending)
        # Last: a run that is done is not run again, so everything that it leaves has to be there.
        self._state.end_attempt(self._number, ending.status)
        reached(Failpoint.ATTEMPT_ENDED)
        if ending.error is not None and not isinstance(ending.error, PipelineError):
            raise ending.error
        return code

    def _execute(self) -> _Ending:
        interval = sys.getswitchinterval()
        # The thread that decodes gives up the interpreter at every call into llama.cpp and must get it back to form
        # the next step. Python lets others compute for 5 ms before it asks them; a step of a small model takes less.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            with stopped_by_signals(self._executor.interrupt):
                self._executor.run()
        except Interrupted as error:
            return _Ending(RunStatus.INTERRUPTED, error)
        except BaseException as error:
            return _Ending(RunStatus.FAILED, error)
        finally:
            sys.setswitchinterval(interval)
            self._context.resources.close()
        return _Ending(RunStatus.DONE)

    def _commit(self, end: ChunkEnd, shards: Sequence[Shard]) -> None:
        """Give the files of a chunk their names, then record it. In this order: what is recorded is there."""
        publish(list(shards))
        records = [
            ShardRecord(s.path.relative_to(self._directory).as_posix(), s.chunk, s.rows, s.size_bytes, s.sha256)
            for s in shards
        ]
        new = self._new_schemas(shards)
        self._state.commit(self._number, end.chunk, end.rows, records, self._tally.take(end.chunk), new)
        self._schemas.update(new)

    def _new_schemas(self, shards: Sequence[Shard]) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for shard in shards:
            folder = shard.path.parent.relative_to(self._directory).as_posix()
            if folder not in self._schemas and shard.path.suffix == ".parquet":
                found[folder] = {f.name: str(f.type) for f in pq.read_schema(shard.path)}
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

    def _new_telemetry(self) -> Telemetry:
        graph = self._graph
        observer = Observer(
            lambda: self._executor.meters,
            graph.source,
            graph.sinks,
            self._tally,
            self._context.statuses,
            graph.nodes[graph.source].op,
            self._base_rows,
        )
        display = make_display(self._settings.progress)
        interval = self._settings.metrics_interval_s
        return Telemetry(self._context, lambda: self._executor.meters, observer, display, interval)

    def _account(self, ending: _Ending) -> ExitCode:
        snapshot = self._telemetry.finish(ending.status)
        code = _exit_code(ending.status, self._state, self._settings.max_error_rate)
        if ending.error is not None:
            code = ExitCode(getattr(ending.error, "exit_code", ExitCode.FAILED))
        outcome = self._outcome(ending, snapshot, code)
        self._record(outcome)
        for table in self._context.tables.values():
            table.merge()
        write_manifest(self._directory, self._state, ending.status)
        done = ending.status is RunStatus.DONE
        lines = report_lines(self._graph, self._directory) if done else []
        for line in [*lines, *summary_lines(outcome, self._executor.meters)]:
            print(line)
            log.debug("%s", line)
        return code

    def _outcome(self, ending: _Ending, snapshot: Snapshot, code: ExitCode) -> Outcome:
        totals: dict[str, float] = {}
        for values in self._context.totals:
            for key, value in values().items():
                totals[key] = totals.get(key, 0) + value
        return Outcome(
            job=self._settings.name,
            status=ending.status,
            exit_code=code,
            directory=self._directory,
            rows=self._state.committed_rows,
            data_rows=sum(s.rows for s in self._state.shards() if s.path.startswith(f"{DATA}/")),
            rejects=self._state.rejects(),
            tokens_in=snapshot.tokens_in,
            tokens_out=snapshot.tokens_out,
            wall_s=snapshot.elapsed_s,
            totals=totals,
            max_error_rate=self._settings.max_error_rate,
        )

    def _record(self, o: Outcome) -> None:
        """The attempt's row of metrics/run.parquet."""
        values: dict[str, object] = {
            "job": o.job,
            "state": o.status.value,
            "exit_code": int(o.exit_code),
            "started_at": self._started_at,
            "wall_s": o.wall_s,
            "rows": o.rows - self._base_rows,
            "rejects_error": self._tally.errors,
            "rejects_filtered": self._tally.by_kind.total() - self._tally.errors,
            "tokens_in": o.tokens_in,
            "tokens_out": o.tokens_out,
            "tokens_per_s": o.tokens_out / o.wall_s if o.wall_s > 0 else 0.0,
            "versions": json.dumps(versions()),
            "machine": json.dumps(machine()),
            "fingerprint": digest(self._state.fingerprint or {}),
            "totals": json.dumps(o.totals),
        }
        self._context.table("run", RUN_SCHEMA).append(*(values[field.name] for field in RUN_SCHEMA))


def _cause(error: BaseException) -> BaseException | None:
    """What to log with its traceback: errors that are no one's configuration."""
    expected = isinstance(error, PipelineError) and error.exit_code is not ExitCode.FAILED
    return None if expected else error.__cause__ or error
