"""The engine: the step loop for every node that generates with one model and the same settings.

Each node has a Client: it submits sequences, and collects them when they are finished. A row is admitted only when its
node has room to take it back, so a slow reader of one node never stops another, and nothing grows. An engine may have
several contexts of its model: each is worked by a Worker with slots of its own, and all take their rows from one
queue. The threads that make the steps are those of all engines of a run (operators/engine/loop/threads.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import asdict

from operators.engine.backend.interface import Logits
from operators.engine.loop.client import Client
from operators.engine.loop.step_log import StepLog, Timing
from operators.engine.loop.threads import Lanes
from operators.engine.loop.worker import Worker
from operators.engine.scheduler.step_batch import Call, Draw
from operators.engine.scheduler.waiting_queue import Queue
from operators.engine.sequence import Sequence, State
from pipeline.api.meter import StageMeter, StageState
from pipeline.api.protocols import Table


class Engine:
    """Makes the steps of its contexts, until it is closed.

    Args:
        workers: one a context; all have the same queue.
        queue: the rows that wait.
        steps: the table of steps, one row a call.
        lanes: the threads, with their clock; None: its own, which end with it.
        number: which engine of the run it is, in the table of steps.
    """

    def __init__(
        self, workers: Seq[Worker], queue: Queue, steps: Table, lanes: Lanes | None = None, number: int = 0
    ) -> None:
        self.queue = queue
        self._workers = workers
        self._own_lanes = lanes is None
        self._lanes = lanes or Lanes()
        self._clock = self._lanes.clock
        self._clients: list[Client] = []
        self._runners = [_Runner(self, n, worker) for n, worker in enumerate(workers)]
        self._served = False
        self._logs = [StepLog(steps, number, n, worker.scheduler.slots.size) for n, worker in enumerate(workers)]

    @property
    def workers(self) -> Seq[Worker]:
        """One a context."""
        return self._workers

    def connect(self, meter: StageMeter, depth: int, capacity: int, wake: Callable[[], None]) -> Client:
        """A client for a node; steps are made from the first on."""
        client = self.client(meter, depth, capacity, wake)
        with self._lanes.changed:
            self.add(client)
            begins, self._served = not self._served, True
        if begins:
            for worker in self._workers:
                worker.start()
            self._lanes.serve(self._runners)
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
        left = [self._ask(runner, client) for runner in self._runners]
        for runner, done in zip(self._runners, left, strict=True):
            while self._lanes.serves(runner) and not done.wait(0.05):
                pass
        if client in self._clients:
            self._clients.remove(client)

    def close(self) -> None:
        """Make no more steps; returns when the last ones are done."""
        self._lanes.withdraw(self._runners)
        if self._own_lanes:
            self._lanes.close()

    def now(self) -> float:
        """Seconds on the engine's clock."""
        return self._clock()

    def wake(self) -> None:
        """Rows were queued, or room was made."""
        with self._lanes.changed:
            self._lanes.changed.notify_all()

    def raise_failure(self) -> None:
        """Raise what ended a thread, if anything did."""
        if self._lanes.failure is not None:
            raise self._lanes.failure

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

    def wake_clients(self) -> None:
        """No more steps are made: those who wait for rows are to find out why."""
        for client in list(self._clients):
            client.wake()

    def _ask(self, runner: _Runner, client: Client) -> threading.Event:
        """Have the thread of a context forget the rows of `client`."""
        done = threading.Event()

        def forget() -> None:
            runner.scheduler.abandon(lambda row: row.owner is client)
            done.set()

        with self._lanes.changed:
            runner.requests.append(forget)
            self._lanes.changed.notify_all()
        return done

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
        worker.scheduler.expire(ended)
        for meter in worker.meters:
            meter.batches += 1
            meter.rows_in += len(rows)
            meter.rows_out += len(rows)
        timing = Timing(began - self._lanes.began, filled - began, decoded - filled, ended - decoded)
        shared, moves = counts.shared_tokens - before[0], counts.moves - before[1]
        self._logs[number].add(work, tokens, timing, shared, moves)
        self._hand_over(worker, worker.scheduler.slots.rows(), ended)

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


class _Runner:
    """A context of an engine, as a lane sees it (operators.engine.loop.threads.Runner)."""

    def __init__(self, engine: Engine, number: int, worker: Worker) -> None:
        self.requests = worker.requests
        self.scheduler = worker.scheduler
        self._engine = engine
        self._number = number
        self._worker = worker

    @property
    def runnable(self) -> bool:
        """Whether rows are in slots, or may be."""
        return self.scheduler.runnable

    def standing(self) -> tuple[float, int]:
        """See Runner.standing."""
        return self.scheduler.fullness, self.scheduler.depth

    def idle(self) -> None:
        """Nothing is to be computed: either rows wait for those downstream, or there are none."""
        self._worker.enter(StageState.BLOCKED if self._engine.queue.waiting else StageState.STARVED)

    def step(self) -> None:
        """Make a step of the engine in this context."""
        self._engine.step(self._number)

    def ended(self) -> None:
        """Stop the clocks, and tell the nodes."""
        self._worker.stop()
        self._engine.wake_clients()
