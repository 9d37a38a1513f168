"""Failpoints: named places, between any two steps that make a result durable, where a test kills or stops the process.

    PIPELINE_FAILPOINT=shard-renamed:2            SIGKILL when the point is reached for the second time
    PIPELINE_FAILPOINT=state-committing:3=TERM    SIGTERM instead; INT+INT is one SIGINT and then another

Without the variable a failpoint costs one comparison.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pipeline.system.signals import signals_received

VARIABLE = "PIPELINE_FAILPOINT"
_SYNTAX = re.compile(r"(?P<point>[\w-]+)(:(?P<nth>[1-9]\d*))?(=(?P<signals>[A-Z]+(\+[A-Z]+)*))?")


class Failpoint(StrEnum):
    """All failpoints, roughly in the order in which a run reaches them."""

    PROCESS_STARTED = "process-started"
    CONFIG_COMPOSED = "config-composed"
    LOCK_TAKEN = "lock-taken"
    STATE_OPENED = "state-opened"
    """state.sqlite exists and has no tables yet."""
    STATE_COMMITTING = "state-committing"
    """Before the COMMIT of a transaction: the first one of a run, of an attempt, or of a chunk."""
    STATE_COMMITTED = "state-committed"
    RESULTS_MOVED = "results-moved"
    """A file of the results that this run replaces has another place, or all of them have."""
    ATTEMPT_STARTED = "attempt-started"
    LEFTOVER_REMOVED = "leftover-removed"
    """A file that an earlier attempt did not commit is removed."""
    FILE_WRITTEN = "file-written"
    """A file that replaces another (config.yaml, status.json, manifest.json, metrics) is complete under its temporary
    name."""
    CONFIG_WRITTEN = "config-written"
    SHARD_OPENED = "shard-opened"
    SHARD_WRITTEN = "shard-written"
    SHARD_FSYNCED = "shard-fsynced"
    SHARD_RENAMED = "shard-renamed"
    """One shard of a chunk has its final name; the others may not have theirs."""
    DIRECTORY_FSYNCED = "directory-fsynced"
    JOURNAL_COMMITTING = "journal-committing"
    JOURNAL_COMMITTED = "journal-committed"
    GRAPH_ENDED = "graph-ended"
    """Every node has ended, and the end of the attempt is not recorded yet."""
    METRICS_MERGE_RENAMED = "metrics-merge-renamed"
    """The Parquet file of a metrics table has its name, and the streams that it was made of still exist."""
    MANIFEST_WRITTEN = "manifest-written"
    ATTEMPT_ENDED = "attempt-ended"
    CARD_WRITTEN = "card-written"
    DESTINATION_CLAIMED = "destination-claimed"
    """An empty manifest is at output.publish, and the state does not record it yet."""
    FILE_UPLOADED = "file-uploaded"
    """A file is at output.publish, and the state does not record it yet."""
    UPLOAD_NOTED = "upload-noted"
    MANIFEST_UPLOADED = "manifest-uploaded"


@dataclass
class Trigger:
    """Sends `signals` to this process when it reaches `point` for the nth time, counted from 1. Each signal waits until
    the one before it was handled."""

    point: str
    nth: int = 1
    signals: Sequence[signal.Signals] = (signal.SIGKILL,)
    _count: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def parse(cls, text: str) -> Trigger:
        """Parse `name[:nth][=SIGNAL+SIGNAL]`; raises ValueError."""
        match = _SYNTAX.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}' names no failpoint; write name, name:2 or name:2=TERM")
        signals = [signal.Signals[f"SIG{name}"] for name in (match["signals"] or "KILL").split("+")]
        return cls(match["point"], int(match["nth"] or 1), signals)

    def reached(self, point: str) -> None:
        """Send the signals if `point` is the one and this is its nth time."""
        if point == self.point and next(self._count) == self.nth:
            for number in self.signals:
                handled = signals_received()
                os.kill(os.getpid(), number)
                while signals_received() == handled:  # another thread answers
                    time.sleep(0.001)


def reached(point: Failpoint) -> None:
    """Mark that the process has reached `point`. Does nothing unless PIPELINE_FAILPOINT names it."""
    if (trigger := _armed()) is not None:
        trigger.reached(point)


@functools.cache
def _armed() -> Trigger | None:
    text = os.environ.get(VARIABLE)
    return Trigger.parse(text) if text else None
