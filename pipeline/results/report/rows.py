"""Panels on the rows: samples of results, rejects by reason, lengths of texts and finish reasons."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import polars as pl

from pipeline.api.records import KEPT, record_json, value_as_text
from pipeline.monitor.wording import share, shortened
from pipeline.results.figures import columns_named, frequencies, quantile, token_columns
from pipeline.results.reader import Results
from pipeline.results.reject_reasons import KEYS, with_reason
from pipeline.results.report.panel import Card, Chart, Panel, ReportTable, Series
from pipeline.results.report.pictures import Pictures, pictures
from pipeline.system.known_secrets import without_data_urls
from pipeline.system.result_files import shown_rows

SAMPLES = 5
MOST_FIELDS = 60
MOST_REASONS = 12
MOST_BINS = 40
LONGEST_TEXT = 600
LONGEST_REASON = 300
LONGEST_LIST = 8


def samples(results: Results) -> list[Panel]:
    """Return a panel per folder with equally spaced rows, the first and the last among them."""
    panels = []
    for folder in results.folders:
        cards = _samples_of(results, folder)
        if cards:
            where = f" of {folder}" if len(results.folders) > 1 else ""
            about = "The first row, the last, and some between them. Long values are cut."
            panels.append(Panel(f"Sample rows{where}", about, cards=cards))
    return panels


def _samples_of(results: Results, folder: str) -> list[Card]:
    shards = results.shards(folder)
    ends = list(accumulate(rows for _, rows in shards))
    total = ends[-1] if ends else 0
    count = min(SAMPLES, total)
    cards = []
    for place in (i * (total - 1) // max(1, count - 1) for i in range(count)):
        shard = next(i for i, end in enumerate(ends) if place < end)
        path, rows = shards[shard]
        table = results.scanned(folder, [path])
        if table is not None:
            row = table.slice(place - (ends[shard] - rows), 1).collect()
            cards += [_sample(values, place, pictures(values, results.config)) for values in shown_rows(row)]
    return cards


def _sample(values: Mapping[str, Any], place: int, images: Pictures) -> Card:
    lineage = values.get("lineage")
    title = f"Row {values.get('row', place):,}" + (f", lineage {', '.join(map(str, lineage))}" if lineage else "")
    fields = [(name, shown(value)) for name, value in list(values.items())[:MOST_FIELDS]]
    more = len(values) - MOST_FIELDS
    return Card(title, [*fields, ("", f"and {more} more columns")] if more > 0 else fields, images)


def shown(value: object) -> str:
    """Format a value with at most LONGEST_TEXT characters; of a list of numbers the first ones and its length."""
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list) and not any(isinstance(inner, str | list | dict) for inner in value[:LONGEST_LIST]):
        more = f", ... {len(value):,} values" if len(value) > LONGEST_LIST else ""
        return f"[{', '.join(map(shown, value[:LONGEST_LIST]))}{more}]"
    if isinstance(value, list | dict):
        return shortened(without_data_urls(record_json(value)), LONGEST_TEXT)
    return shortened(without_data_urls(value_as_text(value)), LONGEST_TEXT)


def rejects(results: Results) -> list[Panel]:
    """Return the panel: rejects by reason, the most frequent first, each with its first row."""
    reasons: Sequence[Mapping[str, Any]] = results.manifest.get("rejects", [])
    if not reasons:
        return []
    ranked = sorted(reasons, key=lambda r: (-r["rows"], r["node"], r["reason"]))
    top, left = ranked[:MOST_REASONS], ranked[MOST_REASONS:]
    cells = [
        [f"{r['rows']:,}", shortened(r["reason"], LONGEST_REASON), r["kind"], r["node"], _share(results, r)]
        for r in top
    ]
    caption = f"and {sum(r['rows'] for r in left):,} rows for {len(left):,} other reasons" if left else ""
    table = ReportTable(["rows", "reason", "kind", "node", "of the rows there"], cells, caption)
    title = "Rejects, and rows kept with an error" if any(r["kind"] == KEPT for r in reasons) else "Rejects"
    return [Panel(title, tables=[table], cards=_examples(results, top))]


def _share(results: Results, reject: Mapping[str, Any]) -> str | None:
    """Return the share of the node's rows: of those it made where it expands, of those it took in where it merges."""
    counts = results.accounts.get(reject["node"])
    return None if counts is None else share(reject["rows"], counts.rows_in + max(counts.expanded, 0))


def _examples(results: Results, ranked: Sequence[Mapping[str, Any]]) -> list[Card]:
    table = results.rejects()
    if table is None:
        return []
    wanted = [(reject["node"], reject["kind"], reject["reason"]) for reject in ranked]
    rejects = with_reason(table, wanted)
    firsts = rejects.join(rejects.group_by(KEYS).agg(pl.col("row").min()), on=[*KEYS, "row"], how="semi")
    records = firsts.collect(engine="streaming").to_dicts()
    cards = {tuple(record[key] for key in KEYS): _example(record) for record in records}
    return [cards[key] for key in wanted if key in cards]


def _example(record: Mapping[str, Any]) -> Card:
    fields = [("reason", shortened(record["reason"], LONGEST_REASON))]
    if record.get("file"):
        line = record.get("line")
        fields.append(("from", record["file"] + (f", line {line}" if line is not None else "")))
    fields += _rejected_row(record.get("record") or "")
    return Card(f"{record['kind']} at {record['node']}: row {record['row']:,}", fields)


def _rejected_row(record: str) -> list[tuple[str, str]]:
    """Return the columns of a rejected row without token ids, or the whole record if it is not a JSON object."""
    try:
        row = json.loads(record)
    except (ValueError, RecursionError):  # no JSON; thousands of brackets
        row = record
    if not isinstance(row, dict):
        return [("the row", shown(row))] if row else []
    return [(name, shown(value)) for name, value in row.items() if not name.endswith("_ids")][:MOST_FIELDS]


def texts(results: Results) -> list[Panel]:
    """Return the panel: lengths of prompts and completions in tokens, and finish reasons."""
    charts = [chart for rows, where in results.tables() for chart in _lengths(rows, token_columns(rows), where)]
    reasons = [table for rows, where in results.tables() for table in _finish_reasons(rows, where)]
    metrics = results.metrics("rows")
    if metrics is not None and not charts:
        charts = list(_lengths_by_node(metrics))
    return [Panel("Lengths and finish reasons", charts=charts, tables=reasons)] if charts or reasons else []


def _lengths(rows: pl.LazyFrame, columns: Sequence[str], where: str) -> Iterator[Chart]:
    for column in columns:
        counts = frequencies(rows, column)
        if len(counts):
            yield _histogram(f"{column}{where}", column, counts, "c2" if "prompt_token" in column else "c1")


def _lengths_by_node(table: pl.LazyFrame) -> Iterator[Chart]:
    """Yield histograms from the metrics, for results without columns of lengths (a node dropped them)."""
    for node in table.select("node").unique().collect()["node"].sort():
        rows = table.filter(pl.col("node") == node)
        yield from _lengths(rows, ("prompt_tokens", "completion_tokens"), f" at {node}")


def _finish_reasons(rows: pl.LazyFrame, where: str) -> Iterator[ReportTable]:
    about = "stop: the model ended its text. length: cut off at max_tokens."
    for column in columns_named(rows, ["finish_reason"]):
        counts = frequencies(rows, column).sort("rows", descending=True, maintain_order=True).rows()
        if counts:
            series = [Series("rows", "c1", [count for _, count in counts])]
            total = sum(count for _, count in counts)
            cells = [[name, f"{count:,}", share(count, total)] for name, count in counts]
            yield ReportTable([f"{column}{where}", "rows", "share"], cells, about, series)


def _histogram(title: str, column: str, counts: pl.DataFrame, colour: str) -> Chart:
    low, high = counts[column][0], counts[column][-1]
    width = math.ceil((high - low + 1) / MOST_BINS)
    edges = list(range(low, high + width + 1, width))
    bins = [0] * (len(edges) - 1)
    for value, rows in counts.rows():
        bins[(value - low) // width] += rows
    many, total = sum(counts["rows"]), sum(value * rows for value, rows in counts.rows())
    median, most = (quantile(counts, column, share) for share in (0.5, 0.95))
    about = (
        f"{many:,} rows, {total:,} tokens: {low:,} to {high:,} a row, {total / many:,.1f} on average."
        f" Dashed: the median, {median:,}, and the 95th percentile, {most:,}."
    )
    return Chart(title, about, edges, [Series("rows", colour, bins)], "rows", "tokens", True, (median, most))
