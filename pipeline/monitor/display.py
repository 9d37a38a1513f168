"""Progress display: one line on a terminal, log lines elsewhere."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Mapping
from typing import TextIO

from tqdm import TqdmWarning, tqdm

from pipeline.monitor.snapshot import Snapshot
from pipeline.monitor.wording import duration, printable

with warnings.catch_warnings():  # a notebook without ipywidgets gets the bar of a terminal, which is as good
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm as tqdm_of_place

LOG_INTERVAL_S = 10.0
FIELDS = (
    *("rows", "rows_total", "rows_total_exact", "eta_s", "elapsed_s", "tokens_in", "tokens_out", "tokens_in_per_s"),
    *("tokens_out_per_s", "rows_per_s", "recalled", "errors", "filtered"),
)
"""Attributes of a snapshot that a log line contains."""
log = logging.getLogger(__name__)


class Display:
    """Base class of displays; it shows nothing (progress=none)."""

    def show(self, snapshot: Snapshot) -> None:
        """Show `snapshot`; called several times a second."""

    def close(self) -> None:
        """End the display."""


class Lines(Display):
    """Logs a line of key=value pairs every ten seconds. Formatters find the values in the record's `fields`."""

    def __init__(self) -> None:
        self._next_s = LOG_INTERVAL_S

    def show(self, snapshot: Snapshot) -> None:
        if snapshot.elapsed_s >= self._next_s:
            self._next_s = snapshot.elapsed_s + LOG_INTERVAL_S
            values = fields(snapshot)
            log.info("progress %s", pairs_text(values), extra={"fields": values})


class Bar(Display):
    """A progress line at the bottom of the terminal."""

    def __init__(self, stream: TextIO) -> None:
        tqdm.monitor_interval = 0  # no monitor thread: the line is repainted several times a second
        self._bar = tqdm_of_place(total=1.0, file=stream, dynamic_ncols=True, bar_format="|{bar:10}| {desc}")

    def show(self, snapshot: Snapshot) -> None:
        self._bar.n = min(1.0, snapshot.fraction or 0.0)
        self._bar.set_description_str(printable(f"{rows_text(snapshot)}, {details_text(snapshot)}"), refresh=True)

    def close(self) -> None:
        self._bar.close()


def make_display(progress: str, stream: TextIO | None = None) -> Display:
    """Return the display for the setting `progress` (see pipeline.settings)."""
    stream = stream or sys.stderr
    if progress == "none":
        return Display()
    if progress == "auto" and (stream.isatty() or in_notebook()):
        return Bar(stream)
    return Lines()


def in_notebook() -> bool:
    """Return True in the kernel of a notebook, where stderr is no terminal, and a bar can be shown all the same."""
    return "ipykernel" in sys.modules


class TerminalHandler(logging.Handler):
    """Writes log lines above the progress line of a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except Exception:  # logging's own convention: report, never raise into the program
            self.handleError(record)


def rows_text(s: Snapshot) -> str:
    """Format progress: `1,234/5,000 rows 24.7%`, with `~` before an estimated total; under a target `412/500 accepted
    82.4% of 1,234 rows`."""
    if s.wanted is not None:
        return f"{s.accepted:,}/{s.wanted:,} accepted {s.fraction or 0:.1%} of {s.rows:,} rows"
    total = "" if s.rows_total is None else f"/{'' if s.rows_total_exact else '~'}{s.rows_total:,}"
    percent = "" if s.fraction is None else f" {s.fraction:.1%}"
    return f"{s.rows:,}{total} rows{percent}"


def details_text(s: Snapshot) -> str:
    """Format time, rates, statuses of operators, the fullest queue and rejects. A narrow terminal cuts off the end."""
    rate = f"{s.rows_per_s:,.0f} rows/s"
    if s.tokens_in + s.tokens_out:
        rate = f"{s.tokens_in_per_s:,.0f} tok/s in, {s.tokens_out_per_s:,.0f} tok/s out"
    queue = f"queue {queue_text(s)}" if s.queue else ""
    named = ((s.recalled, "cached"), (s.errors, "errors"), (s.filtered, "filtered"), (s.kept, "kept with errors"))
    counts = [f"{n:,} {name}" for n, name in named if n]
    return ", ".join(filter(None, (duration(s.elapsed_s), left_text(s), rate, *s.statuses, queue, *counts)))


def left_text(s: Snapshot) -> str:
    """Format the time left: `16m30s left`, `at most 4m05s left` if completions were recalled, `time left unknown`, or
    nothing if the run is ending."""
    if s.eta_s is None:
        return "" if s.ending else "time left unknown"
    return f"{'at most ' if s.recalled else ''}{duration(s.eta_s)} left"


def queue_text(s: Snapshot) -> str:
    """Format the fullest queue, that of the bottleneck: `generate 812/1,024`; empty if no rows wait."""
    fullest = next((node for node in s.nodes if node.name == s.queue), None)
    return "" if fullest is None else f"{fullest.name} {fullest.queue_rows:,}/{fullest.queue_capacity:,}"


def fields(s: Snapshot) -> dict[str, object]:
    """Return a snapshot for programs: flat keys, plain values, None if unknown. The key of an operator's status is its
    first word."""
    values = {key: getattr(s, key) for key in FIELDS}
    values["percent"] = None if s.fraction is None else 100 * s.fraction
    rounded = {key: round(value, 2) if isinstance(value, float) else value for key, value in values.items()}
    operators = dict(status.split(" ", 1) for status in s.statuses if " " in status)
    return {**rounded, "queue": queue_text(s).replace(" ", ":").replace(",", "") or None, **operators}


def pairs_text(values: Mapping[str, object]) -> str:
    """Format `rows=82 rows_total=200 ...`; values as in JSON, strings quoted only if they have a space, a quote or
    `=`."""
    return " ".join(f"{key}={_value(value)}" for key, value in values.items())


def _value(value: object) -> str:
    if isinstance(value, str) and not any(c in value for c in ' "='):
        return value
    return json.dumps(value, ensure_ascii=False)
