"""Client: how a node gives its rows to the engine, and gets them back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from operators.engine.scheduler.waiting_queue import Line
from operators.engine.sequence import Sequence
from pipeline.api.meter import StageMeter

if TYPE_CHECKING:
    from operators.engine.loop.engine import Engine


class Client:
    """A node's line to the engine. Its methods are called from the node's thread.

    Args:
        engine: the engine.
        meter: of the node; counts prompt and completion tokens.
        depth: the node's distance from the source.
        capacity: rows that are in slots or finished and not collected, at most.
        wake: called from the engine's thread when rows were finished or the engine failed.
    """

    def __init__(self, engine: Engine, meter: StageMeter, depth: int, capacity: int, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._capacity = capacity
        self._finished: deque[Sequence] = deque()
        self.meter = meter
        self.wake = wake
        self.line = Line(depth, self._credit)
        self.on_finished: Callable[[Sequence], None] = lambda row: None
        """Called from the engine's thread with each row that ends, before the row can be collected."""

    @property
    def waiting(self) -> int:
        """Rows that wait for a slot."""
        return self.line.waiting

    def submit(self, rows: Iterable[Sequence]) -> None:
        """Queue `rows`, to be admitted in this order."""
        now = self._engine.now()
        rows = list(rows)
        for row in rows:
            row.times.queued = now
            row.owner = self
        self._engine.queue.submit(self.line, rows)
        self._engine.wake()

    def collect(self) -> list[Sequence]:
        """The rows that were finished since the last call.

        Raises:
            BaseException: what ended the engine's thread, if anything did.
        """
        self._engine.raise_failure()
        rows = self._take()
        if rows:
            self._engine.wake()
        return rows

    def end(self) -> None:
        """No more rows will be submitted."""
        self.line.ended = True

    def leave(self) -> list[Sequence]:
        """No longer be served, once the step that runs is done; returns rows that were finished and not collected."""
        self._engine.drop(self)
        return self._take()

    def finished(self, row: Sequence) -> None:
        """Called from the engine's thread."""
        self.on_finished(row)
        self._finished.append(row)

    def _take(self) -> list[Sequence]:
        rows = [self._finished.popleft() for _ in range(len(self._finished))]
        self.line.returned += len(rows)
        return rows

    def _credit(self) -> int:
        return self._capacity - (self.line.admitted - self.line.returned)
