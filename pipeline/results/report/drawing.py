"""Draw charts as inline SVG with matplotlib. Only this module imports it, when a chart is drawn.

Drawings use placeholder colours that are replaced by CSS variables, so one file fits light and dark mode. Text stays
text, in the font of the page.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from html import escape
from typing import TYPE_CHECKING, Any

from pipeline.monitor.wording import at_time, number
from pipeline.results.report.panel import Chart, OverTime, ReportHistogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 350, 200
"""Size of a drawing in CSS pixels: narrow enough for a phone, where its text would shrink otherwise."""

# Placeholders for the variables of page.css: any colours that nothing else has.
ROLES = {"ink": "#000001", "muted": "#000002", "grid": "#000003"} | {f"c{n}": f"#0000{n + 16:02x}" for n in range(1, 8)}
STYLE: dict[str, Any] = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": ROLES["muted"],
    "axes.labelcolor": ROLES["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelsize": 12,
    "grid.color": ROLES["grid"],
    "grid.linewidth": 1,
    "xtick.color": ROLES["muted"],
    "ytick.color": ROLES["muted"],
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "text.color": ROLES["ink"],
    "text.parse_math": False,  # a node may be called anything
    "font.sans-serif": ["DejaVu Sans"],  # only to measure: page.css gives it the font of the page
    "svg.fonttype": "none",
    "svg.hashsalt": "report",  # names inside the file are the same for the same drawing
    "figure.dpi": 72,
    "savefig.dpi": 72,
}
_NAME = re.compile(r'((?:\bid=")|(?:href="#)|(?:url\(#))')


def draw(chart: Chart, name: str) -> str:
    """Return `chart` as an <svg> element that fills the available width. `name`: unique on the page.

    Raises:
        ImportError: matplotlib is not installed.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of caches for fonts
    import matplotlib as mpl
    from matplotlib.figure import Figure

    text = io.StringIO()
    with mpl.rc_context(), warnings.catch_warnings():
        # Text is drawn by the browser, which has the letters that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        mpl.rcdefaults()  # not the user's style
        mpl.rcParams.update(STYLE)
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), layout="constrained")
        axes = figure.add_subplot()
        match chart:
            case OverTime():
                _draw_over_time(axes, chart)
            case ReportHistogram():
                _draw_histogram(axes, chart)
        figure.savefig(text, format="svg")
    return _for_the_page(text.getvalue(), chart, name)


def _draw_over_time(axes: Axes, chart: OverTime) -> None:
    edges = list(chart.edges)
    below = [0.0] * (len(edges) - 1)
    for series in chart.series:
        values = [float("nan") if v is None else v for v in series.values]
        colour = ROLES[series.colour]
        if chart.stacked:
            top = [b + (v if v == v else 0.0) for b, v in zip(below, values, strict=True)]
            axes.fill_between(edges, [*below, below[-1]], [*top, top[-1]], step="post", color=colour, linewidth=0)
            below = top
        else:
            axes.stairs(values, edges, baseline=None, color=colour, linewidth=2)
    for start in chart.starts:
        axes.axvline(start, color=ROLES["ink"], linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(0, 100 if chart.unit == "%" else None)
    _time_ticks(axes, edges[-1])
    axes.yaxis.set_major_formatter(lambda value, _: number(value))


def _time_ticks(axes: Axes, last: float) -> None:
    """Set at most five ticks at round times, so that they do not overlap on a phone."""
    steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200]
    step = next((s for s in steps if last / s <= 5), 86400.0)
    step *= max(1, round(last / step / 5))
    ticks = [step * i for i in range(int(last / step) + 1)]
    axes.set_xticks(ticks, [f"{t:g} s" if last < 60 else at_time(t) if t else "0" for t in ticks])


def _draw_histogram(axes: Axes, chart: ReportHistogram) -> None:
    axes.stairs(chart.counts, chart.edges, fill=True, color=ROLES[chart.colour])
    for _, value in chart.marks:
        axes.axvline(value, color=ROLES["ink"], linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlim(chart.edges[0], chart.edges[-1])
    axes.set_xlabel(chart.unit)
    axes.locator_params(nbins=5, integer=True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: number(value))


def _for_the_page(text: str, chart: Chart, name: str) -> str:
    """Return the <svg> element of matplotlib's file without size and date, with CSS colours and unique names."""
    svg = text[text.index("<svg") :]
    head, _, rest = svg.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None  # matplotlib always writes one
    rest = re.sub(r"\s*<metadata>.*?</metadata>", "", rest, flags=re.S)
    for role, colour in ROLES.items():
        rest = rest.replace(colour, f"var(--{role})")
    rest = _NAME.sub(rf"\g<1>{name}-", rest)
    label = f'<title id="{name}-t">{escape(chart.title)}</title><desc id="{name}-d">{escape(chart.about)}</desc>'
    return f'<svg {box[0]} role="img" aria-labelledby="{name}-t {name}-d">{label}{rest}'
