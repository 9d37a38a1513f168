"""Panels on time by stage and decode step, on caches, and on all that was counted."""

from __future__ import annotations

import math

from pipeline.api.meter import CLOCKS, RowCounts
from pipeline.api.numbers import added, number_of
from pipeline.monitor.wording import number, seconds, share
from pipeline.results.figures import (
    STEP_PARTS,
    run_totals,
    stage_times,
    step_sums,
)
from pipeline.results.reader import Results
from pipeline.results.report.panel import Cell, Panel, ReportTable, Series


def time_spent(results: Results) -> list[Panel]:
    """Return the panel with the time of each stage and of the model's calls, by purpose."""
    tables = [*_stages(results), *_steps(results)]
    return [Panel("Where the time went", tables=[*tables, *_durations(results)])] if tables else []


def _stages(results: Results) -> list[ReportTable]:
    stages = [stage for stage in stage_times(results) if stage["wall_s"] > 0]
    each = zip(CLOCKS, ("c1", "c7", "c2"), strict=True)
    series = [Series(clock.removesuffix("_s"), colour, [stage[clock] for stage in stages]) for clock, colour in each]
    about = (
        "Time of each stage. Busy: it worked. Starved: it waited for input. Blocked: it waited for the next stage"
        " (backpressure). Rows are those of committed chunks; time counts that of work abandoned or done again, too."
    )
    columns = ["stage", "rows in", "made", "rejected", "rows out", "busy", "starved", "blocked", "of its time busy"]
    rows: list[list[Cell]] = [
        [
            s["node"],
            *_counts(results.accounts.get(s["node"])),
            *(seconds(s[clock]) for clock in CLOCKS),
            share(s["busy_s"], s["wall_s"]),
        ]
        for s in stages
    ]
    return [ReportTable(columns, rows, about, series)] if stages else []


def _counts(c: RowCounts | None) -> list[Cell]:
    """Return rows in, expanded, rejected and out; empty cells for a part of a node, which has no counts."""
    return [None] * 4 if c is None else [f"{n:,}" for n in (c.rows_in, c.expanded, c.rejected, c.rows_out)]


def _steps(results: Results) -> list[ReportTable]:
    groups = step_sums(results)
    drawn = [part for part in STEP_PARTS if part not in ("encode_s", "draft_s") or any(group[part] for group in groups)]
    series = [Series(*STEP_PARTS[part], [group[part] for group in groups]) for part in drawn]
    rows: list[list[Cell]] = []
    for group in groups:
        total, steps = sum(group[part] for part in STEP_PARTS), group["steps"]
        name, tokens = "computing prompts" if group["prompts"] else "generating", group["tokens"]
        spent = [seconds(group[part]) for part in drawn]
        rows.append(
            [name, f"{steps:,}", f"{tokens:,}", number(tokens / steps), *spent, f"{number(1000 * total / steps)} ms"]
        )
    columns = ["calls", "number", "tokens", "tokens a call", *(one.name for one in series), "a call"]
    about = "Time of the steps: the calls of the model by what they compute, and what they spent their time on."
    return [ReportTable(columns, rows, about, series)] if rows else []


def _durations(results: Results) -> list[ReportTable]:
    """Return a table of durations by bucket, with a column for each thing that took them."""
    sums = added(*results.status.get("histograms", {}).values())
    bounds = sorted({bound for times in sums.values() for bound in times["buckets"]}, key=float)
    rows: list[list[Cell]] = [
        [_bound(float(bound)), *(f"{n:,}" if (n := times["buckets"].get(bound)) else None for times in sums.values())]
        for bound in bounds
    ]
    names = [what.replace("_", " ") for what in sums]
    about = [f"{name}: {number_of(results.status, what).about}" for name, what in zip(names, sums, strict=True)]
    return [ReportTable(["up to", *names], rows, " ".join(about))] if rows else []


def _bound(value: float) -> str:
    if math.isinf(value):
        return "longer"
    return f"{number(value)} s" if value >= 1 else f"{number(1000 * value)} ms"


def reuse(results: Results) -> list[Panel]:
    """Return the panel of the hit rates by node and cache; none without a hit."""
    rows: list[list[Cell]] = []
    each = [
        (node, cache, use) for node, uses in results.status.get("caches", {}).items() for cache, use in uses.items()
    ]
    for node, cache, use in each:
        if use["queries"]:
            label = number_of(results.status, cache)
            shown = [f"{use[key]:,}" for key in ("queries", "hits")]
            rows.append([node, label.about, label.unit, *shown, share(use["hits"], use["queries"])])
    about = "Over all attempts: a completion that a resumed run took from its store counts there too."
    columns = ["node", "cache", "of", "looked up", "there", "hit rate"]
    panel = Panel("What did not have to be computed", about, tables=[ReportTable(columns, rows)])
    return [panel] if any(use["hits"] for _, _, use in each) else []


def numbers(results: Results) -> list[Panel]:
    """Return the panel of the numbers that operators have registered (`Runtime.number`), with a table per group."""
    groups: dict[str, list[list[Cell]]] = {}
    described = results.status.get("numbers")  # an earlier version did not say what they are
    for key, value in run_totals(results).items():
        node, _, name = key.rpartition("/")
        label = number_of(results.status, name)
        if value and label.group and (described is None or name in described):
            groups.setdefault(label.group, []).append([node, label.about, f"{number(value)} {label.unit}".strip()])
    tables = [ReportTable(["of", group, ""], rows) for group, rows in groups.items()]
    return [Panel("What was counted", "Sums over all attempts; of memory the most.", tables=tables)] if tables else []
