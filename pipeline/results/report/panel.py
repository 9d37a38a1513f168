"""Panels of a page: charts, tables, cards and folds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pipeline.monitor.wording import at_time, number

Cell = str | int | None
_FIGURE = re.compile(r"-?[\d,.:hms]+( (%|s|ms))?")


@dataclass(frozen=True)
class Series:
    """A data series. `colour`: a role of page.css, c1 to c7. None in `values`: a gap."""

    name: str
    colour: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class ReportTable:
    """A table. None is an empty cell. `series`: of one value a row each, which are drawn as a bar below the row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    series: Sequence[Series] = ()

    @property
    def bars(self) -> list[list[tuple[str, float]]]:
        """Return colour and length of each piece of the bar of each row, in percent of the longest bar."""
        rows = [[value or 0.0 for value in row] for row in zip(*(s.values for s in self.series), strict=True)]
        longest = max(map(sum, rows), default=0.0) or 1.0
        return [[(s.colour, 100 * v / longest) for s, v in zip(self.series, row, strict=True)] for row in rows]

    @property
    def right(self) -> frozenset[int]:
        """Indices of the columns that contain only numbers, which are right-aligned."""
        filled = [[str(cell) for cell in column if cell not in (None, "")] for column in zip(*self.rows, strict=True)]
        return frozenset(i for i, cells in enumerate(filled) if cells and all(map(_FIGURE.fullmatch, cells)))


@dataclass(frozen=True)
class Chart:
    """A chart of values in equal intervals: of running time, or of lengths.

    Args:
        title, about: title, and a description in a sentence.
        edges: of the intervals; one more than values in a series. An interval includes its lower edge alone.
        series: lines, or areas on top of each other if `filled`.
        unit: of the values; `%` fixes their axis to 0 to 100.
        axis: unit of the edges, which are whole numbers then; empty: seconds of running time.
        marks: edges or places between them that dashed lines mark.
    """

    title: str
    about: str
    edges: Sequence[float]
    series: Sequence[Series]
    unit: str
    axis: str = ""
    filled: bool = False
    marks: Sequence[float] = ()

    @property
    def table(self) -> ReportTable:
        """A row per interval in which something is."""
        columns = ["from", "below" if self.axis else "to", *(f"{s.name}, {self.unit}" for s in self.series)]
        values, shown = zip(*(s.values for s in self.series), strict=True), number if self.axis else at_time
        rows = [
            [shown(a), shown(b), *(None if v is None else number(v) for v in row)]
            for (a, b), row in zip(pairwise(self.edges), values, strict=True)
            if any(row) or not self.axis
        ]
        return ReportTable(columns, rows)


@dataclass(frozen=True)
class Card:
    """A list of names and values under a heading, for example a row. `pictures`: `data:` URLs beside a value, by its
    name."""

    title: str
    fields: Sequence[tuple[str, str]]
    pictures: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Fold:
    """A long text that the reader can unfold."""

    title: str
    text: str


@dataclass(frozen=True)
class Panel:
    """A section of the page: a heading, a sentence on how to read it, and contents in this order. It is never empty."""

    title: str
    about: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[ReportTable] = ()
    cards: Sequence[Card] = ()
    folds: Sequence[Fold] = ()
