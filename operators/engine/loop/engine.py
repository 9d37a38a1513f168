"""Engine: generates for all nodes that use one model with the same settings.

Each node has a Client, to submit sequences and collect finished ones. A sequence is admitted only if its node has room
to take it back, so a slow reader of one node never blocks another, and memory is bounded. An engine may have several
contexts of its model: each has a Worker with its own slots, and all take sequences from one queue. All engines of a run
share their threads (operators/engine/loop/threads.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import asdict

from operators.engine.loop.step_log import StepLog
from operators.engine.loop.threads import EngineThreads
from operators.engine.loop.worker import Worker
from operators.engine.scheduler.waiting_queue import WaitingQueue
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import NodeQueue
from pipeline.api.meter import StageMeter
from pipeline.api.protocols import Table


class Engine:
    """The contexts of one model, each a Worker that makes steps, and the nodes whose sequences they complete.

    Args:
        workers: one a context; all have the same `queue`.
        steps: the table of steps, one row per call.
        threads: run the steps, and have the clock; None: threads of its own, which end with it.
        number: its number in that table.
    """

    def __init__(
        self,
        workers: Seq[Worker],
        queue: WaitingQueue,
        steps: Table,
        threads: EngineThreads | None = None,
        number: int = 0,
    ) -> None:
        self.queue = queue
        self.workers = workers
        self._own_threads = threads is None
        self.threads = threads or EngineThreads()
        self._clients: list[Client] = []
        self._served = False
        clock, began = self.threads.clock, self.threads.began
        for n, worker in enumerate(workers):
            worker.log = StepLog(steps, number, n, worker.scheduler, worker.meters, clock, began)
            worker.on_stop = self._wake_clients

    def connect(
        self, meter: StageMeter, depth: int, capacity: int, wake: Callable[[], None], *, steps: bool = True
    ) -> Client:
        """Return a client for a node. The threads run steps from the first client on, unless `steps` is false: then the
        caller runs them (Worker.step)."""
        client = Client(self, meter, depth, capacity, wake)
        with self.threads.changed:
            self._clients.append(client)
            self.queue.add(client)
            begins = steps and not self._served
            self._served = self._served or steps
        if begins:
            for worker in self.workers:
                worker.start()
            self.threads.serve(self.workers)
        return client

    def drop(self, client: Client) -> None:
        """Remove a client and its sequences; returns after the current steps."""
        self.queue.drop(client)
        with self.threads.paused(self.workers):
            for worker in self.workers:
                worker.scheduler.abandon(lambda row: row.owner is client)
            if client in self._clients:
                self._clients.remove(client)

    def close(self) -> None:
        """Stop after the current steps."""
        self.threads.withdraw(self.workers)
        if self._own_threads:
            self.threads.close()

    def now(self) -> float:
        """Return seconds on the engine's clock."""
        return self.threads.clock()

    def wake(self) -> None:
        """Wake the threads: sequences were queued, or collected."""
        with self.threads.changed:
            self.threads.changed.notify_all()

    def active_slots(self) -> str:
        """Return the number of slots in use, for the progress line."""
        pools = [worker.scheduler.slots for worker in self.workers]
        return f"slots {sum(map(len, pools))}/{sum(pool.size for pool in pools)}"

    def totals(self) -> dict[str, float]:
        """Return the summed counts and seconds of all contexts."""
        each = [
            asdict(worker.log.totals) | asdict(worker.scheduler.counts) | dict(worker.strategy.totals())
            for worker in self.workers
        ]
        return {key: float(sum(one[key] for one in each)) for key in each[0]} | {"contexts": float(len(each))}

    def _wake_clients(self) -> None:
        """Wake the nodes, which find out why the steps have stopped."""
        for client in list(self._clients):
            client.wake()


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
        if self._engine.threads.failure is not None:
            raise self._engine.threads.failure
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
