"""An inbox that never waits, to run an operator outside a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.api.records import Item


class Given:
    """Implements pipeline.api.protocols.Inbox over `items`, of which it is one ahead."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._items = iter(items)
        self._next = next(self._items, None)

    def __iter__(self) -> Iterator[Item]:
        while (item := self.poll()) is not None:
            yield item

    def poll(self) -> Item | None:
        """The next item; None when all are taken."""
        item, self._next = self._next, next(self._items, None)
        return item

    def wait(self, *, idle: bool = True, for_items: bool = True, timeout_s: float | None = None) -> None:
        """Nothing more will come."""

    def wake(self) -> None:
        """Nobody waits."""

    @property
    def exhausted(self) -> bool:
        """Whether all items are taken."""
        return self._next is None
