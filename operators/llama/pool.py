"""Contexts that are made once and used again: clearing one costs microseconds, making one up to a second."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable

from operators.llama.context import LlamaContext


class ContextPool:
    """The contexts of one model, by signature.

    Attributes:
        made: all contexts that were created.
    """

    def __init__(self) -> None:
        self.made: list[LlamaContext] = []
        self._lock = threading.Lock()
        self._free: defaultdict[Hashable, list[LlamaContext]] = defaultdict(list)

    def lease(self, signature: Hashable, make: Callable[[], LlamaContext]) -> tuple[LlamaContext, Callable[[], None]]:
        """Return an empty context, and a function that gives it back."""
        with self._lock:
            free = self._free[signature]
            if not free:
                free.append(make())
                self.made.append(free[-1])
            context = free.pop()
        context.clear()

        def give_back() -> None:
            with self._lock:
                self._free[signature].append(context)

        return context, give_back

    def close(self) -> None:
        """Free all contexts; none may be in use."""
        with self._lock:
            for context in self.made:
                context.close()
            self.made.clear()
            self._free.clear()
