"""Summary: the last lines that a run prints, with results, rejects, tokens and the next step."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.api.errors import ExitCode, NodeFailed, exit_code_of
from pipeline.api.protocols import Concludes
from pipeline.api.records import KEPT, RejectKind
from pipeline.api.user_code import spelt
from pipeline.dataflow.graph import Graph
from pipeline.dataflow.node_failure import running
from pipeline.dataflow.reject_writer import PLACEHOLDER
from pipeline.dataflow.target_progress import TargetProgress
from pipeline.monitor.wording import duration, one_line
from pipeline.run_dir.chunk_record import RejectCounts
from pipeline.run_dir.names import DATA, REJECTS, RUN_LOG
from pipeline.run_dir.state import RunStatus
from pipeline.settings import JobSettings
from pipeline.system.deadlines import ENDING_S, within

TOP_REASONS = 3
"""Keeps the summary within ten lines."""
LONGEST_REASON = 160
Key = tuple[str, str, str]
_OTHER_ROW = re.compile(r"\brow N\b")
"""What stands for another row in the counted reason of a row that was filtered out."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of an attempt, for the summary, on_finish, status.json and metrics/run.parquet. Row counts are of
    committed chunks; `new_rows`, `new_rejects`, tokens and time are of this attempt.

    Args:
        attempt, started_at: number of the attempt, from 1, and its start, ISO 8601.
        rows, uncommitted: source rows, and finished ones in chunks that were not committed.
        data_rows: rows in data/.
        tokens_in, tokens_out: prompt and completion tokens.
        totals: counts and seconds that operators have registered (`Runtime.totals`).
        target: progress under a target, else None.
        unwritten: files that could not be written after the error.
        warnings: what was told about rows, as `RunState.warnings` has it.
    """

    job: str
    status: RunStatus
    exit_code: ExitCode
    started_at: str
    directory: Path
    max_error_rate: float
    run_id: str = ""
    error: BaseException | None = None
    attempt: int = 0
    rows: int = 0
    new_rows: int = 0
    uncommitted: int = 0
    data_rows: int = 0
    rejects: RejectCounts = field(default_factory=RejectCounts)
    failures: tuple[int, int] = (0, 0)
    new_rejects: RejectCounts = field(default_factory=RejectCounts)
    tokens_in: int = 0
    tokens_out: int = 0
    wall_s: float = 0.0
    totals: Mapping[str, float] = field(default_factory=dict)
    target: TargetProgress | None = None
    unwritten: tuple[Path, ...] = ()
    warnings: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def refused(cls, settings: JobSettings, error: BaseException) -> Outcome:
        """Return the outcome of a run that was refused: attempt 0, without rows."""
        refused = cls(
            job=settings.name,
            status=RunStatus.FAILED,
            exit_code=ExitCode.FAILED,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            directory=settings.directory.absolute(),
            max_error_rate=settings.max_error_rate,
        )
        return refused.failed(error)

    @property
    def stores(self) -> bool:
        """True if completions are stored: an operator with a store looks its rows up there."""
        return any(key.endswith("/store_queries") for key in self.totals)

    @property
    def known(self) -> float | None:
        """Rows of the input that an attempt of a run with `append` has met and that were there; None in other runs."""
        return next((n for name, n in self.totals.items() if name.endswith("/rows_known")), None)

    @property
    def spent(self) -> str:
        """The budget that was spent before the target was reached, as typed; empty if there is none."""
        budget = self.target.spent if self.target else None
        return f"target.{budget.text(self.target.settings)}" if self.target and budget else ""

    def failed(self, error: BaseException) -> Outcome:
        """Return this outcome with the exit code of `error`. An earlier error is kept."""
        return replace(self, exit_code=exit_code_of(error), error=self.error or error)


def report_lines(graph: Graph, directory: Path, limit_s: float = ENDING_S) -> list[str]:
    """Return the reports of the operators of a finished run, in the order of the graph, then an empty line. A report
    that fails, or is not there after `limit_s` seconds, does not change that the run is done."""
    lines: list[str] = []
    for name, op in graph.with_role(Concludes).items():
        report = partial(_listed, op.report, directory, name)
        try:
            with running(name, directory):
                lines += within(limit_s, f"report of node '{name}'", report)
        except NodeFailed as failed:
            log.error("node '%s' cannot report", name, exc_info=failed.__cause__)
            lines.append(f"node '{name}' cannot report: {spelt(failed.__cause__ or failed)}")
    return [*lines, ""] if lines and lines[-1] else lines


def _listed(report: Callable[[Path, str], Iterable[str]], directory: Path, node: str) -> list[str]:
    return [str(line) for line in report(directory, node)]


def summary_lines(o: Outcome) -> list[str]:
    """Return the summary of an attempt without `closing_lines`: at most eight lines, and the warnings."""
    ended = f"{o.status} after {duration(o.wall_s)}"
    if o.status is RunStatus.BUDGET:
        why = f"budget spent ({o.spent})" if o.spent else "no more rows"
        ended = f"stopped after {duration(o.wall_s)}, {why}"
    results = [f"results     {o.directory / DATA}"] if o.data_rows else []
    return [f"{o.job}: {ended}", _rows_line(o), *_reject_lines(o.rejects), *_warnings(o), *_token_lines(o), *results]


def too_many_errors(errors: int, rows: int, max_error_rate: float) -> str:
    """Return the reason for exit code 3 of a finished run; empty if it has none. `rows`: source rows."""
    if errors <= max_error_rate * rows:
        return ""
    return f"{errors:,} errors in {rows:,} rows are more than max_error_rate={max_error_rate:g} allows"


def _rows_line(o: Outcome) -> str:
    """Return input and output rows. Finished rows that are not committed are named if completions are stored."""
    out, counted = f"{o.data_rows:,}", o.data_rows
    if o.target is not None:  # it counts the rows of one sink
        counted = min(o.data_rows, o.target.accepted)
        out = f"{counted:,} of {o.target.wanted:,}"
    all_sinks = f", {o.data_rows:,} in all sinks" if counted != o.data_rows else ""
    if o.status in (RunStatus.INTERRUPTED, RunStatus.FAILED):
        more = f" ({o.uncommitted:,} more in the store)" if o.uncommitted and o.stores else ""
        return f"input       {o.rows:,} rows committed{more}; output {out} rows{all_sinks}"
    per_round = o.target.round_rows if o.target else None
    rounds = f" ({o.rows / per_round:.1f} rounds of {per_round:,})" if per_round else ""
    newer = next((n for name, n in o.totals.items() if name.endswith("/rows_newer") and n), 0)
    again = f", {newer:,.0f} taken again" if newer else ""
    new = "" if o.known is None else f", {o.new_rows:,} of them new in this attempt ({o.known:,.0f} known{again})"
    return f"input       {o.rows:,} rows done{rounds}{new}; output {out} rows{all_sinks}"


def _reject_lines(counts: RejectCounts) -> list[str]:
    """Return the rejects by reason; then, if there are any, the errors of rows that stay."""
    left = {key: n for key, n in counts.items() if key[1] != KEPT}
    stay = {key: n for key, n in counts.items() if key[1] == KEPT}
    rejects = _reasons("rejects     {:,}", left, f"{REJECTS}/ has all") if left else ["rejects     none"]
    kept = _reasons("kept        {:,} with an error", stay, "the columns NAME_error have all") if stay else []
    return [*rejects, *kept]


def _reasons(title: str, counts: Mapping[Key, int], where: str) -> list[str]:
    """Return the number of rows, and a line for each of the most frequent reasons. `where`: what says where all are."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    top = ranked[:TOP_REASONS]
    notes = [f"the first {TOP_REASONS} of {len(ranked)} reasons"] if len(ranked) > TOP_REASONS else []
    if any((_OTHER_ROW if kind == RejectKind.FILTERED else PLACEHOLDER).search(reason) for (_, kind, reason), _ in top):
        notes.append("N and '…' differ from row to row")
    said = f": {'; '.join(notes)}; {where}" if notes else ""
    return [
        f"{title.format(sum(counts.values()))}{said}",
        *(f"  {n:>9,}  {kind} at {node}: {one_line(reason, LONGEST_REASON)}" for (node, kind, reason), n in top),
    ]


def _warnings(o: Outcome) -> list[str]:
    of = (f"{w['rows']:,} row{'s' * (w['rows'] != 1)} at " * bool(w["rows"]) + str(w["node"]) for w in o.warnings)
    said = (f"{rows}: {w['warning']}" for rows, w in zip(of, o.warnings, strict=True))
    return [f"warning     {one_line(line, LONGEST_REASON)}" for line in said]


def _token_lines(o: Outcome) -> list[str]:
    counted = [(n, way) for n, way in ((o.tokens_in, "in"), (o.tokens_out, "out")) if n]
    shared, steps = o.totals.get("shared_tokens"), o.totals.get("slot_steps")
    counts = [f"{n:,} {way}" for n, way in counted]
    if counts and shared and o.tokens_in:
        counts[0] += f", {shared:,.0f} of them from the prefix cache"
    rates = " and ".join(f"{n / o.wall_s:,.0f}" for n, _ in counted) if o.wall_s > 0 else ""
    said = ", ".join(counts) + (f" ({rates} tokens/s)" if counted and rates else "")
    said += " in this attempt" if counted and o.attempt > 1 else ""
    slots = f"slots {o.totals.get('slot_steps_used', 0) / steps:.1%} full" if steps else ""
    return [f"tokens      {'; '.join(filter(None, (said, slots)))}"] if said else []


def closing_lines(o: Outcome) -> list[str]:
    """Return the exit code and the next step; empty if the exit code is 0 and there are rows, or none came in."""
    match o.exit_code:
        case ExitCode.DONE if o.rows and not o.data_rows:
            return [f"no row reached {DATA}/: the rejects above say at which node they left, and why"]
        case ExitCode.DONE:
            return []
        case ExitCode.REJECTS:
            why, mend = too_many_errors(*o.failures, o.max_error_rate), "Fix the cause and rerun with overwrite=true"
            if o.known is not None:
                mend = "Mend these rows in the input, which are new then (of known ids with append_changed=again)"
            return [f"exit code 3: {why}. {mend}, or raise max_error_rate to accept them"]
        case ExitCode.CONFIG:
            return ["exit code 2: the configuration or the input cannot work; nothing that is committed is lost"]
        case ExitCode.BUDGET:
            return [_after_budget(o)]
        case _:
            kept = f"{o.rows:,} rows are committed" if o.rows > 1 else f"{'one' if o.rows else 'no'} row is committed"
            kept += ", and every finished completion is in the store" if o.stores else ""
            logged = o.exit_code is ExitCode.FAILED and not getattr(o.error, "full", False)  # a full disk has no log
            why = f"; {o.directory / RUN_LOG} has the whole error" if logged else ""
            return [f"exit code {int(o.exit_code)}: {kept}; the same command resumes{why}"]


def _after_budget(o: Outcome) -> str:
    budget = o.target.spent if o.target else None
    if budget is None and o.target and o.target.round_rows == 0:
        return "exit code 5: the input has no rows"
    if budget is None:
        return "exit code 5: a node took no more rows before the target was reached, as Limit does"
    how = f"the same command with a larger target.{budget}= continues"
    if budget.decides_rows:
        how = (
            f"rerun with a larger target.{budget}= and overwrite=true, which reuses the stored completions, or let more"
            " rows pass: the rejects say where they are lost"
        )
    return f"exit code 5: {o.spent} is spent and the target is not reached; {how}"
