"""Choose the rows of a run that people label: at random from strata of what the judge said of them.

Of all rows only the columns of `--by` are in memory, with the place of each row; of samples of one prompt also `row`
and `lineage`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.api.errors import ConfigError, did_you_mean
from pipeline.api.records import LINEAGE, ROW
from pipeline.labels.label_files import plain_stratum, text_of

DISAGREEMENT = "disagreement"
"""Name in `--by` for rows of which the samples (`n`) of one prompt have different verdicts."""
MOST_VALUES = 20
"""Different values that a verdict may have."""
BANDS = 5
"""Bands of a number in rows that are equal in the rest, with equally many rows each."""
PLACE = " place"
"""Column of rows that strata are made of: the position of each row in the files of the run."""
LEAST = 2
"""Rows that are taken of each stratum, so that its spread can be told."""
TEXTS = (pl.String, pl.Boolean, pl.Enum, pl.Categorical)
"""Types of columns that a verdict has as it is; numbers may be one where they are few."""
SHOWN = 60
"""Characters of a stratum's name in a line."""
Names = Sequence[str]


class By(NamedTuple):
    """What strata are made of: the column of the verdict (None: there is none), all columns of texts and booleans, the
    verdict's among them, a column of numbers, and whether samples of one prompt disagree."""

    verdict: str | None
    values: tuple[str, ...] = ()
    number: str | None = None
    disagreement: bool = False

    @property
    def columns(self) -> Names:
        return [*self.values, *([self.number] if self.number else [])]


@dataclass(frozen=True, eq=False)
class Stratum:
    """Rows with the same values, and numbers in one band. `band`: from (None: no lower limit) and below (None: no
    limit); None of rows without a number. `places`: int64 [rows], positions of its rows in the files of the run."""

    values: Mapping[str, Any]
    number: str | None
    band: tuple[float | None, float | None] | None
    places: NDArray[np.int64]

    def name(self, *, blind: bool) -> str:
        """Return JSON by which `members` finds its rows; `blind`: in base64, so that a glance does not tell it."""
        band: Mapping[str, Any] = {self.number: self.band or []} if self.number else {}
        text = json.dumps({**self.values, **band}, ensure_ascii=False)
        return base64.b64encode(text.encode()).decode() if blind else text


class ReviewSample(NamedTuple):
    """The rows to label, in the order of the page: `places` int64 [n] in the files of the run, `stratum` int64 [n]."""

    strata: Sequence[Stratum]
    places: NDArray[np.int64]
    stratum: NDArray[np.int64]

    def name(self, run: str, folder: str) -> str:
        """Return what samples of the same strata of a run have in common, whatever their seeds: 16 hex digits."""
        strata = [[stratum.name(blind=False), len(stratum.places)] for stratum in self.strata]
        return hashlib.sha256(json.dumps([run, folder, strata]).encode()).hexdigest()[:16]


def members(name: str, types: Mapping[str, pl.DataType]) -> pl.Expr | None:
    """Return the condition of the rows of a stratum, by the name that labels have of it; None of a name that `review`
    does not give. `types`: of the columns of the rows. Raises ConfigError if they can have no such stratum."""
    text = plain_stratum(name)
    if not text.startswith("{"):
        return None
    try:
        cell = json.loads(text)
        return pl.all_horizontal(pl.lit(True), *(_condition(column, value, types) for column, value in cell.items()))
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        raise ConfigError(f"'{text[:SHOWN]}' is no stratum of the rows ({error})") from error


def _condition(column: str, value: Any, types: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return a part of what `members` does. Raises ValueError, TypeError or OverflowError if it is none."""
    needs = [*value, LINEAGE.name, ROW.name] if isinstance(value, Mapping) else [column]
    if lacks := [name for name in needs if name not in types]:
        raise ValueError(f"they have no column '{lacks[0]}'")
    if isinstance(value, Mapping):
        ((verdict, differs),) = value.items()
        return _differs(verdict).eq(bool(differs))
    if isinstance(value, list):
        if not types[column].is_numeric():
            raise ValueError(f"'{column}' is a {types[column]}")
        number = _number(column)
        if not value:
            return number.is_null()
        low, high = (None if limit is None else float(limit) for limit in value)
        limits = [number >= low] if low is not None else []
        return pl.all_horizontal(number.is_not_null(), *limits, *([number < high] if high is not None else []))
    if types[column].is_nested() or not isinstance(value, str | None):
        raise ValueError(f"'{column}' is a {types[column]}, and the value no text")
    return pl.col(column).cast(pl.String).eq_missing(pl.lit(value, pl.String))


def _number(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.Float64).fill_nan(None)


def _differs(verdict: str) -> pl.Expr:
    """Return whether samples of a row's prompt have another verdict: rows that are equal but in the last number of
    their lineage."""
    lineage = pl.col(LINEAGE.name)
    prompt = lineage.list.head((lineage.list.len().cast(pl.Int64) - 1).clip(0)).cast(pl.List(pl.String)).list.join(".")
    return pl.col(verdict).n_unique().over(ROW.name, prompt) > 1


def values_of(rows: pl.LazyFrame, column: str) -> list[str]:
    """Return the different values of a verdict as labels have them, without null, numbers in their order. Raises
    ConfigError if there are more than MOST_VALUES."""
    if (many := different_values(rows, column)) > MOST_VALUES + 1:
        raise ConfigError(
            f"column '{column}' has {many:,} different values, so it is no verdict (at most {MOST_VALUES});"
            " name the one of the verdict first in --by"
        )
    values = rows.select(pl.col(column).unique()).collect()[column].drop_nulls().sort().to_list()
    return [text for value in values if (text := text_of(value)) is not None]


def different_values(rows: pl.LazyFrame, column: str) -> int:
    """Return how many different values a column has, null among them."""
    return int(rows.select(pl.col(column).hash().n_unique()).collect().item())


def by_columns(rows: pl.LazyFrame, names: Names) -> By:
    """Return what the user names in `--by`. The verdict is the first column of texts or booleans or, without such a
    one, the first of numbers if they are few. Raises ConfigError."""
    types = rows.collect_schema()
    require(types.names() + ([DISAGREEMENT] if LINEAGE.name in types else []), names, "--by")
    columns = [name for name in names if name in types]
    values = [name for name in columns if types[name] in TEXTS]
    numbers = [name for name in columns if types[name].is_numeric()]
    if other := next((name for name in columns if name not in (*values, *numbers)), None):
        raise ConfigError(f"--by {other}: a column of {types[other]} makes no strata; texts, booleans and numbers do")
    if not values and numbers and different_values(rows, numbers[0]) <= MOST_VALUES:
        values = [numbers.pop(0)]
    if len(numbers) > 1:
        raise ConfigError(f"--by {', '.join(numbers)}: give one column of numbers; its bands make the strata")
    disagreement = len(columns) < len(names)
    if disagreement and not values:
        raise ConfigError(
            f"--by {DISAGREEMENT} is about the verdicts of one prompt; name the column of the verdict too"
        )
    return By(values[0] if values else None, tuple(values), next(iter(numbers), None), disagreement)


def require(there: Names, names: Names, option: str) -> None:
    """Raise ConfigError if one of the columns that `option` names is not there."""
    for name in names:
        if name not in there:
            hint = did_you_mean(name, there) or f"; there are {', '.join(there)}"
            raise ConfigError(f"{option}: the rows have no column '{name}'{hint}")


def sample_of(rows: pl.LazyFrame, by: By, wanted: int, seed: int) -> ReviewSample:
    """Return `wanted` rows, or all if there are fewer. From each stratum come as many as its share of the rows says, at
    least LEAST; neighbouring bands are one where strata are too many for that. The same rows and arguments give the
    same sample. Raises ConfigError if the values alone make too many strata, or there are no rows."""
    found = strata(rows, by)
    sizes = [len(stratum.places) for stratum in found]
    if not sizes:
        raise ConfigError("the run has no rows yet")
    while wanted < sum(sizes) and len(found) * LEAST > wanted:
        found = _fewer(found, wanted)
    rng = np.random.default_rng(seed)
    counts = allocation([len(stratum.places) for stratum in found], wanted)
    chosen = [rng.choice(s.places, n, replace=False) for s, n in zip(found, counts, strict=True)]
    order = rng.permutation(sum(counts))
    return ReviewSample(found, np.concatenate(chosen)[order], np.repeat(np.arange(len(found)), counts)[order])


def strata(rows: pl.LazyFrame, by: By) -> list[Stratum]:
    """Return the strata of all rows, which have the column PLACE, in the order of their values and bands."""
    for column in by.values:
        values_of(rows, column)
    values = [pl.col(column).cast(pl.String) for column in by.values]
    values += [_differs(by.values[0]).alias(f" {DISAGREEMENT}")] if by.disagreement else []
    number = [_number(by.number).alias(" number")] if by.number else []
    frame = rows.select(PLACE, *values, *number).collect()
    keys = [*by.values, *([f" {DISAGREEMENT}"] if by.disagreement else [])]
    groups = {(): frame} if not keys else frame.sort(*keys, maintain_order=True).partition_by(*keys, as_dict=True)
    found: list[Stratum] = []
    for key, group in groups.items():
        cell: dict[str, Any] = dict(zip(by.values, key, strict=False))
        cell |= {DISAGREEMENT: {by.values[0]: key[-1]}} if by.disagreement else {}
        places = group[PLACE].to_numpy().astype(np.int64)
        if by.number:
            found += _banded(cell, by.number, places, group[" number"].to_numpy())
        else:
            found.append(Stratum(cell, None, None, places))
    return found if len(frame) else []


def _banded(
    cell: Mapping[str, Any], column: str, places: NDArray[np.int64], numbers: NDArray[np.float64]
) -> list[Stratum]:
    """Return the strata of the rows of `cell`: those without a number, then BANDS with equally many rows, fewer where
    numbers are equal."""
    without = np.isnan(numbers)
    found = [Stratum(cell, column, None, places[without])] if without.any() else []
    places, numbers = places[~without], numbers[~without]
    if not len(numbers):
        return found
    ordered = np.sort(numbers)
    inner = sorted({float(ordered[len(ordered) * i // BANDS]) for i in range(1, BANDS)} - {float(ordered[0])})
    band = np.searchsorted(inner, numbers, side="right")
    limits = list(pairwise([None, *inner, None]))
    return found + [Stratum(cell, column, limit, places[band == i]) for i, limit in enumerate(limits)]


def _fewer(found: Sequence[Stratum], wanted: int) -> list[Stratum]:
    """Return strata of which the two smallest neighbouring bands are one."""
    pairs = [i for i, (a, b) in enumerate(pairwise(found)) if a.values == b.values and a.band and b.band]
    if not pairs:
        raise ConfigError(
            f"--rows {wanted} is too few for {len(found)} strata of --by: with {LEAST} rows of each it takes"
            f" --rows {LEAST * len(found)}, or fewer columns in --by"
        )
    i = min(pairs, key=lambda i: len(found[i].places) + len(found[i + 1].places))
    low, high = found[i], found[i + 1]
    assert low.band is not None
    assert high.band is not None
    both = replace(low, band=(low.band[0], high.band[1]), places=np.concatenate([low.places, high.places]))
    return [*found[:i], both, *found[i + 2 :]]


def allocation(sizes: Sequence[int], wanted: int) -> list[int]:
    """Return how many rows to take of strata with so many: shares of `wanted` in proportion, but at least LEAST, or all
    of a smaller one. They add up to `wanted`, or to all rows if these are fewer."""
    if wanted >= sum(sizes):
        return list(sizes)
    taken = [0] * len(sizes)
    free = set(range(len(sizes)))
    while True:
        left, of = wanted - sum(taken), sum(sizes[i] for i in free)
        small = [i for i in free if left * sizes[i] < min(LEAST, sizes[i]) * of]
        if not small:
            break
        for i in small:
            taken[i] = min(LEAST, sizes[i])
        free -= set(small)
    for i in free:
        taken[i] = left * sizes[i] // of
    most_left = sorted(free, key=lambda i: (-(left * sizes[i] % of), i))
    for i in most_left[: wanted - sum(taken)]:
        taken[i] += 1
    return taken
