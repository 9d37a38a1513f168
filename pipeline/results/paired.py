"""Statistics of runs: shares of booleans and means of numbers, of one, or paired over the rows that two have.

Queries aggregate while they read; of a row only its key and its booleans and numbers are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import polars as pl

from pipeline.api.intervals import mcnemar
from pipeline.api.records import ROW
from pipeline.results.figures import columns_named

SEEDS = ("seed",)
"""Columns of numbers that measure nothing, also with a prefix (`judge_seed`)."""


class PairedShare(NamedTuple):
    """Boolean column of two runs, over the `rows` in which both have a value: how many are true in A, in B, in A alone
    and in B alone."""

    column: str
    rows: int
    true_a: int
    true_b: int
    only_a: int
    only_b: int

    @property
    def p(self) -> float:
        """The p value of McNemar's exact test: no difference between A and B makes the rows that differ split at least
        so unevenly with this probability."""
        return mcnemar(self.only_a, self.only_b)


class PairedMean(NamedTuple):
    """Column of numbers in two runs, over the `rows` in which both have a finite value (means and `standard_error` of
    the difference B - A are None if there are too few). `differ`: rows of all that both have with unequal values, null
    among them."""

    column: str
    rows: int
    mean_a: float | None
    mean_b: float | None
    difference: float | None
    standard_error: float | None
    differ: int


def measured(rows_a: pl.LazyFrame, rows_b: pl.LazyFrame, keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns of booleans and those of numbers that both have, without `keys`, `row` and seeds."""
    types_a, types_b = rows_a.collect_schema(), rows_b.collect_schema()
    others = {*keys, ROW.name, *columns_named(rows_a, SEEDS)}
    common = [c for c in types_a if c in types_b and c not in others]
    return (
        [c for c in common if types_a[c] == types_b[c] == pl.Boolean],
        [c for c in common if types_a[c].is_numeric() and types_b[c].is_numeric()],
    )


def means(rows: pl.LazyFrame, keys: Sequence[str]) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Return the share of true of each column of booleans, and the mean of each column of numbers, over the rows that
    have a value (a finite one). They are the columns that `measured` returns."""
    booleans, numbers = measured(rows, rows, keys)
    wanted = [pl.col(c).mean() for c in booleans] + [_finite(pl.col(c)).mean() for c in numbers]
    named = [expression.alias(str(i)) for i, expression in enumerate(wanted)]
    values = iter(rows.select(named).collect(engine="streaming").row(0) if named else ())
    return dict(zip(booleans, islice(values, len(booleans)), strict=True)), dict(zip(numbers, values, strict=True))


def paired(
    pairs: pl.LazyFrame, booleans: Sequence[str], numbers: Sequence[str]
) -> tuple[list[PairedShare], list[PairedMean]]:
    """Return the statistics of the columns. `pairs` has a row for each that both runs have, with the columns `a C` and
    `b C` for each column C."""
    wanted = [expression for c in booleans for expression in _counts(c)]
    wanted += [expression for c in numbers for expression in _moments(c)]
    named = [expression.alias(str(i)) for i, expression in enumerate(wanted)]
    values = iter(pairs.select(named).collect(engine="streaming").row(0) if named else ())
    return (
        [PairedShare(c, *islice(values, 5)) for c in booleans],
        [PairedMean(c, *islice(values, 6)) for c in numbers],
    )


def _counts(column: str) -> list[pl.Expr]:
    """Return the fields of PairedShare behind `column`. False & null is False in Arrow and Polars, True & null null."""
    a, b = pl.col(f"a {column}"), pl.col(f"b {column}")
    of_a, of_b = a & b.is_not_null(), b & a.is_not_null()
    return [(a.is_not_null() & b.is_not_null()).sum(), of_a.sum(), of_b.sum(), (a & ~b).sum(), (~a & b).sum()]


def _moments(column: str) -> list[pl.Expr]:
    """Return the fields of PairedMean behind `column`."""
    sides = pl.col(f"a {column}"), pl.col(f"b {column}")
    a, b = map(_finite, sides)
    difference = b - a
    both = difference.is_not_null()
    error = difference.std() / difference.count().sqrt()
    means = [value.filter(both).mean() for value in (a, b)]
    return [difference.count(), *means, difference.mean(), error, sides[0].ne_missing(sides[1]).sum()]


def _finite(column: pl.Expr) -> pl.Expr:
    value = column.cast(pl.Float64)
    return pl.when(value.is_finite()).then(value)
