"""Shows a run while it runs: one line on a terminal, log lines elsewhere."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from typing import TextIO

from tqdm import tqdm

from pipeline.monitor.snapshot import Snapshot
from pipeline.monitor.wording import duration

LOG_INTERVAL_S = 10.0
FIELDS = (
    *("rows", "rows_total", "rows_total_exact", "eta_s", "elapsed_s", "tokens_in", "tokens_out", "tokens_in_per_s"),
    *("tokens_out_per_s", "rows_per_s", "recalled", "errors", "filtered"),
)
"""The values of a snapshot that a log line has."""
log = logging.getLogger(__name__)


class Display:
    """Shows snapshots; this one, for progress=none, shows nothing."""

    def show(self, snapshot: Snapshot) -> None:
        """Show `snapshot`; called several times a second."""

    def close(self) -> None:
        """Leave the terminal with a finished line."""


class Lines(Display):
    """Logs a line of key=value pairs every ten seconds. Formatters find the values in the record's `fields`."""

    def __init__(self) -> None:
        self._next_s = LOG_INTERVAL_S

    def show(self, snapshot: Snapshot) -> None:
        """Log if it is time."""
        if snapshot.elapsed_s >= self._next_s:
            self._next_s = snapshot.elapsed_s + LOG_INTERVAL_S
            values = fields(snapshot)
            log.info("progress %s", pairs_text(values), extra={"fields": values})


class Bar(Display):
    """One line at the foot of the terminal."""

    def __init__(self, stream: TextIO) -> None:
        tqdm.monitor_interval = 0  # its thread would only repaint a line that is repainted anyway
        self._bar = tqdm(total=1.0, file=stream, dynamic_ncols=True, bar_format="|{bar:10}| {desc}")

    def show(self, snapshot: Snapshot) -> None:
        """Repaint the line."""
        self._bar.n = min(1.0, snapshot.fraction or 0.0)
        self._bar.set_description_str(f"{rows_text(snapshot)}, {details_text(snapshot)}", refresh=True)

    def close(self) -> None:
        """Keep the last line and go to the next."""
        self._bar.close()


def make_display(progress: str, stream: TextIO | None = None) -> Display:
    """The display for the setting `progress` (see pipeline.settings)."""
    stream = stream or sys.stderr
    if progress == "none":
        return Display()
    if progress == "bar" or (progress in ("auto", "full") and stream.isatty()):
        return Bar(stream)
    return Lines()


class TerminalHandler(logging.Handler):
    """Writes log lines to a terminal without tearing the progress line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line above the progress line."""
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except Exception:  # logging's own convention: report, never raise into the program
            self.handleError(record)


def rows_text(s: Snapshot) -> str:
    """`1,234/5,000 rows 24.7%`; `~` before a total that is not exact. Under a target `412/500 accepted 82.4% of 1,234
    rows`."""
    if s.wanted is not None:
        return f"{s.accepted:,}/{s.wanted:,} accepted {s.fraction or 0:.1%} of {s.rows:,} rows"
    total = "" if s.rows_total is None else f"/{'' if s.rows_total_exact else '~'}{s.rows_total:,}"
    percent = "" if s.fraction is None else f" {s.fraction:.1%}"
    return f"{s.rows:,}{total} rows{percent}"


def details_text(s: Snapshot) -> str:
    """Time, rates, what operators say, the fullest queue and rejects; a narrow terminal shows the first of these."""
    texts = [duration(s.elapsed_s), *([left] if (left := left_text(s)) else [])]
    texts += [f"in {s.tokens_in_per_s:,.0f} out {s.tokens_out_per_s:,.0f} tok/s"] if s.tokens_in + s.tokens_out else []
    texts += [] if s.tokens_in + s.tokens_out else [f"{s.rows_per_s:,.0f} rows/s"]
    texts += s.statuses
    texts += [f"queue {queue}"] if (queue := queue_text(s)) else []
    texts += [f"{s.recalled:,} cached"] if s.recalled else []
    texts += [f"{s.errors:,} errors"] if s.errors else []
    texts += [f"{s.filtered:,} filtered"] if s.filtered else []
    return ", ".join(texts)


def left_text(s: Snapshot) -> str:
    """`16m30s left`, `at most 4m05s left` where rows have cost nothing, or that it is not known; nothing where the run
    is about to end."""
    if s.ending:
        return ""
    if s.eta_s is None:
        return "time left unknown"
    return f"{'at most ' if s.recalled else ''}{duration(s.eta_s)} left"


def queue_text(s: Snapshot) -> str:
    """`generate 812/1,024`: rows that wait before the stage that the others wait for; empty where nothing waits."""
    found = next((node for node in s.nodes if node.name == s.queue), None)
    return "" if found is None else f"{found.name} {found.queue_rows:,}/{found.queue_capacity:,}"


def fields(s: Snapshot) -> dict[str, object]:
    """A snapshot for programs: flat keys, plain values, None for what is not known. What operators say stands under its
    first word."""
    values = {key: getattr(s, key) for key in FIELDS}
    values["percent"] = None if s.fraction is None else 100 * s.fraction
    rounded = {key: round(value, 2) if isinstance(value, float) else value for key, value in values.items()}
    said = dict(status.split(" ", 1) for status in s.statuses if " " in status)
    return {**rounded, "queue": queue_text(s).replace(" ", ":").replace(",", "") or None, **said}


def pairs_text(values: Mapping[str, object]) -> str:
    """`rows=82 rows_total=200 ...`; values as in JSON, quoted only where they hold a space, a quote or `=`."""
    return " ".join(f"{key}={_value(value)}" for key, value in values.items())


def _value(value: object) -> str:
    if isinstance(value, str) and not any(c in value for c in ' "='):
        return value
    return json.dumps(value, ensure_ascii=False)
