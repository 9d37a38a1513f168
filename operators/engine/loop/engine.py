"""Engine: generates for all nodes that use one model with the same settings.

Each node has a Client, to submit sequences and collect finished ones. A sequence is admitted only if its node has room
to take it back, so a slow reader of one node never blocks another, and memory is bounded. All engines of a run share
their thread (operators/engine/loop/thread.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from operators.engine.loop.step_loop import StepLoop
from operators.engine.loop.thread import EngineThread
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import NodeQueue
from pipeline.api.meter import StageMeter


class Engine:
    """The steps on the context of a model, run by `thread`, and the nodes whose sequences it completes."""

    def __init__(self, loop: StepLoop, thread: EngineThread) -> None:
        self.loop = loop
        self.queue = loop.scheduler.queue
        self.thread = thread
        self._served = False

    def connect(
        self, meter: StageMeter, depth: int, capacity: int, wake: Callable[[], None], *, steps: bool = True
    ) -> Client:
        """Return a client for a node. The thread runs steps from the first client on, unless `steps` is false: then the
        caller runs them (StepLoop.step)."""
        client = Client(self, meter, depth, capacity, wake)
        with self.thread.changed:
            self.queue.add(client)
            begins = steps and not self._served
            self._served = self._served or steps
        if begins:
            self.loop.start()
            self.thread.serve(self.loop)
        return client

    def drop(self, client: Client) -> None:
        """Remove a client and its sequences; returns after the current step."""
        self.queue.drop(client)
        with self.thread.paused(self.loop):
            self.loop.scheduler.abandon(lambda row: row.owner is client)

    def close(self) -> None:
        """Stop after the current step."""
        self.thread.withdraw(self.loop)

    def now(self) -> float:
        """Return seconds on the engine's clock."""
        return self.thread.clock()

    def wake(self) -> None:
        """Wake the thread: sequences were queued, or collected."""
        with self.thread.changed:
            self.thread.changed.notify_all()

    def active_slots(self) -> str:
        """Return the number of slots in use, for the progress line."""
        pool = self.loop.scheduler.slots
        return f"slots {len(pool)}/{pool.size}"

    def counts(self) -> list[Any]:
        """Return the dataclasses of its counts and seconds, for `Runtime.numbers`."""
        loop, limit = self.loop, self.loop.log.limit
        of_calls = [] if limit is None else [limit.sums]
        return [loop.log.totals, loop.scheduler.counts, *loop.strategy.own_counts(), *of_calls]

    def totals(self) -> dict[str, float]:
        """Return its counts and seconds by name."""
        return {name: value for counts in self.counts() for name, value in asdict(counts).items()}


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
        """Return the sequences that finished since the last call. Raises the exception that ended the engine's
        thread."""
        if self._engine.thread.failure is not None:
            raise self._engine.thread.failure
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
