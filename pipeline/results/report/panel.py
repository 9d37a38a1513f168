"""Panel: a section of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.results.report.charts import Chart, Table


@dataclass(frozen=True)
class Card:
    """A list of names and values under a heading, for example a row."""

    title: str
    fields: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Fold:
    """A long text that the reader can unfold."""

    title: str
    text: str


@dataclass(frozen=True)
class Panel:
    """A section of the page under one heading. A panel is never empty.

    Args:
        title: the heading.
        about: a sentence on how to read it.
        charts: each drawn, with its table.
        tables: tables without a drawing.
        cards: shown one below the other.
        folds: texts at the end.
    """

    title: str
    about: str = ""
    charts: Sequence[Chart] = field(default=())
    tables: Sequence[Table] = field(default=())
    cards: Sequence[Card] = field(default=())
    folds: Sequence[Fold] = field(default=())
