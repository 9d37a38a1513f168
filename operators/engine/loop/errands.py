"""Errands: work that nodes have another thread do, one errand after the other, while they wait for what it returns.

Nodes that compute without generating (scores, embeddings) may not do it on threads of their own: each would have a team
of compute threads, and teams on the same cores ruin each other.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Errand(Generic[T]):
    """Work, and what became of it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._done = threading.Event()
        self._returned: list[T] = []
        self._raised: BaseException | None = None

    def do(self) -> None:
        try:
            self._returned.append(self._work())
        except BaseException as error:  # concerns the node that asked, not the thread that does it
            self._raised = error
        self._done.set()

    def refuse(self, why: BaseException) -> None:
        self._raised = why
        self._done.set()

    def result(self) -> T:
        self._done.wait()
        if self._raised is not None:
            raise self._raised
        return self._returned[0]


class Errands:
    """The errands of one thread.

    Args:
        changed: what the thread waits on when it has nothing to do.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._waiting: deque[_Errand[Any]] = deque()
        self._refusal: BaseException | None = None

    @property
    def waiting(self) -> bool:
        """Whether there is one to do."""
        return bool(self._waiting)

    def ask(self, work: Callable[[], T]) -> T:
        """Have `work` done and wait for what it returns. For any thread but the one that does it.

        Raises:
            BaseException: what `work` raised, or why the thread does no more errands.
        """
        errand = _Errand(work)
        with self._changed:
            if self._refusal is not None:
                raise self._refusal
            self._waiting.append(errand)
            self._changed.notify_all()
        return errand.result()

    def do_next(self) -> None:
        """Do one, if any waits. For the thread that does them, which holds no lock then."""
        if self._waiting:
            self._waiting.popleft().do()

    def refuse(self, why: BaseException) -> None:
        """Do no more, neither those that wait nor those that come."""
        with self._changed:
            self._refusal = why
            while self._waiting:
                self._waiting.popleft().refuse(why)
