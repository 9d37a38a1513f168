"""Data of the charts of a report; pipeline.results.report.drawing draws them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pipeline.monitor.wording import at_time, number, share

Cell = str | int | None
_FIGURE = re.compile(r"-?[\d,.:hms]+( (%|s|ms))?")


@dataclass(frozen=True)
class Table:
    """A table. None is an empty cell."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""

    @property
    def right(self) -> frozenset[int]:
        """Indices of the columns that contain only numbers, which are right-aligned."""
        filled = [[str(cell) for cell in column if cell not in (None, "")] for column in zip(*self.rows, strict=True)]
        return frozenset(i for i, cells in enumerate(filled) if cells and all(map(_FIGURE.fullmatch, cells)))


def shares_table(unit: str, counts: Sequence[tuple[str, int]]) -> Table:
    """Return a table with a row per name: count and share."""
    total = sum(count for _, count in counts)
    return Table(["", unit, "share"], [[name, f"{count:,}", share(count, total)] for name, count in counts])


@dataclass(frozen=True)
class Series:
    """A data series. `colour`: a role of page.css, c1 to c7. None in `values`: a gap."""

    name: str
    colour: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class OverTime:
    """A chart of values in equal intervals of time.

    Args:
        title, about: title, and a description in a sentence.
        edges: of the intervals, seconds of running time; one more than values in a series.
        series: lines, or stacked areas.
        unit: of the values; `%` fixes the axis to 0 to 100.
        stacked: areas instead of lines.
        starts: seconds at which each attempt after the first begins.
    """

    title: str
    about: str
    edges: Sequence[float]
    series: Sequence[Series]
    unit: str
    stacked: bool = False
    starts: Sequence[float] = field(default=())

    def table(self) -> Table:
        """Return a table with a row per interval."""
        columns = ["from", "to", *(f"{s.name}, {self.unit}" for s in self.series)]
        spans = [(at_time(a), at_time(b)) for a, b in pairwise(self.edges)]
        values = zip(*(s.values for s in self.series), strict=True)
        rows = [
            [*span, *(None if v is None else number(v) for v in row)] for span, row in zip(spans, values, strict=True)
        ]
        return Table(columns, rows)


@dataclass(frozen=True)
class Bars:
    """A chart of stacked horizontal bars.

    Args:
        title, about: title, and a description in a sentence.
        labels: one per bar, from the top.
        series: the segments, with one value per bar.
        unit: of the values.
        numbers: the same data, and more, as a table.
    """

    title: str
    about: str
    labels: Sequence[str]
    series: Sequence[Series]
    unit: str
    numbers: Table

    def table(self) -> Table:
        return self.numbers


@dataclass(frozen=True)
class Histogram:
    """A histogram with bins of equal width.

    Args:
        title, about: title, and a description in a sentence.
        edges: of the bins, whole numbers; a bin includes its lower edge and excludes its upper one.
        counts: one per bin.
        unit: of the values.
        marks: values to mark with a line, with their names.
        colour: a role of page.css.
    """

    title: str
    about: str
    edges: Sequence[int]
    counts: Sequence[int]
    unit: str
    marks: Sequence[tuple[str, float]]
    colour: str = "c1"

    def table(self) -> Table:
        """Return a table with a row per bin that is not empty."""
        spans = [f"{a}" if b - a == 1 else f"{a} to {b - 1}" for a, b in pairwise(self.edges)]
        rows: list[list[Cell]] = [[span, count] for span, count in zip(spans, self.counts, strict=True) if count]
        return Table([self.unit, "rows"], rows, ", ".join(f"{name} {number(value)}" for name, value in self.marks))


Chart = OverTime | Bars | Histogram


def legend(chart: Chart) -> list[tuple[str, str]]:
    """Return name and colour of each series; empty if there is only one."""
    series = [] if isinstance(chart, Histogram) else chart.series
    return [(s.name, s.colour) for s in series] if len(series) > 1 else []
