"""Contexts that are made once and used again: clearing one costs microseconds, making one up to a second."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable

from operators.llama.context import LlamaContext


class ContextPool:
    """The contexts of one model, by signature. `made` counts how many were ever created."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: defaultdict[Hashable, list[LlamaContext]] = defaultdict(list)
        self._all: list[LlamaContext] = []

    @property
    def made(self) -> int:
        """Contexts created so far."""
        return len(self._all)

    def lease(self, signature: Hashable, make: Callable[[], LlamaContext]) -> tuple[LlamaContext, Callable[[], None]]:
        """An empty context, and what gives it back."""
        with self._lock:
            free = self._free[signature]
            context = free.pop() if free else self._make(make)
        context.clear()
        return context, lambda: self._give_back(signature, context)

    def close(self) -> None:
        """Free all contexts; none may be in use."""
        with self._lock:
            for context in self._all:
                context.close()
            self._all.clear()
            self._free.clear()

    def _make(self, make: Callable[[], LlamaContext]) -> LlamaContext:
        context = make()
        self._all.append(context)
        return context

    def _give_back(self, signature: Hashable, context: LlamaContext) -> None:
        with self._lock:
            self._free[signature].append(context)
