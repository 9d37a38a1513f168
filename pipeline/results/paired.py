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
    and in B alone; and in how many prompts more rows are true in A, and in B. Without samples a row is a prompt."""

    column: str
    rows: int
    true_a: int
    true_b: int
    only_a: int
    only_b: int
    prompts_a: int
    prompts_b: int

    @property
    def p(self) -> float:
        """The p value of McNemar's exact test: no difference between A and B makes the prompts that differ split at
        least so unevenly with this probability. With samples it is the sign test of prompts, since samples of one
        prompt depend on each other."""
        return mcnemar(self.prompts_a, self.prompts_b)


class PairedMean(NamedTuple):
    """Column of numbers in two runs, over the `rows` in which both have a finite value (means and `standard_error` of
    the difference B - A, over prompts, are None if there are too few). `differ`: rows of all that both have with
    unequal values, null among them."""

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
    pairs: pl.LazyFrame, booleans: Sequence[str], numbers: Sequence[str], prompt: str | None = None
) -> tuple[list[PairedShare], list[PairedMean]]:
    """Return the statistics of the columns. `pairs` has a row for each that both runs have, with the columns `a C` and
    `b C` for each column C. `prompt`: the column that says of which prompt a row is; None: each is of another."""
    known = [*map(_counts, booleans), *map(_moments, numbers)]
    values = [value.alias(f"{i} {k}") for i, each in enumerate(known) for k, value in enumerate(each)]
    if not values:
        return [], []
    prompts = pairs.select(values) if prompt is None else pairs.group_by(prompt).agg(value.sum() for value in values)
    names = [[pl.col(f"{i} {k}") for k in range(len(each))] for i, each in enumerate(known)]
    wanted = [e for i, each in enumerate(names) for e in (_share(*each) if i < len(booleans) else _mean(*each))]
    named = [expression.alias(str(i)) for i, expression in enumerate(wanted)]
    row = iter(prompts.select(named).collect(engine="streaming").row(0))
    return (
        [PairedShare(c, *islice(row, 7)) for c in booleans],
        [PairedMean(c, *islice(row, 6)) for c in numbers],
    )


def _counts(column: str) -> list[pl.Expr]:
    """Return of each row whether both have a value, and whether it is true in A, in B, in A alone, in B alone."""
    a, b = pl.col(f"a {column}"), pl.col(f"b {column}")
    both = a.is_not_null() & b.is_not_null()
    return [(both & value).fill_null(value=False).cast(pl.Int64) for value in (both, a, b, a & ~b, ~a & b)]


def _share(rows: pl.Expr, true_a: pl.Expr, true_b: pl.Expr, only_a: pl.Expr, only_b: pl.Expr) -> list[pl.Expr]:
    """Return the fields of PairedShare behind `column`, from the sums of prompts."""
    sums = [value.sum() for value in (rows, true_a, true_b, only_a, only_b)]
    return [*sums, (only_a > only_b).sum(), (only_b > only_a).sum()]


def _moments(column: str) -> list[pl.Expr]:
    """Return of each row whether both have a finite value, the two, their difference, and whether the sides differ."""
    sides = pl.col(f"a {column}"), pl.col(f"b {column}")
    a, b = map(_finite, sides)
    both = (b - a).is_not_null()
    values = [pl.when(both).then(value).otherwise(0.0) for value in (a, b, b - a)]
    return [both.cast(pl.Int64), *values, sides[0].ne_missing(sides[1]).cast(pl.Int64)]


def _mean(rows: pl.Expr, a: pl.Expr, b: pl.Expr, difference: pl.Expr, differ: pl.Expr) -> list[pl.Expr]:
    """Return the fields of PairedMean behind `column`, from the sums of prompts. The variance is that of a ratio of
    sums over prompts; where a prompt is a row, that of a mean."""
    count, prompts = rows.sum(), (rows > 0).sum()
    means = [pl.when(count > 0).then(value.sum() / count) for value in (a, b, difference)]
    squares = ((difference - rows * (difference.sum() / count)) ** 2).sum()
    error = pl.when(prompts > 1).then((squares * prompts / (prompts - 1)).sqrt() / count)
    return [count, *means, error, differ.sum()]


def _finite(column: pl.Expr) -> pl.Expr:
    value = column.cast(pl.Float64)
    return pl.when(value.is_finite()).then(value)
