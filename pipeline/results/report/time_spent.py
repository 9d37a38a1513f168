"""Panels on time by stage and decode step, and on reused work (prefix cache, completion store)."""

from __future__ import annotations

import math

import polars as pl

from pipeline.api.meter import CLOCKS, RowCounts
from pipeline.monitor.wording import CACHES, number, seconds, share, unit_of_time
from pipeline.results.figures import (
    STEP_PARTS,
    attempts,
    cache_uses,
    histogram_sums,
    run_totals,
    stage_times,
    step_sums,
)
from pipeline.results.reader import Results
from pipeline.results.report.panel import Bars, Cell, Panel, ReportTable, Series, shares_table

CLOCK_COLOURS = dict(zip(CLOCKS, ("c1", "c7", "c2"), strict=True))
NAMES = ("filling the batch", "drafting", "in the model", "choosing tokens")
COLOURS = ("c3", "c4", "c1", "c2")
"""Name and colour of each of STEP_PARTS."""
DURATIONS = {
    "prefill_call": "prefill calls",
    "decode_call": "decode calls",
    "token": "tokens",
    "first_token": "first tokens",
}
"""Display text by name of a histogram."""
WORTH_DRAWING = 0.02
"""Busy share of a stage below which it is listed in the table, but not drawn."""
STORED = {
    "found_resumed": "found: made by this run before",
    "found_earlier": "found: made by earlier runs",
    "missed_new": "not found: never generated",
    "missed_settings": "not found: no entry with these settings",
    "missed_cut": "not found: had been cut too early",
    "missed_retry": "not found: to be generated again",
}
"""Display text by key of the run's totals on the completion store."""


def time_spent(results: Results) -> list[Panel]:
    """Return the panel with the time of each stage and of the model's calls, by purpose."""
    charts = [chart for chart in (_stages(results), _steps(results)) if chart is not None]
    return [Panel("Where the time went", charts=charts, tables=_durations(results))] if charts else []


def _stages(results: Results) -> Bars | None:
    found = [stage for stage in stage_times(results) if stage["wall_s"] > 0]
    if not found:
        return None
    unit, length = unit_of_time(max(stage["wall_s"] for stage in found))
    drawn = [stage for stage in found if stage["busy_s"] >= WORTH_DRAWING * stage["wall_s"]] or found
    series = [
        Series(clock.removesuffix("_s"), colour, [stage[clock] / length for stage in drawn])
        for clock, colour in CLOCK_COLOURS.items()
    ]
    about = (
        "Busy: it worked. Starved: it waited for input. Blocked: it waited for the next stage (backpressure)."
        " Rows are those of committed chunks; the time of work that was abandoned or done again counts too."
        " Stages that only wait are in the table alone."
    )
    columns = ["stage", "rows in", "made", "rejected", "rows out", "busy", "starved", "blocked", "of its time busy"]
    rows: list[list[Cell]] = [
        [
            s["node"],
            *_counts(results.accounts.get(s["node"])),
            *(seconds(s[clock]) for clock in CLOCKS),
            share(s["busy_s"], s["wall_s"]),
        ]
        for s in found
    ]
    return Bars("Time of each stage", about, [s["node"] for s in drawn], series, unit, ReportTable(columns, rows))


def _counts(c: RowCounts | None) -> list[Cell]:
    """Return rows in, expanded, rejected and out; empty cells for a part of a node, which has no counts."""
    return [None] * 4 if c is None else [f"{n:,}" for n in (c.rows_in, c.expanded, c.rejected, c.rows_out)]


def _steps(results: Results) -> Bars | None:
    found = step_sums(results)
    spent = [sum(group[part] for part in STEP_PARTS) for group in found]
    if not any(spent):
        return None
    names = ["computing prompts" if group["prompts"] else "generating" for group in found]
    unit, length = unit_of_time(max(spent))
    drawn = [
        (part, name, colour)
        for part, name, colour in zip(STEP_PARTS, NAMES, COLOURS, strict=True)
        if part != "draft_s" or any(group[part] for group in found)
    ]
    series = [Series(name, colour, [group[part] / length for group in found]) for part, name, colour in drawn]
    columns = ["calls", "number", "tokens", "tokens a call", *(name for _, name, _ in drawn), "a call"]
    rows = [
        [
            *(name, f"{group['steps']:,}", f"{group['tokens']:,}", number(group["tokens"] / group["steps"])),
            *(seconds(group[part]) for part, _, _ in drawn),
            f"{number(1000 * total / group['steps'])} ms",
        ]
        for name, group, total in zip(names, found, spent, strict=True)
    ]
    about = "The calls of the model by what they compute, and what they spent their time on."
    return Bars("Time of the steps", about, names, series, unit, ReportTable(columns, rows))


def _durations(results: Results) -> list[ReportTable]:
    """Return a table of durations by bucket, with a column for each thing that took them."""
    counts = histogram_sums(results)
    kinds = [kind for kind in DURATIONS if any(what == kind for what, _ in counts)]
    rows: list[list[Cell]] = [
        [_bound(bound), *(f"{counts[kind, bound]:,}" if (kind, bound) in counts else None for kind in kinds)]
        for bound in sorted({bound for _, bound in counts})
    ]
    caption = "token: a decode step, once for each row in it; first token: from the slot on"
    return [ReportTable(["up to", *(DURATIONS[kind] for kind in kinds)], rows, caption)] if rows else []


def _bound(value: float) -> str:
    if math.isinf(value):
        return "longer"
    return f"{number(value)} s" if value >= 1 else f"{number(1000 * value)} ms"


def reuse(results: Results) -> list[Panel]:
    """Return the panel of prompt tokens and completions from the prefix cache, identical rows or the store."""
    charts = [chart for chart in (_prompts(results), _completions(results)) if chart is not None]
    tables = [*_hit_rates(results), *_snapshots(results), *_lookups(results)]
    about = "Over all attempts: a completion that a resumed run took from its store counts there too."
    return [Panel("What did not have to be computed", about, charts, tables)] if charts or tables else []


def _prompts(results: Results) -> Bars | None:
    table = results.metrics("steps")
    if table is None:
        return None
    shared = table.select(pl.col("shared_tokens").cast(pl.Int64).sum()).collect().item()
    if not shared:
        return None
    # Not the tokens of the calls: these count the prompts of abandoned rows, and of preempted rows twice.
    prompts = sum(attempt.tokens_in for attempt in attempts(results))
    about = "Prompt tokens that the model computed, and those whose keys and values came from another row's prompt."
    pieces = [("computed", "c1", max(0, prompts - shared)), ("prefix cache", "c3", min(shared, prompts))]
    return _whole("Prompt tokens", about, "tokens", pieces)


def _snapshots(results: Results) -> list[ReportTable]:
    """Return a table of the snapshots of a recurrent or hybrid model; none if none was taken."""
    table = results.metrics("steps")
    counts = ["snapshots_taken", "snapshots_used", "snapshots_evicted"]
    if table is None or "snapshot_bytes" not in table.collect_schema().names():
        return []
    sums = [pl.col(name).cast(pl.Int64).sum() for name in counts]
    taken, used, evicted, most = table.select(*sums, pl.col("snapshot_bytes").max()).collect().row(0)
    columns = ["snapshots of prefixes", "taken", "used", "evicted", "MiB at most"]
    return (
        [ReportTable(columns, [["", f"{taken:,}", f"{used:,}", f"{evicted:,}", f"{most / 2**20:,.1f}"]])]
        if taken
        else []
    )


def _completions(results: Results) -> Bars | None:
    table = results.metrics("rows")
    if table is None:
        return None
    flags = pl.col("from_store", "identical").cast(pl.Int64).sum()
    rows, stored, same = table.select(pl.len().alias("all"), flags).collect().row(0)
    if not stored + same:
        return None
    about = "Completions that were generated, found in the store, or taken from a row that was bound to be the same."
    pieces = [
        ("generated", "c1", rows - stored - same),
        ("from the store", "c3", stored),
        ("same as another row", "c4", same),
    ]
    return _whole("Completions", about, "completions", pieces)


def _hit_rates(results: Results) -> list[ReportTable]:
    """Return a table of hit rates by node and cache; none without a hit, and no line for a store without one."""
    used = [use for use in cache_uses(results) if use.hits or (use.queries and use.cache != "store")]
    rows: list[list[Cell]] = [
        [u.node, CACHES[u.cache][0], CACHES[u.cache][1], f"{u.queries:,}", f"{u.hits:,}", share(u.hits, u.queries)]
        for u in used
    ]
    columns = ["node", "cache", "of", "looked up", "there", "hit rate"]
    return [ReportTable(columns, rows)] if any(use.hits for use in used) else []


def _whole(title: str, about: str, unit: str, pieces: list[tuple[str, str, int]]) -> Bars:
    series = [Series(name, colour, [count]) for name, colour, count in pieces if count]
    counts = [(name, count) for name, _, count in pieces]
    return Bars(title, about, [f"{sum(n for _, n in counts):,} {unit}"], series, unit, shares_table(unit, counts))


def _lookups(results: Results) -> list[ReportTable]:
    """Return a table of store lookups by node and outcome; none if no lookup was a hit."""
    split = [(*key.rpartition("/")[::2], value) for key, value in run_totals(results).items()]
    told = [(node, key, value) for node, key, value in split if key in STORED and value]
    rows = [[node, STORED[key], f"{value:,.0f}"] for node, key, value in told]
    return (
        [ReportTable(["node", "the store", "rows"], rows)] if any(key.startswith("found") for _, key, _ in told) else []
    )
