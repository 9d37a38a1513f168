"""Client: a node's interface to the engine, to submit sequences and collect finished ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from operators.engine.sequence import Sequence
from operators.engine.sequence.node_queue import NodeQueue
from pipeline.api.meter import StageMeter

if TYPE_CHECKING:
    from operators.engine.loop.engine import Engine


class Client(NodeQueue):
    """A node's connection to an engine; made by Engine.connect. Its methods are called from the node's thread."""

    def __init__(self, engine: Engine, meter: StageMeter, depth: int, capacity: int, wake: Callable[[], None]) -> None:
        super().__init__(meter, depth, capacity, wake)
        self._engine = engine

    def submit(self, rows: Iterable[Sequence]) -> None:
        """Queue `rows` for admission, in this order."""
        now = self._engine.now()
        rows = list(rows)
        for row in rows:
            row.times.queued = now
        self._engine.queue.submit(self, rows)
        self._engine.wake()

    def collect(self) -> list[Sequence]:
        """Return the sequences that finished since the last call.

        Raises:
            BaseException: the exception that ended the engine's thread.
        """
        self._engine.raise_failure()
        rows = self._take()
        if rows:
            self._engine.wake()
        return rows

    def end(self) -> None:
        """Note that no more sequences will be submitted."""
        self.ended = True

    def leave(self) -> list[Sequence]:
        """Disconnect after the current step; return finished sequences that were not collected."""
        self._engine.drop(self)
        return self._take()

    def _take(self) -> list[Sequence]:
        rows = [self.finished.popleft() for _ in range(len(self.finished))]
        self.collected += len(rows)
        return rows
