"""Draw charts as inline SVG, in colours of page.css, so that one file fits light and dark mode, and in its font."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby, pairwise

from pipeline.monitor.wording import at_time, number
from pipeline.results.report.panel import Chart

WIDTH, HEIGHT = 350, 200
"""Size of a drawing in CSS pixels: narrow enough for a phone, where its text would shrink otherwise."""
RIGHT, TOP, BOTTOM = 14, 8, 38
"""Room for the labels around it; on the left there is as much as they need."""
LETTER = 7.0
"""Width of a digit."""
MOST_TICKS = 4
TIMES_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)
"""Round steps of running time."""
Point = tuple[float, float]


def draw(chart: Chart, name: str) -> str:
    """Return `chart` as an <svg> element that fills the available width. `name`: unique on the page."""
    first, last = chart.edges[0], chart.edges[-1]
    stacks = [[value or 0.0 for value in values] for values in zip(*(s.values for s in chart.series), strict=True)]
    top = 100.0 if chart.unit == "%" else max((sum if chart.filled else max)(stack) for stack in stacks) or 1.0

    levels = [(tick, number(tick)) for tick in _ticks(0.0, top, _round_step(top))]
    left = 12 + LETTER * max(len(label) for _, label in levels)

    def x(value: float) -> float:
        return left + (value - first) / (last - first) * (WIDTH - left - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    def path(points: Sequence[Point]) -> str:
        return "M" + "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)

    parts = [f'<title id="{name}-t">{escape(chart.title)}</title><desc id="{name}-d">{escape(chart.about)}</desc>']
    for tick, label in levels:
        parts.append(_line(left, y(tick), WIDTH - RIGHT, y(tick), "grid"))
        parts.append(_text(left - 6, y(tick) + 4, label, "end"))
    step = _round_step(last - first) if chart.axis else next((s for s in TIMES_S if last / s <= MOST_TICKS), 86400.0)
    for tick in _ticks(first, last, max(step, 1.0) if chart.axis else step):
        label = number(tick) if chart.axis else f"{tick:g} s" if last < 60 else at_time(tick) if tick else "0"
        parts.append(_text(x(tick), HEIGHT - BOTTOM + 16, label, "middle"))
    parts.append(_text((left + WIDTH - RIGHT) / 2, HEIGHT - 6, chart.axis, "middle"))
    below = [0.0] * len(stacks)
    for series in chart.series:
        colour = f"var(--{series.colour})"
        if chart.filled:
            above = [low + (value or 0.0) for low, value in zip(below, series.values, strict=True)]
            area = [*_steps(chart.edges, above), *reversed(list(_steps(chart.edges, below)))]
            parts.append(f'<path d="{path(area)}Z" fill="{colour}"/>')
            below = above
        else:
            spans = ((point, value) for point, value in zip(pairwise(chart.edges), series.values, strict=True))
            for is_gap, run in groupby(spans, lambda one: one[1] is None):
                if not is_gap:
                    line = path([(edge, value or 0.0) for span, value in run for edge in span])
                    parts.append(f'<path d="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    parts += [_line(x(mark), TOP, x(mark), HEIGHT - BOTTOM, "ink", ' stroke-dasharray="4 3"') for mark in chart.marks]
    parts.append(_line(left, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "muted"))
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}-t {name}-d">'
    return f"{head}{''.join(parts)}</svg>"


def _steps(edges: Sequence[float], values: Sequence[float]) -> Iterator[Point]:
    """Yield the corners of the outline of `values`, each from edge to edge."""
    for (begin, end), value in zip(pairwise(edges), values, strict=True):
        yield begin, value
        yield end, value


def _round_step(length: float) -> float:
    """Return a step of 1, 2 or 5 times a power of ten that fits into `length` at most MOST_TICKS times."""
    power = 10.0 ** math.floor(math.log10(length / MOST_TICKS))
    return next(n * power for n in (1, 2, 5, 10, 20) if length / (n * power) <= MOST_TICKS)


def _ticks(first: float, last: float, step: float) -> list[float]:
    return [step * i for i in range(math.ceil(first / step), math.floor(last / step + 1e-9) + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="var(--{colour})"{more}/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}" fill="var(--muted)">{text}</text>'
