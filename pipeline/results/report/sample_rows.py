"""The panel of sample rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from pipeline.monitor.wording import shortened
from pipeline.results.reader import Results
from pipeline.results.report.panel import Card, Panel
from pipeline.system.result_files import scan

ROWS = 5
MOST_FIELDS = 60
LONGEST_TEXT = 600
LONGEST_LIST = 8


def samples(results: Results) -> list[Panel]:
    """Return a panel per folder with equally spaced rows, the first and the last among them."""
    panels = []
    for folder in results.folders:
        cards = _cards(results, folder)
        if cards:
            where = f" of {folder}" if len(results.folders) > 1 else ""
            about = "The first row, the last, and some between them. Long values are cut."
            panels.append(Panel(f"Sample rows{where}", about, cards=cards))
    return panels


def _cards(results: Results, folder: str) -> list[Card]:
    shards = results.shards(folder)
    ends = list(accumulate(rows for _, rows in shards))
    cards = []
    for place in _spread(ends[-1] if ends else 0):
        shard = next(i for i, end in enumerate(ends) if place < end)
        path, rows = shards[shard]
        table = scan([path])
        if table is not None:
            values = table.slice(place - (ends[shard] - rows), 1).collect().row(0, named=True)
            cards.append(Card(_title(values, place), _fields(values)))
    return cards


def _fields(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    fields = [(name, shown(value)) for name, value in list(values.items())[:MOST_FIELDS]]
    more = len(values) - MOST_FIELDS
    return [*fields, ("", f"and {more} more columns")] if more > 0 else fields


def _spread(rows: int) -> list[int]:
    """Return equally spaced indices below `rows`, the first and the last among them."""
    count = min(ROWS, rows)
    return [i * (rows - 1) // max(1, count - 1) for i in range(count)]


def _title(values: Mapping[str, Any], place: int) -> str:
    lineage = values.get("lineage")
    number = values.get("row", place)
    return f"Row {number:,}" + (f", lineage {', '.join(map(str, lineage))}" if lineage else "")


def shown(value: object) -> str:
    """Format a value with at most LONGEST_TEXT characters; of a list of numbers the first ones and its length."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return shortened(value, LONGEST_TEXT)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list) and not any(isinstance(inner, str | list | dict) for inner in value[:LONGEST_LIST]):
        more = f", ... {len(value):,} values" if len(value) > LONGEST_LIST else ""
        return f"[{', '.join(map(shown, value[:LONGEST_LIST]))}{more}]"
    if isinstance(value, list | dict):
        return shortened(json.dumps(value, ensure_ascii=False, default=str), LONGEST_TEXT)
    return shortened(str(value), LONGEST_TEXT)
