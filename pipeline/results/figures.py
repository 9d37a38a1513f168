"""Figures of a run, from its metrics and rows: attempts, totals, times of stages, decode steps, lengths of texts.

Queries aggregate while they read, so memory does not grow with the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

import polars as pl

from pipeline.api.numbers import added
from pipeline.monitor.wording import number, seconds, share
from pipeline.results.reader import Results
from pipeline.run_dir.state import RunStatus

UNKNOWN_END = "killed"
"""State of an attempt that left metrics but no record of its end."""
STILL_OPEN = "running, or killed"
"""State of the last attempt, if the two cannot be told apart."""
ROW_COUNTS = {
    "source_rows": "rows done",
    "data_rows": "rows in data",
    "error_rejects": "rows with errors",
    "filtered_rejects": "rows filtered out",
    "kept_with_error": "errors in rows that stay",
}
"""Display name by key of the manifest's counts."""
STEP_PARTS = {
    "form_s": ("filling the batch", "c3"),
    "encode_s": ("encoding images", "c5"),
    "draft_s": ("drafting", "c4"),
    "decode_s": ("in the model", "c1"),
    "sample_s": ("choosing tokens", "c2"),
}
"""Name and colour of each part of a step, by its column of metrics/steps.parquet."""
OF_A_MOMENT = ("attempt", "worker", "t_s", "interval_s", "node", "queue_rows")
"""Columns of metrics/stages.parquet that cannot be added up."""
TOKEN_COUNTS = ("prompt_token_count", "completion_token_count", "token_count")


@dataclass(frozen=True)
class AttemptFigures:
    """One attempt. If it was killed, `exit_code`, `started_at` and `rows` (source rows that it committed) are None,
    `versions` and `machine` are empty, and `wall_s` is the time up to its last metrics. `begins_s`: running time of all
    attempts before it, without the pauses between them."""

    number: int
    state: str
    exit_code: int | None
    started_at: str | None
    wall_s: float
    rows: int | None
    tokens_in: int
    tokens_out: int
    begins_s: float
    versions: Mapping[str, Any]
    machine: Mapping[str, Any]


class Figure(NamedTuple):
    """A figure of a run. `value`: None if it is unknown or not a number. `text`: for display."""

    value: float | None
    text: str


@lru_cache(maxsize=2)
def attempts(results: Results) -> list[AttemptFigures]:
    """Return all attempts that have left metrics, in order."""
    runs, stages = results.metrics("run"), results.metrics("stages")
    ended = {} if runs is None else {row["attempt"]: row for row in runs.collect().to_dicts()}
    stage_sums: dict[int, dict[str, Any]] = {}
    if stages is not None:
        sums = (pl.col("t_s").max(), pl.col("tokens_in").sum(), pl.col("tokens_out").sum())
        stage_sums = {row["attempt"]: row for row in stages.group_by("attempt").agg(*sums).collect().to_dicts()}
    numbers = sorted({*ended, *stage_sums})
    figures: list[AttemptFigures] = []
    for n in numbers:
        values = ended.get(n) or stage_sums[n]
        open_end = n == numbers[-1] and results.manifest.get("status") == RunStatus.RUNNING
        attempt = AttemptFigures(
            number=n,
            state=values.get("state") or (STILL_OPEN if open_end else UNKNOWN_END),
            exit_code=values.get("exit_code"),
            started_at=values.get("started_at"),
            wall_s=max(values.get("wall_s") or 0.0, stage_sums.get(n, {}).get("t_s") or 0.0),
            rows=values.get("rows"),
            tokens_in=values.get("tokens_in") or 0,
            tokens_out=values.get("tokens_out") or 0,
            begins_s=running_s(figures),
            versions=json.loads(values.get("versions") or "{}"),
            machine=json.loads(values.get("machine") or "{}"),
        )
        figures.append(attempt)
    return figures


def running_s(figures: Sequence[AttemptFigures]) -> float:
    """Return the total running time of the attempts."""
    return sum(attempt.wall_s for attempt in figures)


def on_one_axis(table: pl.LazyFrame, figures: Sequence[AttemptFigures]) -> pl.LazyFrame:
    """Return a metrics table with `t_s` as running time over all attempts, not since the start of each."""
    begins = pl.LazyFrame(
        {"attempt": [a.number for a in figures], "begins_s": [a.begins_s for a in figures]},
        schema={"attempt": pl.Int32, "begins_s": pl.Float64},
    )
    joined = table.join(begins, on="attempt")
    return joined.with_columns(t_s=pl.col("t_s") + pl.col("begins_s")).drop("begins_s")


def run_figures(results: Results) -> dict[str, Figure]:
    """Return the figures of the whole run by display name, in display order."""
    figures = attempts(results)
    took = running_s(figures)
    tokens = {
        "prompt tokens": sum(a.tokens_in for a in figures),
        "completion tokens": sum(a.tokens_out for a in figures),
    }
    used = slots_used(results)
    numbers = {
        **{name: results.counts.get(key, 0) for key, name in ROW_COUNTS.items()},
        "running time": took,
        **tokens,
        **{f"{name} a second": n / took for name, n in tokens.items() if took and n},
        "slots in use": used,
        "cost at servers": (cost := run_totals(results).get("cost")),
        "attempts": len(figures),
    }
    texts = {"running time": seconds(took), "slots in use": share(used or 0, 1), "cost at servers": f"{cost or 0:,.4f}"}
    return {name: Figure(n, texts.get(name) or number(n)) for name, n in numbers.items() if n is not None}


@lru_cache(maxsize=2)
def run_totals(results: Results) -> Mapping[str, float]:
    """Return the totals of the run over all its attempts, by name: metrics/run.parquet has those of attempts that have
    ended, status.json those of versions that kept them there."""
    table = results.metrics("run")
    texts = [] if table is None else table.select("totals").collect()["totals"].to_list()
    ended, kept = added(*map(json.loads, texts)), results.status.get("totals", {})
    return {key: max(ended.get(key, 0.0), kept.get(key, 0.0)) for key in {**ended, **kept}}


def stage_times(results: Results) -> list[dict[str, Any]]:
    """Return `node` and the summed counters and clocks of each stage, in the order of the graph, parts after their
    node."""
    stages = results.metrics("stages")
    if stages is None:
        return []
    counters = [c for c in stages.collect_schema().names() if c not in OF_A_MOMENT]
    sums = stages.group_by("node").agg(pl.col(counters).sum()).collect().to_dicts()
    nodes: Mapping[str, Any] = results.config.get("nodes") or {}
    order = list(TopologicalSorter({name: node.get("inputs", ()) for name, node in nodes.items()}).static_order())

    def place(row: dict[str, Any]) -> tuple[int, str]:
        node = row["node"].partition("/")[0]
        return (order.index(node) if node in order else len(order), row["node"])

    return sorted(sums, key=place)


def slots_used(results: Results) -> float | None:
    """Return the share of slots in which rows decoded, over all decode steps; None if there were none."""
    totals = run_totals(results)
    return totals["slot_steps_used"] / totals["slot_steps"] if totals.get("slot_steps") else None


def step_sums(results: Results) -> list[dict[str, Any]]:
    """Return sums over steps with and without prompts: `prompts` (bool), `steps`, `tokens`, and STEP_PARTS."""
    steps = results.metrics("steps")
    if steps is None:
        return []
    tokens = (pl.col("prefill_tokens") + pl.col("decode_tokens")).cast(pl.Int64).sum()
    grouped = steps.group_by(prompts=pl.col("prefill_tokens") > 0)
    there = set(steps.collect_schema().names())  # runs of before have no images
    parts = [(pl.col(part) if part in there else pl.lit(0.0).alias(part)).sum() for part in STEP_PARTS]
    sums = grouped.agg(pl.len().alias("steps"), tokens.alias("tokens"), *parts)
    return sums.sort("prompts", descending=True).collect().to_dicts()


def columns_named(rows: pl.LazyFrame, names: Sequence[str]) -> list[str]:
    """Return the columns of `rows` named as in `names`, also with a prefix (`judge_completion`), in their order."""
    return [c for c in rows.collect_schema().names() if any(c == n or c.endswith(f"_{n}") for n in names)]


def token_columns(rows: pl.LazyFrame) -> list[str]:
    """Return the columns of token counts in `rows`."""
    schema = rows.collect_schema()
    return [column for column in columns_named(rows, TOKEN_COUNTS) if schema[column].is_integer()]


def quantile(counts: pl.DataFrame, column: str, share: float) -> int:
    """Return the smallest value of `column` that at least `share` of the rows do not exceed. `counts`: as `frequencies`
    returns them, of one row at least."""
    reached = counts.filter(pl.col("rows").cum_sum() >= share * pl.col("rows").sum())
    return int(reached[column][0])


def frequencies(rows: pl.LazyFrame, column: str) -> pl.DataFrame:
    """Return the number of rows (`rows`) for each value of `column`, without nulls, in ascending order."""
    grouped = rows.select(column).drop_nulls().group_by(column).agg(pl.len().cast(pl.Int64).alias("rows"))
    return grouped.sort(column).collect(engine="streaming")
