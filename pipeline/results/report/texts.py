"""The panel of text lengths and finish reasons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import polars as pl

from pipeline.results.figures import FINISH_REASON, Lengths, columns_named, counted, lengths, token_columns
from pipeline.results.reader import Results
from pipeline.results.report.charts import Bars, Chart, Histogram, Series, shares_table
from pipeline.results.report.panel import Panel

MOST_BINS = 40


def texts(results: Results) -> list[Panel]:
    """Return the panel: lengths of prompts and completions in tokens, and finish reasons."""
    charts: list[Chart] = []
    for folder in results.folders:
        rows = results.rows(folder)
        if rows is not None:
            where = f" in {folder}" if len(results.folders) > 1 else ""
            charts += [*_lengths(rows, token_columns(rows), where), *_finish_reasons(rows, where)]
    table = results.metrics("rows")
    if table is not None and not any(isinstance(chart, Histogram) for chart in charts):
        charts = [*_lengths_by_node(table), *charts]
    return [Panel("Lengths and finish reasons", charts=charts)] if charts else []


def _lengths(rows: pl.LazyFrame, columns: Sequence[str], where: str) -> Iterator[Histogram]:
    for column in columns:
        found = lengths(rows, column)
        if found.rows:
            yield _histogram(f"{column}{where}", column, found)


def _lengths_by_node(table: pl.LazyFrame) -> Iterator[Histogram]:
    """Yield histograms from the metrics, for results without columns of lengths (a node dropped them)."""
    for node in table.select("node").unique().collect()["node"].sort():
        rows = table.filter(pl.col("node") == node)
        yield from _lengths(rows, ("prompt_tokens", "completion_tokens"), f" at {node}")


def _finish_reasons(rows: pl.LazyFrame, where: str) -> Iterator[Bars]:
    about = "stop: the model ended its text. length: cut off at max_tokens."
    for column in columns_named(rows, [FINISH_REASON]):
        counts = counted(rows, column).sort("rows", column, descending=[True, False]).rows()
        if counts:
            labels = [f"{name}: {count:,}" for name, count in counts]
            series = [Series("rows", "c1", [count for _, count in counts])]
            yield Bars(f"{column}{where}", about, labels, series, "rows", shares_table("rows", counts))


def _histogram(title: str, column: str, found: Lengths) -> Histogram:
    low, high = found.values[0], found.values[-1]
    width = math.ceil((high - low + 1) / MOST_BINS)
    counts = [0] * math.ceil((high - low + 1) / width)
    for value, count in zip(found.values, found.counts, strict=True):
        counts[(value - low) // width] += count
    edges = [low + width * i for i in range(len(counts) + 1)]
    marks = [("median", found.quantile(0.5)), ("95th percentile", found.quantile(0.95))]
    mean = found.total / found.rows
    about = (
        f"{found.rows:,} rows, {found.total:,} tokens: {low:,} to {high:,} a row, {mean:,.1f} on average."
        f" Dashed: the median, {marks[0][1]:,}, and the 95th percentile, {marks[1][1]:,}."
    )
    colour = "c2" if "prompt_token" in column else "c1"
    return Histogram(title, about, edges, counts, "tokens", marks, colour)
