"""An inbox over a list, to run an operator outside a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.api.records import Item


class ListInbox:
    """Inbox over `items` that never waits. It reads one item ahead, so that `exhausted` is known."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._items = iter(items)
        self._next = next(self._items, None)

    def __iter__(self) -> Iterator[Item]:
        while (item := self.poll()) is not None:
            yield item

    def poll(self) -> Item | None:
        item, self._next = self._next, next(self._items, None)
        return item

    def wait(self, *, idle: bool = True, for_items: bool = True, timeout_s: float | None = None) -> None:
        pass

    def wake(self) -> None:
        pass

    @property
    def exhausted(self) -> bool:
        return self._next is None
