"""An inbox of items that are all there, to run an operator outside a graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from pipeline.api.records import Item


class Given:
    """Implements pipeline.api.protocols.Inbox over a list of items."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._items = deque(items)

    def __iter__(self) -> Iterator[Item]:
        while self._items:
            yield self._items.popleft()

    def poll(self) -> Item | None:
        """The next item."""
        return self._items.popleft() if self._items else None

    def wait(self, *, idle: bool = True, for_items: bool = True, timeout_s: float | None = None) -> None:
        """Nothing more will come."""

    def wake(self) -> None:
        """Nobody waits."""

    @property
    def exhausted(self) -> bool:
        """Whether all items are taken."""
        return not self._items
