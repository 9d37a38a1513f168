"""The charts of a report as numbers; pipeline.results.report.drawing draws them."""

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
    """A table of a page. None is an empty cell."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""

    @property
    def right(self) -> frozenset[int]:
        """The columns, from 0, that hold nothing but figures: they stand at the right."""
        filled = [[str(cell) for cell in column if cell not in (None, "")] for column in zip(*self.rows, strict=True)]
        return frozenset(i for i, cells in enumerate(filled) if cells and all(map(_FIGURE.fullmatch, cells)))


def shares_table(unit: str, counts: Sequence[tuple[str, int]]) -> Table:
    """A row per name: how many there are, and their share of all."""
    total = sum(count for _, count in counts)
    return Table(["", unit, "share"], [[name, f"{count:,}", share(count, total)] for name, count in counts])


@dataclass(frozen=True)
class Series:
    """Numbers of one colour. `colour`: a role of page.css, c1 to c7. None in `values`: nothing to draw there."""

    name: str
    colour: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class OverTime:
    """Values in equal spans of time.

    Args:
        title, about: what it shows, in a few words and in a sentence.
        edges: seconds of running time, one more than there are values in a series.
        series: lines, or bands one on the other.
        unit: of the values; `%` has 100 as its top.
        stacked: bands instead of lines.
        starts: where each attempt but the first begins, seconds.
    """

    title: str
    about: str
    edges: Sequence[float]
    series: Sequence[Series]
    unit: str
    stacked: bool = False
    starts: Sequence[float] = field(default=())

    def table(self) -> Table:
        """A row a span of time."""
        columns = ["from", "to", *(f"{s.name}, {self.unit}" for s in self.series)]
        spans = [(at_time(a), at_time(b)) for a, b in pairwise(self.edges)]
        values = zip(*(s.values for s in self.series), strict=True)
        rows = [
            [*span, *(None if v is None else number(v) for v in row)] for span, row in zip(spans, values, strict=True)
        ]
        return Table(columns, rows)


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, each of several pieces.

    Args:
        title, about: what they show.
        labels: one a bar, from the top.
        series: the pieces, a value a bar.
        unit: of the values.
        numbers: the same, and more, as a table.
    """

    title: str
    about: str
    labels: Sequence[str]
    series: Sequence[Series]
    unit: str
    numbers: Table

    def table(self) -> Table:
        """The table that it was given."""
        return self.numbers


@dataclass(frozen=True)
class Histogram:
    """Counts of values in spans of equal width.

    Args:
        title, about: what it shows.
        edges: of the spans, whole numbers; a span has its lower edge and not its upper one.
        counts: one a span.
        unit: of the values.
        marks: values to point at, with their names.
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
        """A row a span that is not empty."""
        spans = [f"{a}" if b - a == 1 else f"{a} to {b - 1}" for a, b in pairwise(self.edges)]
        rows: list[list[Cell]] = [[span, count] for span, count in zip(spans, self.counts, strict=True) if count]
        return Table([self.unit, "rows"], rows, ", ".join(f"{name} {number(value)}" for name, value in self.marks))


Chart = OverTime | Bars | Histogram


def legend(chart: Chart) -> list[tuple[str, str]]:
    """Name and colour of each series; nothing where there is one only."""
    series = [] if isinstance(chart, Histogram) else chart.series
    return [(s.name, s.colour) for s in series] if len(series) > 1 else []
