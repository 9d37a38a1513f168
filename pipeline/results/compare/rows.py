"""Compare the rows of two runs: join them, and compare values by their hashes.

Memory holds only keys and hashes, not texts, so runs of millions of rows can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from pipeline.api.records import LINEAGE, ROW
from pipeline.results.figures import columns_named
from pipeline.results.reader import Results

TEXTS = ("completion",)
DIFFERENCES = 3


@dataclass(frozen=True)
class Difference:
    """A row whose values differ. `key`: its join key as text."""

    key: str
    a: Any
    b: Any


@dataclass(frozen=True)
class Agreement:
    """Comparison of one column.

    Args:
        column: name of the column.
        equal: number of joined rows with equal values.
        first: the first rows that differ, in the order of the first run.
    """

    column: str
    equal: int
    first: Sequence[Difference]


@dataclass(frozen=True)
class Joined:
    """Result of joining the rows of two runs.

    Args:
        folder: `data`, or the folder of another sink.
        keys: the columns of the join.
        both, only_a, only_b: number of rows in both runs and in only one.
        columns: the comparison of each column.
    """

    folder: str
    keys: Sequence[str]
    both: int
    only_a: int
    only_b: int
    columns: Sequence[Agreement]


def joined(a: Results, b: Results, folder: str) -> Joined | None:
    """Join the rows of `folder` of both runs; None if one has no rows there, or they have no common key."""
    rows_a, rows_b = a.rows(folder), b.rows(folder)
    if rows_a is None or rows_b is None:
        return None
    keys = _keys(a, b, rows_a, rows_b)
    if not keys:
        return None
    columns = _compared(rows_a, rows_b, keys)
    left = _hashed(rows_a, keys, columns).with_columns(pl.lit(True).alias("in_a"))
    right = _hashed(rows_b, keys, columns).drop("place").with_columns(pl.lit(True).alias("in_b"))
    pairs = left.join(right, on=_names(keys), how="full", coalesce=True, suffix="_b").collect(engine="streaming")
    both = pairs.filter(pl.col("in_a") & pl.col("in_b"))
    same = {c: both[c] == both[f"{c}_b"] for c in columns}
    return Joined(
        folder,
        keys,
        len(both),
        pairs["in_b"].null_count(),
        pairs["in_a"].null_count(),
        [Agreement(c, int(same[c].sum()), _first(both.filter(~same[c]), c, rows_a, rows_b, keys)) for c in columns],
    )


def _keys(a: Results, b: Results, rows_a: pl.LazyFrame, rows_b: pl.LazyFrame) -> list[str]:
    """Return the id column if both runs have the same and it is unique, else `row`; and `lineage` if there is one."""
    common = set(rows_a.collect_schema().names()) & set(rows_b.collect_schema().names())
    lineage = [LINEAGE.name] if LINEAGE.name in common else []
    ids = [(run.config.get("data") or {}).get("id_column") for run in (a, b)]
    if ids[0] == ids[1] and ids[0] in common:
        keys = [ids[0], *lineage]
        if all(_tell_apart(rows, keys) for rows in (rows_a, rows_b)):
            return keys
    return [ROW.name, *lineage] if ROW.name in common else []


def _tell_apart(rows: pl.LazyFrame, keys: Sequence[str]) -> bool:
    selected = rows.select(_key(k) for k in keys)
    many, different = selected.select(pl.len(), pl.struct(pl.all()).n_unique().alias("different")).collect().row(0)
    return bool(many == different)


def _compared(rows_a: pl.LazyFrame, rows_b: pl.LazyFrame, keys: Sequence[str]) -> list[str]:
    """Return the columns of generated texts; if there are none, all common columns of equal type."""
    types_a, types_b = rows_a.collect_schema(), rows_b.collect_schema()
    common = [c for c in types_a if types_b.get(c) == types_a[c] and c not in {*keys, ROW.name, LINEAGE.name}]
    return [c for c in columns_named(rows_a, TEXTS) if c in common] or common


def _hashed(rows: pl.LazyFrame, keys: Sequence[str], columns: Sequence[str]) -> pl.LazyFrame:
    return rows.with_row_index("place").select("place", *map(_key, keys), *(pl.col(c).hash() for c in columns))


def _key(name: str) -> pl.Expr:
    """Return a key column as text, since the same ids may have different types in two inputs."""
    column = pl.col(name)
    if name == LINEAGE.name:
        column = column.cast(pl.List(pl.String)).list.join(".")
    return column.cast(pl.String).fill_null("").alias(f"key {name}")


def _names(keys: Sequence[str]) -> list[str]:
    return [f"key {name}" for name in keys]


def _first(
    different: pl.DataFrame, column: str, rows_a: pl.LazyFrame, rows_b: pl.LazyFrame, keys: Sequence[str]
) -> list[Difference]:
    """Return the first rows that differ. Reads the values of these rows only."""
    wanted = different.sort("place").head(DIFFERENCES).select("place", *_names(keys))
    if wanted.is_empty():
        return []
    values = [_values(rows, column, wanted, keys) for rows in (rows_a, rows_b)]
    shown = []
    for row in wanted.select(_names(keys)).rows():
        parts = [f"{name} {value}" for name, value in zip(keys, row, strict=True) if value != ""]
        shown.append(Difference(", ".join(parts), values[0][row], values[1][row]))
    return shown


def _values(rows: pl.LazyFrame, column: str, wanted: pl.DataFrame, keys: Sequence[str]) -> dict[tuple[str, ...], Any]:
    names = _names(keys)
    found = rows.select(*map(_key, keys), pl.col(column).alias("value"))
    table = found.join(wanted.lazy().select(names), on=names, how="semi").collect(engine="streaming")
    return {row[:-1]: row[-1] for row in table.select(*names, "value").rows()}
