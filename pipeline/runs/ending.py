"""The end of an attempt: final files, what is recorded, also on a full disk, and what is printed.

Final files are made by operators from all results when a run is done (`Concludes`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from pipeline.api.errors import ExitCode, Interrupted, NodeFailed, PipelineError, StorageError
from pipeline.api.protocols import Concludes
from pipeline.api.user_code import or_else, user_code
from pipeline.config.build import CheckedJob
from pipeline.dataflow.executor import AccountingError
from pipeline.dataflow.graph import Graph
from pipeline.dataflow.node_failure import node_failed
from pipeline.monitor.run_log import FILE_ONLY, TERMINAL_ONLY
from pipeline.monitor.snapshot import Snapshot
from pipeline.monitor.summary import Outcome, closing_lines, report_lines, summary_lines, too_many_errors
from pipeline.monitor.wording import of_the_limit
from pipeline.results.reader import read_results
from pipeline.results.reject_reasons import Key, kept_errors, of_all_rows, with_placeholders
from pipeline.results.report import report_of_attempt
from pipeline.run_dir.chunk_record import RejectCounts
from pipeline.run_dir.manifest import digest, manifest, write_manifest
from pipeline.run_dir.metrics_table import MetricsTable
from pipeline.run_dir.names import DATA
from pipeline.run_dir.state import RunState, RunStatus
from pipeline.runs.attempt import Attempt
from pipeline.runs.on_finish import tell_finished
from pipeline.system.deadlines import Overran, within
from pipeline.system.disk_errors import writing
from pipeline.system.failpoints import Failpoint, reached
from pipeline.system.machine import machine, versions
from pipeline.system.signals import stopping
from pipeline.system.terminal import say

ENDED = (RunStatus.DONE, RunStatus.BUDGET)
RUN_SCHEMA = pa.schema(
    dict.fromkeys(("job", "state"), pa.string())
    | {"exit_code": pa.int32(), "started_at": pa.string(), "wall_s": pa.float64()}
    | dict.fromkeys(("rows", "rejects_error", "rejects_filtered", "tokens_in", "tokens_out"), pa.int64())
    | {"tokens_per_s": pa.float64()}
    | dict.fromkeys(("versions", "machine", "fingerprint", "totals"), pa.string())
)
"""One row per attempt, with the column `attempt` put first. Counts are of the attempt; `rows`: source rows that it
committed; `tokens_per_s`: completion tokens; versions, machine and totals are JSON objects."""
log = logging.getLogger(__name__)


def conclude(name: str, op: Concludes, directory: Path, limit_s: float) -> None:
    """Have the operator of the node `name` write its final files, in `limit_s` seconds. Raises NodeFailed; Interrupted
    if a signal has cut it off."""
    try:
        with user_code(partial(node_failed, name, directory=directory), StorageError):
            within(limit_s, f"conclude of node '{name}'", partial(op.conclude, directory))
    except NodeFailed as error:
        if isinstance(error.__cause__, Overran) and stopping():
            raise Interrupted(f"interrupted: {error.__cause__}; the same command goes on") from error
        raise


def remove_concluded(graph: Graph, directory: Path) -> None:
    """Remove the final files of an earlier attempt: they would not fit the results of this one."""
    for path in (directory / name for op in graph.with_role(Concludes).values() for name in op.concluded):
        with writing(path):
            path.unlink(missing_ok=True)


def record(attempt: Attempt, status: RunStatus, error: BaseException | None) -> Outcome:
    """Write metrics, manifest and status.json; last, when all of these exist, the status of the attempt."""
    job, state, tables = attempt.job, attempt.state, attempt.tables
    worked_on = attempt.recorder.finish()
    snapshot = worked_on.settled(state, status)
    outcome = _outcome(attempt, status, error, snapshot, worked_on.rows - snapshot.rows)
    if isinstance(error, AccountingError):
        outcome = _recorded(outcome, lambda o: state.note(defect=str(o.error)))
    tables.get("run", RUN_SCHEMA).append(*_run_row(outcome, job.fingerprint))
    outcome = _recorded(
        outcome,
        *(partial(_merge, table) for table in tables.to_merge()),
        lambda o: write_manifest(job.directory, state, o.status),
        lambda o: attempt.recorder.write_status(snapshot, o.status, o.exit_code),
        lambda o: state.end_attempt(attempt.context.attempt, o.status),
    )
    reached(Failpoint.ATTEMPT_ENDED)
    if outcome.unwritten:
        log.warning("these could not be written either: %s", ", ".join(map(str, outcome.unwritten)))
    return outcome


def summarize(job: CheckedJob, outcome: Outcome) -> None:
    """Draw the report, and print the last lines of an attempt."""
    limit_s = job.settings.ending_s
    lines = report_lines(job.graph, job.directory, limit_s) if outcome.status in ENDED else []
    _show([*lines, *summary_lines(outcome)])
    if said := of_the_limit(outcome.totals):
        log.info("calls of the model: %s", said, extra=FILE_ONLY)
    draw = partial(report_of_attempt, job.directory, wanted=job.settings.report)
    nothing: list[str] = []
    report = or_else("report.html is not drawn", partial(within, limit_s, "the report", draw), nothing)
    _show([*report, *closing_lines(outcome)])
    if outcome.status is RunStatus.FAILED and isinstance(outcome.error, PipelineError):
        log.error("%s", outcome.error, extra=TERMINAL_ONLY)  # last, where it is seen


def say_finished(job: CheckedJob, state: RunState) -> ExitCode:
    """Print that the run is finished, and make final files that are gone again. Returns the exit code under the present
    max_error_rate."""
    lost: list[str] = []
    for name, op in job.graph.with_role(Concludes).items():
        if gone := [file for file in op.concluded if not (job.directory / file).exists()]:
            conclude(name, op, job.directory, job.settings.ending_s)
            lost += gone
    if lost:
        say([f"{' and '.join(lost)} had gone, and {'is' if len(lost) == 1 else 'are'} made again"])
    rows = manifest(state, RunStatus.DONE)["counts"]["data_rows"]
    new = ", and the input has no new ones" if job.settings.append else ""
    if new and job.graph.target is not None and job.settings.target.accepted_rows is not None:
        new += ", or they are more than its target wants"
    say([f"{job.settings.name} is finished already: {rows:,} rows in {job.directory / DATA}{new}"])
    if why := _too_many_errors(state, job.settings.max_error_rate):
        say([f"exit code 3: {why}. Raise max_error_rate to accept them"])
    say(["To make them again add overwrite=true"])
    code = ExitCode.REJECTS if why else ExitCode.DONE
    tell_finished(job.settings, code)
    return code


def _outcome(
    attempt: Attempt, status: RunStatus, error: BaseException | None, snapshot: Snapshot, uncommitted: int
) -> Outcome:
    job, state = attempt.job, attempt.state
    rejects, limit = state.rejects(), job.settings.max_error_rate
    whole = _whole_reasons(job, rejects)
    code = ExitCode.BUDGET if status is RunStatus.BUDGET else ExitCode.DONE
    outcome = Outcome(
        job=job.settings.name,
        run_id=state.run_id,
        status=status,
        exit_code=ExitCode.REJECTS if status in ENDED and _too_many_errors(state, limit) else code,
        attempt=attempt.context.attempt,
        started_at=attempt.started_at,
        directory=job.directory,
        rows=snapshot.rows,
        new_rows=snapshot.rows - attempt.rows_before,
        uncommitted=max(0, uncommitted),
        data_rows=sum(s.rows for s in state.shards() if s.path.startswith(f"{DATA}/")),
        rejects=RejectCounts({whole.get(key, key): n for key, n in rejects.items()}),
        warnings=state.warnings(),
        failures=state.failures(),
        new_rejects=RejectCounts(rejects - attempt.rejects_before),
        tokens_in=snapshot.tokens_in,
        tokens_out=snapshot.tokens_out,
        wall_s=snapshot.elapsed_s,
        totals=attempt.context.counted(),
        max_error_rate=limit,
        target=job.graph.target,
    )
    return outcome if error is None else outcome.failed(error)


def _too_many_errors(state: RunState, max_error_rate: float) -> str:
    return too_many_errors(*state.failures(), max_error_rate)


def _whole_reasons(job: CheckedJob, rejects: RejectCounts) -> dict[Key, Key]:
    """Return the keys of `rejects` whose rows all have one reason, with that reason in place of the counted one."""
    if not with_placeholders(rejects):
        return {}
    try:
        results, columns = read_results(job.directory), {name: k.column for name, k in job.graph.keepers.items()}
        left, stay = results.rejects(), kept_errors(results, rejects, columns)
        tables = [*([] if left is None else [left.select("node", "kind", "reason")]), *stay]
        whole = of_all_rows(pl.concat(tables), rejects) if tables else {}
    except Exception as error:  # it changes no result
        log.debug("reasons of rejects cannot be read: %s", error)
        return {}
    return {(node, kind, counted): (node, kind, reason) for (node, kind, counted), reason in whole.items()}


def _recorded(outcome: Outcome, *steps: Callable[[Outcome], object]) -> Outcome:
    """Call all `steps`, each of which writes a part of the outcome, also after one of them raised a StorageError. The
    first one becomes the error of the outcome, unless that has one already."""
    for step in steps:
        try:
            step(outcome)
        except StorageError as error:
            if outcome.error is None:
                log.error("%s", error, extra=FILE_ONLY)
                outcome = replace(outcome.failed(error), status=RunStatus.FAILED)
            else:
                log.debug("%s", error)
                outcome = replace(outcome, unwritten=(*outcome.unwritten, error.path))
    return outcome


def _merge(table: MetricsTable, outcome: Outcome) -> None:
    table.merge()


def _run_row(o: Outcome, fingerprint: Mapping[str, Any]) -> list[object]:
    """Return the row of the attempt in metrics/run.parquet, in the order of RUN_SCHEMA."""
    values: dict[str, object] = {
        "job": o.job,
        "state": o.status.value,
        "exit_code": int(o.exit_code),
        "started_at": o.started_at,
        "wall_s": o.wall_s,
        "rows": o.new_rows,
        "rejects_error": o.new_rejects.errors,
        "rejects_filtered": o.new_rejects.filtered,
        "tokens_in": o.tokens_in,
        "tokens_out": o.tokens_out,
        "tokens_per_s": o.tokens_out / o.wall_s if o.wall_s > 0 else 0.0,
        "versions": json.dumps(versions()),
        "machine": json.dumps(machine()),
        "fingerprint": digest(fingerprint),
        "totals": json.dumps(o.totals),
    }
    return [values[field.name] for field in RUN_SCHEMA]


def _show(lines: Sequence[str]) -> None:
    """Print lines, and write them to run.log."""
    for line in lines:
        log.info("%s", line, extra=FILE_ONLY)
    say(lines)
