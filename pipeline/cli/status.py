"""`python -m pipeline status DIR [--nodes] [--json]`: print the progress of a run, from its files.

Exit codes: 0 it is running or done, 4 it is neither (the same command resumes it), 2 there is no run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.api.numbers import added, number_of
from pipeline.cli.commands import parser_of, usage_of
from pipeline.monitor.display import left_text, queue_text, rows_text
from pipeline.monitor.recorder import read_status
from pipeline.monitor.snapshot import NodeView, Snapshot
from pipeline.monitor.wording import duration, share
from pipeline.run_dir.lock import Holder, holder
from pipeline.run_dir.manifest import read_manifest
from pipeline.run_dir.names import MANIFEST, STATUS, near_run
from pipeline.run_dir.replacing import HALF_MOVED, half_moved
from pipeline.run_dir.state import STATE_FILE, RunStatus
from pipeline.run_dir.state_reading import reading
from pipeline.system.terminal import say

BAR = 30
QUIET_S = 30.0
"""A running run writes status.json every second; after this long without an update it is called silent."""
_ENDED: Mapping[str, tuple[str, str]] = {
    RunStatus.RUNNING: ("the same command resumes", "it was killed{}"),
    RunStatus.INTERRUPTED: ("the same command resumes", "it was interrupted{}"),
    RunStatus.FAILED: ("the same command resumes", "it failed{}: see run.log"),
    RunStatus.BUDGET: (
        "the last lines of run.log say what makes it go on",
        "a budget was spent before the target was reached{}",
    ),
}
"""By state of an unfinished run that is not running: how to continue, and how it ended ({}: the exit code)."""


def main(arguments: Sequence[str]) -> ExitCode:
    """Print the progress."""
    parser = parser_of("status")
    parser.add_argument("directory", type=Path, metavar="outputs/NAME", help="directory of a run")
    parser.add_argument("--nodes", action="store_true", help="a line for every node, also for those of a step")
    parser.add_argument("--json", action="store_true", help="print status.json as it is")
    options = parser.parse_args(arguments)
    directory = options.directory
    if half_moved(directory):
        say(["{}" if options.json else f"{directory}: not running; {HALF_MOVED.format(directory)}"])
        return ExitCode.INTERRUPTED
    if not (directory / STATE_FILE).is_file():
        remedy = near_run(directory) or f"; write {usage_of('status')}"
        raise ConfigError(f"there is no run in {directory}: it has no {STATE_FILE}{remedy}")
    owner, values = holder(directory), read_status(directory)
    if options.json:
        text = (directory / STATUS).read_text(encoding="utf-8").rstrip() if values is not None else "{}"
        say([text])
    else:
        say(_lines(directory, values, owner, datetime.now().astimezone(), all_nodes=options.nodes))
    state = read_manifest(directory).get("status") if values is None else values["state"]
    is_done = state == RunStatus.DONE
    return ExitCode.DONE if owner or is_done else ExitCode.INTERRUPTED


def _lines(
    directory: Path, values: Mapping[str, Any] | None, owner: Holder | None, now: datetime, *, all_nodes: bool
) -> list[str]:
    if values is None:
        return _without_status(directory, owner is not None)
    snapshot = _snapshot(values)
    if owner is None:
        snapshot, values = _committed(directory, snapshot, values)
    return [
        f"{values['job']}  {_state_text(values, owner, now)}",
        *_progress(snapshot, values, owner is not None),
        _rejects_line(snapshot.errors, snapshot.filtered, snapshot.kept),
        f"committed {values['committed_rows']:,} rows in {values['committed_chunks']:,} chunks",
        *_table(snapshot.nodes, values["accounts"], {} if all_nodes else values["steps"]),
        f"results   {directory}",
    ]


def _committed(directory: Path, snapshot: Snapshot, values: Mapping[str, Any]) -> tuple[Snapshot, Mapping[str, Any]]:
    """Return both with what state.sqlite has: a killed run has committed more than it has told, and less than it has
    worked on."""
    with reading(directory) as state:
        accounts = {node: asdict(counts) for node, counts in state.accounts().items()}
        committed = {"committed_rows": state.committed_rows, "committed_chunks": state.committed_chunks}
        return snapshot.settled(state, state.status), {**values, **committed, "accounts": accounts}


def _rejects_line(errors: int, filtered: int, kept: int) -> str:
    stay = f"; {kept:,} kept with an error" if kept else ""
    return f"rejects   {errors:,} errors, {filtered:,} filtered{stay}"


def _without_status(directory: Path, alive: bool) -> list[str]:
    """Return the lines to print from manifest.json, if status.json is missing or of another version."""
    content = read_manifest(directory)
    if alive or not content:
        named = "starting" if alive else "not running, and it has not said how far it came; the same command resumes"
        return [f"{directory}: {named}"]
    state, counts = content["status"], content["counts"]
    goes_on, how = _ENDED.get(state, ("", ""))
    named = f"not running; {goes_on} ({how.format('')})" if how else state
    return [
        f"{content['job']}  {named}; {STATUS} is lost or of another version, so this is what {MANIFEST} says",
        _rejects_line(counts["error_rejects"], counts["filtered_rejects"], counts.get("kept_with_error", 0)),
        f"committed {counts['source_rows']:,} rows in {counts['chunks']:,} chunks",
        f"results   {directory}",
    ]


def _state_text(values: Mapping[str, Any], owner: Holder | None, now: datetime) -> str:
    state, attempt = values["state"], values["attempt"]
    age_s = (now - datetime.fromisoformat(values["updated_at"])).total_seconds()
    if owner is not None:
        named = "running" if state == RunStatus.RUNNING else f"{state}, and a process still works in it"
        quiet = f", silent for {duration(age_s)}: see run.log" if age_s > QUIET_S else ""
        return f"{named}: pid {owner.pid} on {owner.host}, attempt {attempt}{quiet}"
    if state == RunStatus.DONE:
        return f"done after {duration(values['elapsed_s'])}, exit code {values['exit_code']}, attempt {attempt}"
    goes_on, how = _ENDED[state]
    code = "" if values["exit_code"] is None else f", exit code {values['exit_code']}"
    return f"not running; {goes_on} ({how.format(code)}; last heartbeat {duration(age_s)} ago, attempt {attempt})"


def _progress(s: Snapshot, values: Mapping[str, Any], alive: bool) -> list[str]:
    filled = round(BAR * (s.fraction or 0.0))
    lines = [f"|{'#' * filled}{'-' * (BAR - filled)}| {rows_text(s)}"]
    if alive and values["state"] == RunStatus.RUNNING:
        why = f": {s.eta_unknown}" if s.eta_unknown else ""
        lines.append(f"time      {duration(s.elapsed_s)} so far, {left_text(s) or 'stopping'}{'' if s.ending else why}")
        lines += [f"operators {', '.join(s.statuses)}"] if s.statuses else []
        lines += [f"queue     {queue_text(s)} rows wait before the slowest stage"] if s.queue else []
    tokens_in, tokens_out = (sum(c[key] for c in values["counters"].values()) for key in ("tokens_in", "tokens_out"))
    if tokens_in + tokens_out:
        rates = f" ({s.tokens_in_per_s:,.0f} and {s.tokens_out_per_s:,.0f} tokens/s lately)"
        lines.append(f"tokens    {tokens_in:,.0f} in, {tokens_out:,.0f} out{rates if alive else ''}")
    lines += _hit_rates(values)
    lines += [f"cached    {s.recalled:,} rows (from the store, or identical to another row)"] if s.recalled else []
    return lines


def _hit_rates(values: Mapping[str, Any]) -> list[str]:
    """Return a line with the hit rates of all caches, over all nodes and attempts; none without a hit."""
    sums, rates = added(*values["caches"].values()), []
    for cache, use in sums.items():
        label = number_of(values, cache)
        hits = f"{label.about} {share(use['hits'], use['queries'])} of {use['queries']:,} {label.unit or 'lookups'}"
        rates += [hits] if use["queries"] else []
    return [f"hits      {', '.join(rates)}"] if any(use["hits"] for use in sums.values()) else []


def _table(nodes: Sequence[NodeView], accounts: Mapping[str, Mapping[str, int]], steps: Mapping[str, str]) -> list[str]:
    """Return a line per node: its row counts, and its clocks in the last 20 seconds of the run. Parts of a node have no
    row counts. The nodes of one of `steps` (step by node) have one line: rows into the first and out of the last one,
    the rejects of all, and the clocks of the busiest."""
    lines_of: dict[str, list[NodeView]] = {}
    for node in nodes:
        lines_of.setdefault(steps.get(node.name.partition("/")[0], node.name), []).append(node)
    width = max(10, *map(len, lines_of))
    lines = [f"{'node':{width}}  {'rows in':>11} {'rows out':>11} {'rejected':>9} busy starved blocked {'queue':>13}"]
    none = dict.fromkeys(("rows_in", "rows_out", "rejected"), 0)
    for name, each in lines_of.items():
        counts = [accounts.get(node.name, none) for node in each if "/" not in node.name]
        rows = f"{'':33}"
        if counts:
            rejected = sum(count["rejected"] for count in counts)
            rows = f"{counts[0]['rows_in']:11,} {counts[-1]['rows_out']:11,} {rejected:9,}"
        node = max(each, key=lambda node: node.busy)
        queue = f"{node.queue_rows:,}/{node.queue_capacity:,}" if node.queue_capacity else ""
        clocks = f"{node.busy:4.0%} {node.starved:7.0%} {node.blocked:7.0%}"
        lines.append(f"{name:{width}}  {rows} {clocks} {queue:>13}".rstrip())
    return lines


def _snapshot(values: Mapping[str, Any]) -> Snapshot:
    attributes = {field.name: values[field.name] for field in fields(Snapshot) if field.name in values}
    nodes = tuple(NodeView(**node) for node in values["nodes"])
    return Snapshot(**{**attributes, "statuses": tuple(values["statuses"]), "nodes": nodes})
