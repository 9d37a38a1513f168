"""Reasons of rejects as they stand in rejects/, by the reason under which they are counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from pipeline.api.records import RejectKind
from pipeline.dataflow.reject_writer import OTHER_ROWS, PLACEHOLDER, VALUES_OF_A_ROW

KEYS = ("node", "kind", "counted_as")
Key = tuple[str, str, str]
"""Node, kind, and the reason with placeholders for what differs from row to row."""


def with_reason(rejects: pl.LazyFrame, wanted: Iterable[Key]) -> pl.LazyFrame:
    """Return the rows of rejects/ that are counted as one of `wanted`, with a column `counted_as`."""
    filtered = _replaced(pl.col("reason"), OTHER_ROWS)
    is_error = pl.col("kind") == RejectKind.ERROR.value
    counted_as = pl.when(is_error).then(_replaced(filtered, VALUES_OF_A_ROW)).otherwise(filtered)
    keys = pl.LazyFrame(list(wanted), schema=list(KEYS), orient="row")
    return rejects.with_columns(counted_as.alias("counted_as")).join(keys, on=KEYS, how="semi")


def of_all_rows(rejects: pl.LazyFrame, wanted: Iterable[Key]) -> dict[Key, str]:
    """Return the whole reason of those of `wanted` that have placeholders, and whose rows all have the same one."""
    wanted = [key for key in wanted if PLACEHOLDER.search(key[2])]
    if not wanted:
        return {}
    reasons = with_reason(rejects, wanted).group_by(KEYS).agg(pl.col("reason").unique().alias("reasons"))
    one = reasons.filter(pl.col("reasons").list.len() == 1).collect(engine="streaming")
    return {(found["node"], found["kind"], found["counted_as"]): found["reasons"][0] for found in one.to_dicts()}


def _replaced(text: pl.Expr, patterns: Sequence[tuple[str, str]]) -> pl.Expr:
    for pattern, instead in patterns:
        text = text.str.replace_all(pattern, instead)
    return text
