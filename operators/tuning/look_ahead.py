"""LookAhead: lets a node look at its first items before it begins."""

from __future__ import annotations

import time
from collections import deque

import pyarrow as pa

from pipeline.api.protocols import Inbox
from pipeline.api.records import Batch, Item

_PATIENCE_S = 3.0
"""Seconds to wait for more rows after the first: they may come from a slow model."""


class LookAhead:
    """A queue before an inbox: returns the items looked at first."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def poll(self, inbox: Inbox) -> Item | None:
        """Return the next item; None if there is none yet."""
        return self._items.popleft() if self._items else inbox.poll()

    def data(self) -> list[pa.RecordBatch]:
        """Return the rows that were looked at."""
        return [item.data for item in self._items if isinstance(item, Batch)]

    def gather(self, inbox: Inbox, enough: int) -> int | None:
        """Take items until there are more than `enough` rows or no more come. Waits for the first rows without limit,
        and a little for more.

        Returns:
            How many rows there are, if these are all that come; None if more may.
        """
        rows, until = 0, None
        while rows <= enough:
            item = inbox.poll()
            if item is not None:
                self._items.append(item)
                rows += item.num_rows if isinstance(item, Batch) else 0
                until = time.monotonic() + _PATIENCE_S if rows and until is None else until
            elif inbox.exhausted:
                return rows
            elif until is None:
                inbox.wait()
            elif (left := until - time.monotonic()) > 0:
                inbox.wait(timeout_s=left)
            else:
                break
        return None
