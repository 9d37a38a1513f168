"""Engine: generates for all nodes that use one model with the same settings.

Each node has a Client, to submit sequences and collect finished ones. A sequence is admitted only if its node has room
to take it back, so a slow reader of one node never blocks another, and memory is bounded. An engine may have several
contexts of its model: each has a Worker with its own slots, and all take sequences from one queue. All engines of a run
share their threads (operators/engine/loop/threads.py).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import asdict

from operators.engine.loop.client import Client
from operators.engine.loop.step_log import StepLog
from operators.engine.loop.threads import EngineThreads
from operators.engine.loop.worker import Worker
from operators.engine.scheduler.waiting_queue import WaitingQueue
from pipeline.api.meter import StageMeter
from pipeline.api.protocols import Table


class Engine:
    """The contexts of one model, each a Worker that makes steps, and the nodes whose sequences they complete.

    Args:
        workers: one a context; all have the same queue.
        queue: the waiting sequences.
        steps: the table of steps, one row per call.
        threads: run the steps, and have the clock; None: threads of its own, which end with it.
        number: its number in the table of steps.
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
        self._threads = threads or EngineThreads()
        self._clients: list[Client] = []
        self._served = False
        clock, began = self._threads.clock, self._threads.began
        for n, worker in enumerate(workers):
            worker.log = StepLog(steps, number, n, worker.scheduler, worker.meters, clock, began)
            worker.on_stop = self.wake_clients

    def connect(
        self, meter: StageMeter, depth: int, capacity: int, wake: Callable[[], None], *, steps: bool = True
    ) -> Client:
        """Return a client for a node. The threads run steps from the first client on, unless `steps` is false: then the
        caller runs them (Worker.step)."""
        client = Client(self, meter, depth, capacity, wake)
        with self._threads.changed:
            self._clients.append(client)
            self.queue.add(client)
            begins = steps and not self._served
            self._served = self._served or steps
        if begins:
            for worker in self.workers:
                worker.start()
            self._threads.serve(self.workers)
        return client

    def drop(self, client: Client) -> None:
        """Remove a client and its sequences; returns after the current steps."""
        self.queue.drop(client)
        with self._threads.paused(self.workers):
            for worker in self.workers:
                worker.scheduler.abandon(lambda row: row.owner is client)
            if client in self._clients:
                self._clients.remove(client)

    def close(self) -> None:
        """Stop after the current steps."""
        self._threads.withdraw(self.workers)
        if self._own_threads:
            self._threads.close()

    def now(self) -> float:
        """Return seconds on the engine's clock."""
        return self._threads.clock()

    def wake(self) -> None:
        """Wake the threads: sequences were queued, or collected."""
        with self._threads.changed:
            self._threads.changed.notify_all()

    def raise_failure(self) -> None:
        """Raise the exception that ended a thread, if there is one."""
        if self._threads.failure is not None:
            raise self._threads.failure

    def active_slots(self) -> str:
        """Return the number of slots in use, for the progress line."""
        used = sum(len(worker.scheduler.slots) for worker in self.workers)
        return f"slots {used}/{sum(worker.scheduler.slots.size for worker in self.workers)}"

    def totals(self) -> dict[str, float]:
        """Return the summed counts and seconds of all contexts."""
        each = [
            asdict(worker.log.totals) | asdict(worker.scheduler.counts) | dict(worker.strategy.totals())
            for worker in self.workers
        ]
        return {key: float(sum(one[key] for one in each)) for key in each[0]} | {"contexts": float(len(each))}

    def wake_clients(self) -> None:
        """Wake the nodes, which find out why the steps have stopped."""
        for client in list(self._clients):
            client.wake()
