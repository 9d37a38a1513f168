"""The panel of charts over running time: throughput and slots in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from pipeline.results.figures import AttemptFigures, attempts, on_one_axis
from pipeline.results.reader import Results
from pipeline.results.report.panel import Chart, Panel, Series

MOST_BINS = 48
FEWEST_BINS = 4
"""A run with fewer bins gets no chart."""
STEPS_A_BIN = 8
"""Enough steps that the rate of a bin does not depend on which side of its edge one falls."""
INTERVALS_A_BIN = 2
RESUMED = " A dashed line is where a later attempt begins; the time between attempts is left out."
UNFILLED = "unfilled_"
"""Prefix of the columns of metrics/steps.parquet that count empty slots by cause."""
CAUSES = {
    "input": ("no row waited", "c7"),
    "credit": ("readers were full", "c2"),
    "room": ("no room in the KV cache", "c4"),
    "tail": ("the input had ended", "c6"),
    "adapters": ("waited for other adapters", "c3"),
    "prefix": ("waited for a shared prompt", "c5"),
}
"""Name and colour of each cause of an empty slot."""


def over_time(results: Results) -> list[Panel]:
    """Return the panel with tokens/s (rows/s if no tokens are counted) and slots in use."""
    figures, steps = attempts(results), results.metrics("steps")
    steps = None if steps is None else on_one_axis(steps, figures)
    computed, slots = (None, None) if steps is None else (_computed(steps), _slots(steps))
    charts = [computed or _counted(results, figures), slots]
    starts = [attempt.begins_s for attempt in figures[1:]]
    resumed = RESUMED if starts else ""
    drawn = [replace(chart, about=chart.about + resumed, marks=starts) for chart in charts if chart]
    return [Panel("Over time", charts=drawn)] if drawn else []


def _slots(steps: pl.LazyFrame) -> Chart | None:
    causes = [name for name in steps.collect_schema().names() if name.startswith(UNFILLED)]
    bins = _bins(steps.filter(pl.col("decode_tokens") > 0), STEPS_A_BIN, "rows", *causes)
    if bins is None:
        return None
    table, edges = bins
    slots = table.select(pl.sum_horizontal("rows", *causes)).to_series()
    series = [Series("decoding", "c1", _percent(table["rows"], slots))]
    for column in causes:
        if table[column].sum():
            cause = column.removeprefix(UNFILLED)
            name, colour = CAUSES.get(cause, (cause, "c7"))
            series.append(Series(name, colour, _percent(table[column], slots)))
    about = (
        "Of all slots, those in which a row decoded, and why the others were empty."
        " Decode steps only; gaps are prefill or idle time."
    )
    return Chart("Slots in use, %", about, edges, series, "%", filled=True)


def _computed(steps: pl.LazyFrame) -> Chart | None:
    bins = _bins(steps, STEPS_A_BIN, "prefill_tokens", "decode_tokens")
    if bins is None:
        return None
    table, edges = bins
    width = edges[1] - edges[0]
    series = [
        Series("prompts", "c2", (table["prefill_tokens"] / width).to_list()),
        Series("completions", "c1", (table["decode_tokens"] / width).to_list()),
    ]
    about = "Tokens that the model computed in a second. What came from a store or from another row costs nothing here."
    return Chart("Tokens computed, tokens/s", about, edges, series, "tokens/s")


def _counted(results: Results, figures: Sequence[AttemptFigures]) -> Chart | None:
    """Return throughput by the counters of the stages: prompt tokens or, without any, rows that reached a sink."""
    stages = results.metrics("stages")
    if stages is None:
        return None
    nodes = results.config.get("nodes", {})
    read = {name for node in nodes.values() for name in node.get("inputs", ())}
    arrived = pl.when(pl.col("node").is_in([name for name in nodes if name not in read])).then("rows_in").otherwise(0)
    # The first interval of a part that is added later counts from the start: take the shortest one of that moment.
    moments = stages.group_by("attempt", "t_s").agg(
        pl.col("interval_s").min(), pl.col("tokens_in").sum(), arrived.sum().alias("rows")
    )
    middles = moments.with_columns(t_s=pl.col("t_s") - pl.col("interval_s") / 2)
    bins = _bins(on_one_axis(middles, figures), INTERVALS_A_BIN, "interval_s", "tokens_in", "rows")
    if bins is None:
        return None
    table, edges = bins
    title, column, name, unit = "Rows finished, rows/s", "rows", "rows", "rows/s"
    if table["tokens_in"].sum():
        title, column, name, unit = "Prompt tokens read, tokens/s", "tokens_in", "prompts", "tokens/s"
    rates = [n / s if s else None for n, s in zip(table[column], table["interval_s"], strict=True)]
    about = "In a second, by the counters of the stages."
    return Chart(title, about, edges, [Series(name, "c1", rates)], unit)


def _bins(table: pl.LazyFrame, rows_a_bin: int, *columns: str) -> tuple[pl.DataFrame, list[float]] | None:
    """Return sums of `columns` in bins of equal time, and the edges of the bins; None if there are too few rows."""
    many, last = table.select(pl.len(), pl.col("t_s").max()).collect().row(0)
    count = min(MOST_BINS, many // rows_a_bin)
    if count < FEWEST_BINS or not last:
        return None
    width = last / count
    place = (pl.col("t_s") / width).floor().cast(pl.Int64).clip(0, count - 1)
    sums = table.group_by(bin=place).agg(pl.col(columns).cast(pl.Float64).sum()).collect(engine="streaming")
    bins = pl.DataFrame({"bin": range(count)}, schema={"bin": pl.Int64})
    filled = bins.join(sums, on="bin", how="left", maintain_order="left").fill_null(0.0)
    return filled, [width * i for i in range(count + 1)]


def _percent(part: pl.Series, whole: pl.Series) -> list[float | None]:
    return [100 * p / w if w else None for p, w in zip(part, whole, strict=True)]
