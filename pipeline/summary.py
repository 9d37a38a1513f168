"""The last lines of a run: what came out, where the time went, what to do next."""

from __future__ import annotations

import logging
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ExitCode
from pipeline.goal import Goal
from pipeline.graph import Graph
from pipeline.meter import RowCounts, StageMeter
from pipeline.output_dir import DATA, REJECTS, RUN_LOG
from pipeline.progress import duration
from pipeline.protocols import Reporter
from pipeline.records import RejectKind
from pipeline.state import RejectCounts, RunStatus
from pipeline.target import NODE as TARGET

MAX_REASONS = 12
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """How a run stands after an attempt. Counts are those of the whole run but for tokens and wall_s.

    Args:
        job: its name.
        status, exit_code: of the attempt.
        directory: where the results are.
        rows: source rows committed.
        data_rows: rows in data/.
        rejects: committed rejects by (node, kind, reason).
        tokens_in, tokens_out: prompt and completion tokens of this attempt.
        wall_s: of this attempt.
        totals: what operators added up.
        max_error_rate: the limit that the run was given.
        accounts: what became of the committed rows at each node, in the order of the graph; empty where that is not
            known of all of them.
        goal: the target, where there is one.
    """

    job: str
    status: RunStatus
    exit_code: ExitCode
    directory: Path
    rows: int
    data_rows: int
    rejects: RejectCounts
    tokens_in: int
    tokens_out: int
    wall_s: float
    totals: Mapping[str, float]
    max_error_rate: float
    accounts: Mapping[str, RowCounts]
    goal: Goal | None


def report_lines(graph: Graph, directory: Path) -> list[str]:
    """What the operators of a finished run have to say, in the order of the graph, and an empty line behind it."""
    lines: list[str] = []
    for name in graph.order:
        op = graph.nodes[name].op
        if isinstance(op, Reporter):
            try:
                lines += op.report(directory)
            except Exception as error:  # the run is done and its results are whole, whatever its report may lack
                log.exception("node '%s' cannot report", name)
                lines.append(f"node '{name}' cannot report: {type(error).__name__}: {error}")
    return [*lines, ""] if lines and lines[-1] else lines


def summary_lines(outcome: Outcome, meters: Sequence[StageMeter]) -> list[str]:
    """The summary of an attempt."""
    return [
        f"{outcome.job}: {outcome.status} after {duration(outcome.wall_s)}",
        f"rows        {outcome.rows:,} read and finished{_of_chunks(outcome)}, {outcome.data_rows:,} rows in {DATA}/",
        *_target_lines(outcome),
        *_account_lines(outcome.accounts),
        *_reject_lines(outcome.rejects),
        *_token_lines(outcome),
        *_time_lines(meters),
        f"results     {outcome.directory / DATA}",
        *_remedy(outcome),
    ]


def _of_chunks(o: Outcome) -> str:
    """What an attempt that did not come to its end counts as finished: rows beside these may be, and are not lost."""
    return " in whole chunks" if o.status in (RunStatus.INTERRUPTED, RunStatus.FAILED) else ""


def _target_lines(o: Outcome) -> list[str]:
    """How many rows were wanted, how many there are, and what they took."""
    if o.goal is None:
        return []
    accepted = o.accounts[TARGET].rows_out if TARGET in o.accounts else 0
    per_round = o.goal.round_rows
    rounds = f", {o.rows / per_round:.1f} rounds of {per_round:,}" if per_round else ""
    lines = [f"target      {accepted:,} of {o.goal.wanted:,} rows accepted, from {o.rows:,} source rows{rounds}"]
    if o.goal.spent:
        lines.append(f"            {o.goal.spent} is spent")
    return lines


def _account_lines(accounts: Mapping[str, RowCounts]) -> list[str]:
    """What became of the rows at the source, the last node, and each between them that did not pass on all as they
    came; nothing where there is none."""
    ends = {*list(accounts)[:1], *list(accounts)[-1:]}
    changed = {name for name, counts in accounts.items() if counts.expanded or counts.rejected}
    if not changed:
        return []
    shown = [name for name in accounts if name in ends | changed]
    width = max(10, *(len(name) for name in shown))
    lines = [f"{'accounts':{width}}  {'rows in':>11} {'expanded':>9} {'rejected':>9} {'rows out':>11}"]
    for name in shown:
        c = accounts[name]
        lines.append(f"{name:{width}}  {c.rows_in:11,} {c.expanded:9,} {c.rejected:9,} {c.rows_out:11,}")
    left = len(accounts) - len(shown)
    return lines + ([f"            {left} other node(s) passed on every row that they got"] if left else [])


def _short(reason: str) -> str:
    """The reason, cut at a word where it is long."""
    return textwrap.shorten(reason, 160, placeholder=" …") if len(reason) > 160 else reason


def _reject_lines(rejects: RejectCounts) -> list[str]:
    if not rejects:
        return ["rejects     none"]
    ranked = sorted(rejects.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"rejects     {sum(rejects.values()):,}"]
    lines += [f"  {n:>9,}  {kind} at {node}: {_short(reason)}" for (node, kind, reason), n in ranked[:MAX_REASONS]]
    more = len(ranked) - MAX_REASONS
    lines += [f"             and {more} other reasons, see {REJECTS}/"] if more > 0 else []
    counted = [reason for (_, kind, reason), _ in ranked[:MAX_REASONS] if kind == RejectKind.ERROR]
    if any(re.search(r"\bN\b|'…'", reason) for reason in counted):
        lines.append(f"             N and '…' are what differs from row to row; {REJECTS}/ has every row's own reason")
    return lines


def _token_lines(o: Outcome) -> list[str]:
    lines = []
    counted = [(n, way) for n, way in ((o.tokens_in, "in"), (o.tokens_out, "out")) if n]
    if counted:
        rates = " and ".join(f"{n / o.wall_s:,.0f}" for n, _ in counted) if o.wall_s > 0 else ""
        count = ", ".join(f"{n:,} {way}" for n, way in counted)
        lines.append(f"tokens      {count} ({rates} tokens/s)" if rates else f"tokens      {count}")
    if shared := o.totals.get("shared_tokens"):
        lines.append(f"shared      {shared:,.0f} of the prompt tokens were computed for another row")
    if steps := o.totals.get("slot_steps"):
        lines.append(
            f"slots       {o.totals.get('slot_steps_used', 0) / steps:.1%} of the slots were decoding on average"
        )
    return lines


def _time_lines(meters: Sequence[StageMeter]) -> list[str]:
    """A table of all stages, and the node that sets the pace: the one that is busy longest."""
    rows = [(m, m.clock.seconds()) for m in meters]
    nodes = [(m, s) for m, s in rows if "/" not in m.name]
    if not any(s["wall_s"] > 0 for _, s in nodes):
        return []
    width = max(10, *(len(m.name) for m, _ in rows))
    lines = [f"{'time':{width}}  {'rows in':>11} {'busy s':>9} {'starved s':>9} {'blocked s':>9}  busy"]
    for meter, s in rows:
        share = s["busy_s"] / s["wall_s"] if s["wall_s"] > 0 else 0.0
        clocks = f"{s['busy_s']:9.2f} {s['starved_s']:9.2f} {s['blocked_s']:9.2f}"
        lines.append(f"{meter.name:{width}}  {meter.rows_in:11,} {clocks}  {share:4.0%}")
    slowest = max(nodes, key=lambda item: item[1]["busy_s"])[0].name
    return [*lines, f"slowest     {slowest}"]


def _remedy(o: Outcome) -> list[str]:
    match o.exit_code:
        case ExitCode.DONE:
            return []
        case ExitCode.REJECTS:
            return [
                f"exit code 3: more than max_error_rate={o.max_error_rate:g} of the rows are errors; see"
                f" {o.directory / REJECTS}. Mend the cause and run with overwrite=true, or accept them:"
                " the same command with a larger max_error_rate="
            ]
        case ExitCode.CONFIG:
            return [
                "exit code 2: the configuration or the input cannot work, see above; nothing that is committed is lost"
            ]
        case ExitCode.BUDGET:
            return [_after_budget(o)]
        case _:
            # An operator that keeps completions counts those that it has found again.
            kept = " and every finished completion" if any(k.endswith("/from_store") for k in o.totals) else ""
            why = f"; {o.directory / RUN_LOG} has the whole error" if o.exit_code is ExitCode.FAILED else ""
            return [f"exit code {int(o.exit_code)}: what is committed{kept} is kept; the same command resumes{why}"]


def _after_budget(o: Outcome) -> str:
    """What to do when a budget was spent. Tokens and minutes decide no row, so the run can go on; the others do."""
    spent = o.goal.spent if o.goal else None
    if spent is None:
        return "exit code 5: a node took no more rows before the target was reached; one that limits them does that"
    if spent.startswith(("target.max_tokens", "target.max_minutes")):
        how = f"the same command with a larger {spent.partition('=')[0]}= goes on"
    elif spent.startswith("target."):
        how = (
            f"a larger {spent.partition('=')[0]}= and overwrite=true make the whole again, with the stored completions,"
            " and go on. Or let more rows pass: the accounts above say where they are lost"
        )
    else:
        how = "give it rows"
    return f"exit code 5: {spent} is spent and the target is not reached; {how}"
