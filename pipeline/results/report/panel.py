"""A panel of a report: a heading with drawings, tables and cards under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.results.report.charts import Chart, Table


@dataclass(frozen=True)
class Card:
    """One row, or one thing: a heading, and names with their values."""

    title: str
    fields: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Fold:
    """A long text that is shown when it is asked for."""

    title: str
    text: str


@dataclass(frozen=True)
class Panel:
    """The contents of the page under one heading. A panel exists only where there is something to show.

    Args:
        title: the heading.
        about: a sentence on how to read it.
        charts: to be drawn, each with its table.
        tables: shown as they are.
        cards: one below the other.
        folds: at the end.
    """

    title: str
    about: str = ""
    charts: Sequence[Chart] = field(default=())
    tables: Sequence[Table] = field(default=())
    cards: Sequence[Card] = field(default=())
    folds: Sequence[Fold] = field(default=())
