"""The contexts of a model, used again."""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class Context(Protocol):
    """What a pool asks of a context."""

    def clear(self) -> None:
        """Forget all rows."""

    def close(self) -> None:
        """Free it."""


C = TypeVar("C", bound=Context)


class ContextPool(Generic[C]):
    """The contexts of one model by signature, used again: clearing one costs microseconds, making one up to a second.

    Attributes:
        made: how many were created.
    """

    def __init__(self) -> None:
        self.made = 0
        self._alive: list[C] = []
        self._making = threading.Lock()
        self._free: defaultdict[Hashable, list[C]] = defaultdict(list)

    def lease(self, signature: Hashable, make: Callable[[], C]) -> tuple[C, Callable[[], None]]:
        """Return an empty context, and a function that gives it back."""
        with self._making:
            free = self._free[signature]
            if not free:
                self._close_free()  # of jobs before: their caches would stay beside the new one
                free.append(make())
                self._alive.append(free[-1])
                self.made += 1
            context = free.pop()
        context.clear()
        return context, functools.partial(free.append, context)

    def _close_free(self) -> None:
        """Free the contexts that nobody uses."""
        for free in self._free.values():
            while free:
                context = free.pop()
                self._alive.remove(context)
                context.close()

    def close(self) -> None:
        """Free all contexts; none may be in use."""
        for context in self._alive:
            context.close()
        self._alive.clear()
        self._free.clear()
