"""Shows a run while it runs: a line on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
from typing import Protocol, TextIO

from tqdm import tqdm

from pipeline.snapshot import Snapshot

LOG_INTERVAL_S = 10.0
log = logging.getLogger(__name__)


class Display(Protocol):
    """Where snapshots are shown."""

    def show(self, snapshot: Snapshot) -> None:
        """Show `snapshot`; called several times a second."""

    def close(self) -> None:
        """Leave the terminal as a finished line."""


class Silent:
    """Shows nothing."""

    def show(self, snapshot: Snapshot) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Lines:
    """A log line every ten seconds."""

    def __init__(self) -> None:
        self._next_s = LOG_INTERVAL_S

    def show(self, snapshot: Snapshot) -> None:
        """Log if it is time."""
        if snapshot.elapsed_s >= self._next_s:
            self._next_s = snapshot.elapsed_s + LOG_INTERVAL_S
            log.info("%s | %s", rows_text(snapshot), details_text(snapshot))

    def close(self) -> None:
        """Nothing."""


class Bar:
    """One line at the foot of the terminal."""

    def __init__(self, stream: TextIO) -> None:
        tqdm.monitor_interval = 0  # its thread would only repaint a line that is repainted anyway
        self._bar = tqdm(total=1.0, file=stream, dynamic_ncols=True, bar_format="|{bar:20}| {desc}")

    def show(self, snapshot: Snapshot) -> None:
        """Repaint the line."""
        self._bar.n = min(1.0, snapshot.fraction or 0.0)
        self._bar.set_description_str(f"{rows_text(snapshot)}, {details_text(snapshot)}", refresh=True)

    def close(self) -> None:
        """Keep the last line and go to the next."""
        self._bar.close()


def make_display(progress: str, stream: TextIO | None = None) -> Display:
    """The display for the setting `progress`: auto, bar, log or none."""
    stream = stream or sys.stderr
    if progress == "none":
        return Silent()
    if progress == "bar" or (progress == "auto" and stream.isatty()):
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
    """`1,234/5,000 rows 24.7%`, or under a target `412/500 accepted 82.4% of 1,234 rows`."""
    if s.wanted is not None:
        return f"{s.accepted:,}/{s.wanted:,} accepted {s.fraction or 0:.1%} of {s.rows:,} rows"
    total = "" if s.rows_total is None else f"/{s.rows_total:,}"
    percent = "" if s.fraction is None else f" {s.fraction:.1%}"
    return f"{s.rows:,}{total} rows{percent}"


def details_text(s: Snapshot) -> str:
    """Rates, what operators say, time left and rejects."""
    texts = [f"in {s.tokens_in_per_s:,.0f} out {s.tokens_out_per_s:,.0f} tok/s"] if s.tokens_in + s.tokens_out else []
    texts += [] if texts else [f"{s.rows_per_s:,.0f} rows/s"]
    texts += s.statuses
    texts.append(f"{duration(s.eta_s)} left" if s.eta_s is not None else f"{duration(s.elapsed_s)} so far")
    texts += [f"{s.errors:,} errors"] if s.errors else []
    texts += [f"{s.filtered:,} filtered"] if s.filtered else []
    return ", ".join(texts)


def duration(seconds: float) -> str:
    """`2h03m`, `4m05s` or `7s`."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"
