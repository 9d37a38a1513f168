"""Places where a test has the process die or be told to stop: between any two steps that make a result durable.

    PIPELINE_FAILPOINT=shard-renamed:2            SIGKILL when the point is reached for the second time
    PIPELINE_FAILPOINT=state-committing:3=TERM    SIGTERM instead; INT+INT is one SIGINT and then another

Without the variable a point costs a comparison.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal
import time
from collections.abc import Sequence
from enum import StrEnum

from pipeline.system.signals import signals_received

VARIABLE = "PIPELINE_FAILPOINT"
_SYNTAX = re.compile(r"(?P<point>[\w-]+)(:(?P<nth>[1-9]\d*))?(=(?P<signals>[A-Z]+(\+[A-Z]+)*))?")


class Failpoint(StrEnum):
    """Every point, about in the order in which a run comes to them."""

    PROCESS_STARTED = "process-started"
    CONFIG_COMPOSED = "config-composed"
    LOCK_TAKEN = "lock-taken"
    STATE_OPENED = "state-opened"
    """state.sqlite is made, and has no tables yet."""
    STATE_COMMITTING = "state-committing"
    """Everything of a transaction is written but its COMMIT: of the first of a run, of an attempt, of a chunk."""
    STATE_COMMITTED = "state-committed"
    ATTEMPT_STARTED = "attempt-started"
    LEFTOVER_REMOVED = "leftover-removed"
    """A file that an earlier attempt had not committed is gone."""
    FILE_WRITTEN = "file-written"
    """A small file (config.yaml, status.json, manifest.json) is whole under its temporary name."""
    CONFIG_WRITTEN = "config-written"
    SHARD_OPENED = "shard-opened"
    SHARD_WRITTEN = "shard-written"
    SHARD_FSYNCED = "shard-fsynced"
    SHARD_RENAMED = "shard-renamed"
    """One of the shards of a chunk has its name, the others may not."""
    DIRECTORY_FSYNCED = "directory-fsynced"
    JOURNAL_COMMITTING = "journal-committing"
    JOURNAL_COMMITTED = "journal-committed"
    METRICS_PART_WRITTEN = "metrics-part-written"
    METRICS_PART_RENAMED = "metrics-part-renamed"
    GRAPH_ENDED = "graph-ended"
    """Every node has ended, and nothing is accounted for."""
    METRICS_MERGED = "metrics-merged"
    """The merged table is whole under its temporary name."""
    METRICS_MERGE_RENAMED = "metrics-merge-renamed"
    """The merged table has its name, and its parts are still there."""
    METRICS_PART_REMOVED = "metrics-part-removed"
    MANIFEST_WRITTEN = "manifest-written"
    ATTEMPT_ENDED = "attempt-ended"
    CARD_WRITTEN = "card-written"
    DESTINATION_CLAIMED = "destination-claimed"
    """A manifest that lists nothing yet is at output.publish, and the state does not know of it."""
    FILE_UPLOADED = "file-uploaded"
    """A file is at output.publish, and the state does not know of it."""
    UPLOAD_NOTED = "upload-noted"
    MANIFEST_UPLOADED = "manifest-uploaded"


class Trigger:
    """Sends this process signals when it comes to a point for the nth time.

    Args:
        point: name of the point.
        nth: 1 for the first time that it is reached.
        signals: one after the other; each but SIGKILL is waited for until it has been received.
    """

    def __init__(self, point: str, nth: int = 1, signals: Sequence[signal.Signals] = (signal.SIGKILL,)) -> None:
        self._point, self._nth, self._signals = point, nth, signals
        self._count = itertools.count(1)

    @classmethod
    def parse(cls, text: str) -> Trigger:
        """The trigger that `name[:nth][=SIGNAL+SIGNAL]` describes.

        Raises:
            ValueError: it does not read like that.
        """
        found = _SYNTAX.fullmatch(text)
        if found is None:
            raise ValueError(f"'{text}' names no failpoint; write name, name:2 or name:2=TERM")
        signals = [signal.Signals[f"SIG{name}"] for name in (found["signals"] or "KILL").split("+")]
        return cls(found["point"], int(found["nth"] or 1), signals)

    def reached(self, point: str) -> None:
        """Say that the process is at `point`."""
        if point == self._point and next(self._count) == self._nth:
            for number in self._signals:
                before = signals_received()
                os.kill(os.getpid(), number)
                while signals_received() == before:  # another thread answers
                    time.sleep(0.001)


def reached(point: Failpoint) -> None:
    """Say that the process is at `point`: does nothing unless PIPELINE_FAILPOINT asks for it."""
    if (trigger := _armed()) is not None:
        trigger.reached(point)


@functools.cache
def _armed() -> Trigger | None:
    text = os.environ.get(VARIABLE)
    return Trigger.parse(text) if text else None
