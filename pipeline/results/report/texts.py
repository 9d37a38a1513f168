"""The panel on the texts that came out: their lengths and how they ended."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import polars as pl

from pipeline.monitor.wording import share
from pipeline.results.figures import FINISH_REASON, Lengths, columns_named, counted, lengths, token_columns
from pipeline.results.reader import Results
from pipeline.results.report.charts import Bars, Chart, Histogram, Series, Table
from pipeline.results.report.panel import Panel

MOST_BINS = 40


def texts(results: Results) -> list[Panel]:
    """How long prompts and completions are, in tokens, and how completions ended."""
    charts: list[Chart] = []
    for folder in results.folders:
        rows = results.rows(folder)
        if rows is not None:
            where = f" in {folder}" if len(results.folders) > 1 else ""
            charts += [*_lengths(rows, where), *_finish_reasons(rows, where)]
    if not any(isinstance(chart, Histogram) for chart in charts):
        charts = [*_lengths_by_node(results), *charts]
    return [Panel("Lengths and finish reasons", charts=charts)] if charts else []


def _lengths(rows: pl.LazyFrame, where: str) -> Iterator[Histogram]:
    for column in token_columns(rows):
        found = lengths(rows, column)
        if found.rows:
            yield _histogram(f"{column}{where}", column, found)


def _lengths_by_node(results: Results) -> Iterator[Histogram]:
    """By the metrics, where data/ has no lengths (a node has dropped the columns)."""
    table = results.metrics("rows")
    if table is None:
        return
    for node in table.select("node").unique().collect()["node"].sort():
        for column in ("prompt_tokens", "completion_tokens"):
            found = lengths(table.filter(pl.col("node") == node), column)
            if found.rows:
                yield _histogram(f"{column} at {node}", column, found)


def _finish_reasons(rows: pl.LazyFrame, where: str) -> Iterator[Bars]:
    for column in columns_named(rows, [FINISH_REASON]):
        found = counted(rows, column).sort("rows", column, descending=[True, False])
        if len(found):
            yield _reasons(f"{column}{where}", found[column].to_list(), found["rows"].to_list())


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


def _reasons(title: str, names: Sequence[str], rows: Sequence[int]) -> Bars:
    total = sum(rows)
    cells = [[name, f"{count:,}", share(count, total)] for name, count in zip(names, rows, strict=True)]
    about = "stop: the model ended its text. length: cut off at max_tokens."
    numbers = Table(["", "rows", "share"], cells)
    return Bars(
        title,
        about,
        [f"{n}: {c:,}" for n, c in zip(names, rows, strict=True)],
        [Series("rows", "c1", rows)],
        "rows",
        numbers,
    )
