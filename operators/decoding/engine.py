"""The engine: one thread for each context, that runs the step loop for every node that generates on it.

Nodes share an engine, because two thread teams on the same cores ruin each other. Each has a Client: it submits
sequences, and collects them when they are finished. A row is admitted only when its node has room to take it back, so a
slow reader of one node never stops another, and nothing grows. An engine may have several contexts, one a device: each
is worked by a Worker with slots of its own, and all take their rows from one queue. Nodes that compute without
generating have it done on the first thread, between two steps (`Engine.call`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import asdict
from typing import TypeVar

from operators.decoding.calls import Call, Draw
from operators.decoding.client import Client
from operators.decoding.errands import Errands
from operators.decoding.model import Logits
from operators.decoding.queue import Queue
from operators.decoding.sequence import Sequence, State
from operators.decoding.step_log import StepLog, Timing
from operators.decoding.worker import Worker
from pipeline.errors import PipelineError
from pipeline.meter import Clock, StageMeter, StageState
from pipeline.protocols import Table

T = TypeVar("T")


class Closed(PipelineError):
    """The thread that was asked to compute something has ended with the run."""

    def __init__(self) -> None:
        super().__init__("the engine has ended with the run")


class Engine:
    """Runs the step loop until it is closed.

    Args:
        workers: one a context; all have the same queue.
        queue: the rows that wait.
        steps: the table of steps, one row a call.
        clock: seconds.
    """

    def __init__(self, workers: Seq[Worker], queue: Queue, steps: Table, clock: Clock = time.perf_counter) -> None:
        self.queue = queue
        self._workers = workers
        self._clock = clock
        self._began = clock()
        self._changed = threading.Condition()
        self._errands = Errands(self._changed)
        self._closing = False
        self._failure: BaseException | None = None
        self._clients: list[Client] = []
        self._logs = [StepLog(steps, n, worker.scheduler.slots.size) for n, worker in enumerate(workers)]

    @property
    def workers(self) -> Seq[Worker]:
        """One a context."""
        return self._workers

    def connect(self, meter: StageMeter, depth: int, capacity: int, wake: Callable[[], None]) -> Client:
        """A client for a node; the threads start with the first."""
        client = self.client(meter, depth, capacity, wake)
        with self._changed:
            self.add(client)
            self._start()
            self._changed.notify_all()
        return client

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread of the first context, between two steps, and wait for what it returns.

        Raises:
            BaseException: what `work` raised, or what ended the thread.
        """
        with self._changed:
            self._start()
        return self._errands.ask(work)

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
        left = [self._ask(worker, client) for worker in self._workers]
        for worker, done in zip(self._workers, left, strict=True):
            while worker.thread is not None and worker.thread.is_alive() and not done.wait(0.05):
                pass
        if client in self._clients:
            self._clients.remove(client)

    def close(self) -> None:
        """End the threads after their steps."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for worker in self._workers:
            if worker.thread is not None:
                worker.thread.join()

    def now(self) -> float:
        """Seconds on the engine's clock."""
        return self._clock()

    def wake(self) -> None:
        """Rows were queued, or room was made."""
        with self._changed:
            self._changed.notify_all()

    def raise_failure(self) -> None:
        """Raise what ended a thread, if anything did."""
        if self._failure is not None:
            raise self._failure

    def active_slots(self) -> str:
        """For the progress line."""
        used = sum(len(worker.scheduler.slots) for worker in self._workers)
        return f"slots {used}/{sum(worker.scheduler.slots.size for worker in self._workers)}"

    def totals(self) -> dict[str, float]:
        """Counts and seconds of all contexts together."""
        each = [
            asdict(log.totals) | asdict(worker.scheduler.counts) | dict(worker.strategy.totals())
            for log, worker in zip(self._logs, self._workers, strict=True)
        ]
        return {key: float(sum(one[key] for one in each)) for key in each[0]} | {"contexts": float(len(each))}

    def _start(self) -> None:
        for number, worker in enumerate(self._workers):
            if worker.thread is None:
                worker.thread = threading.Thread(target=self._run, args=(number,), name=f"engine-{number}")
                worker.thread.start()

    def _ask(self, worker: Worker, client: Client) -> threading.Event:
        """Have the worker's thread forget the rows of `client`."""
        done = threading.Event()

        def forget() -> None:
            worker.scheduler.abandon(lambda row: row.owner is client)
            done.set()

        with self._changed:
            worker.requests.append(forget)
            self._changed.notify_all()
        return done

    def _run(self, number: int) -> None:
        worker = self._workers[number]
        for meter in worker.meters:
            meter.clock.start(StageState.STARVED)
        try:
            while self._wait_for_work(worker):
                if number == 0:
                    self._errands.do_next()
                self.step(number)
        except BaseException as error:  # reaches the nodes through collect()
            self._fail(error)
        finally:
            if number == 0:
                self._errands.refuse(self._failure or Closed())
            for meter in worker.meters:
                meter.clock.stop()
            for client in list(self._clients):
                client.wake()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._closing = True
            self._changed.notify_all()

    def _wait_for_work(self, worker: Worker) -> bool:
        with self._changed:
            while True:
                while worker.requests:
                    worker.requests.popleft()()
                if self._closing:
                    return False
                if worker.scheduler.runnable or (worker is self._workers[0] and self._errands.waiting):
                    return True
                worker.enter(StageState.BLOCKED if self.queue.waiting else StageState.STARVED)
                self._changed.wait()

    def step(self, number: int = 0) -> None:
        """Schedule, decode, sample, hand over. Only for the worker's own thread, or where that does not run."""
        worker = self._workers[number]
        decode_meter, sample_meter = worker.meters
        began = self._clock()
        counts = worker.scheduler.counts
        before = (counts.shared_tokens, counts.moves)
        work = worker.scheduler.schedule(began)
        if work is None:
            return
        tokens = 0
        if isinstance(work, Call):
            worker.strategy.fill(work)
            tokens = worker.decoder.batch.n_tokens

        filled = decoded = self._clock()
        logits: Logits | None = None
        if isinstance(work, Call):
            with decode_meter.clock.during(StageState.BUSY):
                logits = worker.decode(work)
            decoded = self._clock()

        with sample_meter.clock.during(StageState.BUSY):
            if isinstance(work, Draw):
                worker.strategy.draw(work)
            elif logits is not None:
                worker.strategy.advance(work, logits)
        if isinstance(work, Draw) or logits is not None:
            worker.scheduler.computed(work)

        ended = self._clock()
        rows = work.sequences
        worker.scheduler.expire(rows, ended)
        for meter in worker.meters:
            meter.batches += 1
            meter.rows_in += len(rows)
            meter.rows_out += len(rows)
        timing = Timing(began - self._began, filled - began, decoded - filled, ended - decoded)
        shared, moves = counts.shared_tokens - before[0], counts.moves - before[1]
        self._logs[number].add(work, tokens, timing, shared, moves)
        self._hand_over(worker, rows, ended)

    def _hand_over(self, worker: Worker, rows: Iterable[Sequence], now: float) -> None:
        owners: dict[Client, None] = {}
        for row in rows:
            if row.tokens and not row.first_token_at:
                row.first_token_at = now
            if row.finish_reason is not None or row.error is not None:
                row.finished_at = now
                worker.scheduler.finish(row)
                row.state = State.FINISHED
                if not isinstance(row.owner, Client):
                    raise TypeError("a sequence in a slot has no owner")
                row.owner.finished(row)
                owners[row.owner] = None
        for owner in owners:
            owner.wake()


class Lane:
    """A thread for errands, in a graph where no engine has one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._errands = Errands(self._changed)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine-lane")
        self._thread.start()

    def call(self, work: Callable[[], T]) -> T:
        """See Engine.call."""
        return self._errands.ask(work)

    def close(self) -> None:
        """End the thread after what it does."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._errands.waiting)
                if self._closing:
                    break
            self._errands.do_next()
        self._errands.refuse(Closed())
