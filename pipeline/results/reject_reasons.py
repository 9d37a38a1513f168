"""Reasons of rejects as they stand in rejects/, by the reason under which they are counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

import polars as pl

from pipeline.api.records import KEPT, RejectKind
from pipeline.dataflow.reject_writer import OTHER_ROWS, VALUES_OF_A_ROW
from pipeline.results.reader import Results

KEYS = ("node", "kind", "counted_as")
Key = tuple[str, str, str]
"""Node, kind, and the reason with placeholders for what differs from row to row."""
_VALUE = r"'[^']*'|\brow (?:\d+(?:, lineage \[[\d, ]*\],)?|N)|\d+(?:,\d{3})*(?:\.\d+)?|N"
"""The pattern of what OTHER_ROWS and VALUES_OF_A_ROW find, and of their placeholders: the n-th match in a reason is the
value of the n-th in the text that it is counted as."""


def with_reason(rejects: pl.LazyFrame, wanted: Iterable[Key]) -> pl.LazyFrame:
    """Return the rows of rejects/ that are counted as one of `wanted`, with a column `counted_as`."""
    filtered = _replaced(pl.col("reason"), OTHER_ROWS)
    is_error = pl.col("kind") != RejectKind.FILTERED.value
    counted_as = pl.when(is_error).then(_replaced(filtered, VALUES_OF_A_ROW)).otherwise(filtered)
    keys = pl.LazyFrame(list(wanted), schema=list(KEYS), orient="row")
    return rejects.with_columns(counted_as.alias("counted_as")).join(keys, on=KEYS, how="semi")


def kept_errors(results: Results, wanted: Iterable[Key], columns: Mapping[str, str]) -> list[pl.LazyFrame]:
    """Return the errors of rows that stay, as rejects/ would have them. `columns`: where a node puts them."""
    nodes = {node for node, kind, _ in wanted if kind == KEPT}
    return [
        rows.filter(pl.col(columns[node]).is_not_null()).select(
            node=pl.lit(node), kind=pl.lit(KEPT), reason=pl.col(columns[node])
        )
        for rows, _ in results.tables()
        for node in nodes & columns.keys()
        if columns[node] in rows.collect_schema().names()
    ]


def with_placeholders(keys: Iterable[Key]) -> list[Key]:
    """Return those of `keys` whose reason has a placeholder."""
    return [key for key in keys if re.search("N|'…'", key[2])]


def of_all_rows(rejects: pl.LazyFrame, wanted: Iterable[Key]) -> dict[Key, str]:
    """Return the reason of each of `wanted` with what all its rows have in common in place of placeholders."""
    wanted = with_placeholders(wanted)
    if not wanted:
        return {}
    values, placeholders = (pl.col(name).str.extract_all(_VALUE) for name in ("reason", "counted_as"))
    values = pl.when(values.list.len() == placeholders.list.len()).then(values).otherwise(placeholders)
    each = with_reason(rejects, wanted).select(*KEYS, values.alias("value"), at=pl.int_ranges(values.list.len()))
    extremes = each.explode("value", "at").group_by(*KEYS, "at").agg(low=pl.min("value"), high=pl.max("value"))
    alike = extremes.filter(pl.col("low") == pl.col("high")).collect(engine="streaming")
    shared = {(tuple(key), at): value for *key, at, value, _ in alike.select(*KEYS, "at", "low", "high").rows()}

    def whole(key: Key) -> str:
        number = count()
        return re.sub(_VALUE, lambda found: shared.get((key, next(number)), found[0]), key[2])

    return {key: whole(key) for key in wanted}


def _replaced(text: pl.Expr, patterns: Sequence[tuple[str, str]]) -> pl.Expr:
    for pattern, instead in patterns:
        text = text.str.replace_all(pattern, instead.replace(r"\1", "${1}"))
    return text
