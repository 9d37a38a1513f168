"""Render the page as HTML; the template escapes all values."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import jinja2
import polars as pl
from markupsafe import Markup

from pipeline.results.reader import Results
from pipeline.results.report.calibrated import calibrated
from pipeline.results.report.drawing import draw
from pipeline.results.report.over_time import over_time
from pipeline.results.report.panel import Chart, Panel
from pipeline.results.report.rows import rejects, samples, texts
from pipeline.results.report.time_spent import numbers, reuse, time_spent
from pipeline.results.report.totals import attempt_panel, made_with, status, totals, why

PANELS: Sequence[Callable[[Results], list[Panel]]] = (
    *(samples, calibrated, rejects, attempt_panel, over_time, time_spent, texts, reuse, numbers, made_with),
)
"""In the order of the page."""

_NOT_FOR_HTML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Control characters, which HTML forbids."""
T = TypeVar("T")
log = logging.getLogger(__name__)


def page(results: Results) -> str:
    """Return the page as text. The same results give the same text."""
    remarks: list[str] = []
    badge = "".join(_built(status, results, remarks))
    remarks += _built(why, results, remarks)
    panels = [panel for build in PANELS for panel in _built(build, results, remarks)]
    figures = _built(totals, results, remarks)
    drawn = [
        (panel, [(chart, _drawing(chart, f"f{i}-{j}", remarks)) for j, chart in enumerate(panel.charts)])
        for i, panel in enumerate(panels)
    ]
    if results.missing:
        remarks.append(
            f"{len(results.missing):,} committed files are missing: python -m pipeline verify {results.directory}"
        )
    template = jinja2.Template(
        Path(__file__).with_name("page.html").read_text(encoding="utf-8"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = template.render(
        job=results.job,
        status=badge,
        totals=figures,
        panels=drawn,
        remarks=remarks,
        style=Markup(Path(__file__).with_name("page.css").read_text(encoding="utf-8")),
    )
    text = _NOT_FOR_HTML.sub("\N{REPLACEMENT CHARACTER}", text)
    return text.encode("utf-8", "backslashreplace").decode()  # a rejected row may have half a character


def _built(build: Callable[[Results], list[T]], results: Results, remarks: list[str]) -> list[T]:
    """Return `build(results)`. If it fails, return nothing and add a remark to the page."""
    try:
        return build(results)
    except (Exception, pl.exceptions.PanicException) as error:
        log.warning("report.html lacks a part (%s): %s: %s", build.__name__, type(error).__name__, error)
        remarks.append(f"A part of this page ({build.__name__}) could not be made: {type(error).__name__}: {error}")
        return []


def _drawing(chart: Chart, name: str, remarks: list[str]) -> Markup:
    """Return `chart` as SVG. If that fails, return nothing and add a remark; the page has its table anyway."""
    try:
        return Markup(draw(chart, name))
    except Exception as error:
        log.warning("report.html lacks the drawing '%s': %s: %s", chart.title, type(error).__name__, error)
        remarks.append(f"'{chart.title}' could not be drawn: {type(error).__name__}: {error}")
        return Markup("")
