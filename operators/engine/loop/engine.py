"""The engine: it serves every node that generates with one model and the same settings.

Each node has a Client: it submits sequences, and collects them when they are finished. A row is admitted only when its
node has room to take it back, so a slow reader of one node never stops another, and nothing grows. An engine may have
several contexts of its model: each is worked by a Worker with slots of its own, and all take their rows from one
queue. The threads that make the steps are those of all engines of a run (operators/engine/loop/threads.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import asdict

from operators.engine.loop.client import Client
from operators.engine.loop.step_log import StepLog
from operators.engine.loop.threads import EngineThreads
from operators.engine.loop.worker import Worker
from operators.engine.scheduler.waiting_queue import Queue
from pipeline.api.meter import StageMeter
from pipeline.api.protocols import Table


class Engine:
    """The contexts of one model, each a Worker that makes steps, and the nodes whose rows they complete.

    Args:
        workers: one a context; all have the same queue.
        queue: the rows that wait.
        steps: the table of steps, one row a call.
        threads: those that make the steps, with their clock; None: its own, which end with it.
        number: which engine of the run it is, in the table of steps.
    """

    def __init__(
        self, workers: Seq[Worker], queue: Queue, steps: Table, threads: EngineThreads | None = None, number: int = 0
    ) -> None:
        self.queue = queue
        self._workers = workers
        self._own_threads = threads is None
        self._threads = threads or EngineThreads()
        self._clients: list[Client] = []
        self._served = False
        clock, began = self._threads.clock, self._threads.began
        for n, worker in enumerate(workers):
            worker.log = StepLog(steps, number, n, worker.scheduler, worker.meters, clock, began)
            worker.on_stop = self.wake_clients

    @property
    def workers(self) -> Seq[Worker]:
        """One a context."""
        return self._workers

    def connect(self, meter: StageMeter, depth: int, capacity: int, wake: Callable[[], None]) -> Client:
        """A client for a node; steps are made from the first on."""
        client = self.client(meter, depth, capacity, wake)
        with self._threads.changed:
            self.add(client)
            begins, self._served = not self._served, True
        if begins:
            for worker in self._workers:
                worker.start()
            self._threads.serve(self._workers)
        return client

    def client(self, meter: StageMeter, depth: int, capacity: int, wake: Callable[[], None]) -> Client:
        """A client that is not served yet."""
        return Client(self, meter, depth, capacity, wake)

    def add(self, client: Client) -> None:
        """Serve `client`."""
        self._clients.append(client)
        self.queue.add_line(client.line)

    def drop(self, client: Client) -> None:
        """Forget a client and its rows; returns when the steps that run are done."""
        self.queue.drop_line(client.line)
        left = [self._forget(worker, client) for worker in self._workers]
        for worker, done in zip(self._workers, left, strict=True):
            while self._threads.serves(worker) and not done.wait(0.05):
                pass
        if client in self._clients:
            self._clients.remove(client)

    def close(self) -> None:
        """Make no more steps; returns when the last ones are done."""
        self._threads.withdraw(self._workers)
        if self._own_threads:
            self._threads.close()

    def now(self) -> float:
        """Seconds on the engine's clock."""
        return self._threads.clock()

    def wake(self) -> None:
        """Rows were queued, or room was made."""
        with self._threads.changed:
            self._threads.changed.notify_all()

    def raise_failure(self) -> None:
        """Raise what ended a thread, if anything did."""
        if self._threads.failure is not None:
            raise self._threads.failure

    def active_slots(self) -> str:
        """For the progress line."""
        used = sum(len(worker.scheduler.slots) for worker in self._workers)
        return f"slots {used}/{sum(worker.scheduler.slots.size for worker in self._workers)}"

    def totals(self) -> dict[str, float]:
        """Counts and seconds of all contexts together."""
        each = [
            asdict(worker.log.totals) | asdict(worker.scheduler.counts) | dict(worker.strategy.totals())
            for worker in self._workers
        ]
        return {key: float(sum(one[key] for one in each)) for key in each[0]} | {"contexts": float(len(each))}

    def wake_clients(self) -> None:
        """No more steps are made: those who wait for rows are to find out why."""
        for client in list(self._clients):
            client.wake()

    def _forget(self, worker: Worker, client: Client) -> threading.Event:
        """Have the thread of a context forget the rows of `client`."""
        done = threading.Event()

        def forget() -> None:
            worker.scheduler.abandon(lambda row: row.owner is client)
            done.set()

        with self._threads.changed:
            worker.jobs.append(forget)
            self._threads.changed.notify_all()
        return done
