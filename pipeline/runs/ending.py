"""The end of an attempt: exit code, final counts, row of metrics/run.parquet, final files, and writing on a full disk.

Final files are made by operators from all results when a run is done (`BaseOperator.concluded`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.api.errors import ExitCode, Interrupted, NodeFailed, StorageError
from pipeline.api.meter import RowCounts
from pipeline.api.user_code import user_code
from pipeline.dataflow.graph import Graph
from pipeline.dataflow.node_failure import node_failed
from pipeline.dataflow.target import NODE as TARGET
from pipeline.monitor.run_log import FILE_ONLY
from pipeline.monitor.snapshot import Snapshot
from pipeline.monitor.summary import Outcome, too_many_errors
from pipeline.run_dir.manifest import digest
from pipeline.run_dir.state import RunState, RunStatus
from pipeline.settings import JobSettings
from pipeline.system.deadlines import ENDING_S, LEAST_S, Overran, within
from pipeline.system.disk_errors import writing
from pipeline.system.machine import RUN_SCHEMA, machine, versions
from pipeline.system.signals import stopping
from pipeline.system.terminal import say

log = logging.getLogger(__name__)


def exit_code_of(status: RunStatus, state: RunState, max_error_rate: float) -> ExitCode:
    """Return REJECTS if the run has ended with too many errors, BUDGET if it has not reached its target, else DONE."""
    ended = status in (RunStatus.DONE, RunStatus.BUDGET)
    if ended and too_many_errors(state.rejects().errors, state.committed_rows, max_error_rate):
        return ExitCode.REJECTS
    return ExitCode.BUDGET if status is RunStatus.BUDGET else ExitCode.DONE


def recorded(outcome: Outcome, *steps: Callable[[Outcome], object]) -> Outcome:
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


def settled(shot: Snapshot, state: RunState, status: RunStatus) -> Snapshot:
    """Return `shot`, the last snapshot of an attempt, with row counts of committed chunks only."""
    rejects, rows = state.rejects(), state.committed_rows
    done = status is RunStatus.DONE
    total = rows if done and shot.wanted is None else shot.rows_total
    exact, fraction = done or shot.rows_total_exact, rows / total if total else None
    shot = replace(shot, rows=rows, rows_total=total, rows_total_exact=exact, fraction=fraction)
    shot = replace(shot, errors=rejects.errors, filtered=rejects.filtered, eta_s=None, eta_unknown="")
    if shot.wanted is None:
        return shot
    accepted = state.accounts().get(TARGET, RowCounts()).rows_out
    return replace(shot, accepted=accepted, fraction=accepted / shot.wanted)


def run_row(o: Outcome, fingerprint: Mapping[str, Any]) -> list[object]:
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


def show(lines: Sequence[str]) -> None:
    """Print the last lines of a run, and write them to run.log."""
    for line in lines:
        log.info("%s", line, extra=FILE_ONLY)
    say(lines)


def conclude_missing(graph: Graph, directory: Path, limit_s: float) -> list[str]:
    """Make missing final files of a finished run again. Returns their names."""
    lost: list[str] = []
    for name, node in graph.nodes.items():
        gone = [name for name in node.op.concluded if not (directory / name).exists()]
        if gone:
            conclude(graph, name, directory, limit_s)
        lost += gone
    return lost


def conclude(graph: Graph, name: str, directory: Path, limit_s: float) -> None:
    """Have the node `name` write its final files, in `limit_s` seconds. Raises NodeFailed; Interrupted if a signal has
    cut it off."""
    try:
        with user_code(partial(node_failed, name, directory=directory), StorageError):
            within(limit_s, f"conclude of node '{name}'", partial(graph.nodes[name].op.conclude, directory))
    except NodeFailed as error:
        if isinstance(error.__cause__, Overran) and stopping():
            raise Interrupted(f"interrupted: {error.__cause__}; the same command goes on") from error
        raise


def ending_s(settings: JobSettings) -> float:
    """Return the seconds that a step of the ending of a run may take."""
    return max(getattr(settings.runtime, "stall_timeout_s", None) or ENDING_S, LEAST_S)


def remove_concluded(graph: Graph, directory: Path) -> None:
    """Remove the final files of an earlier attempt: they would not fit the results of this one."""
    for path in (directory / name for node in graph.nodes.values() for name in node.op.concluded):
        with writing(path):
            path.unlink(missing_ok=True)
