"""Items that a node takes from its inbox to look at them before it begins, and works on afterwards."""

from __future__ import annotations

import time
from collections import deque

import pyarrow as pa

from pipeline.api.protocols import Inbox
from pipeline.api.records import Batch, Item

_PATIENCE_S = 3.0
"""How long to wait for more rows after the first: they may come from a model that is slower than what is decided."""


class LookAhead:
    """Stands before an inbox: what was looked at comes first."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def poll(self, inbox: Inbox) -> Item | None:
        """The next item if one is there."""
        return self._items.popleft() if self._items else inbox.poll()

    def data(self) -> list[pa.RecordBatch]:
        """The rows that were looked at."""
        return [item.data for item in self._items if isinstance(item, Batch)]

    @property
    def rows(self) -> int:
        """How many they are."""
        return sum(item.num_rows for item in self._items if isinstance(item, Batch))

    def gather(self, inbox: Inbox, enough: int) -> int | None:
        """Take items until there are more than `enough` rows, or no more come; waits for the first rows as long as it
        takes, and a little for more.

        Returns:
            How many rows there are, if these are all that come; None if more may.
        """
        until: float | None = None
        while (rows := self.rows) <= enough:
            if rows and until is None:
                until = time.monotonic() + _PATIENCE_S
            item = inbox.poll()
            if item is not None:
                self._items.append(item)
            elif inbox.exhausted:
                return rows
            elif until is None:
                inbox.wait()
            elif (left := until - time.monotonic()) > 0:
                inbox.wait(timeout_s=left)
            else:
                break
        return None
