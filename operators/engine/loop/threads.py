"""EngineThreads: the compute threads of all engines of a run, and of nodes that compute without generating.

llama.cpp keeps a team of threads for each thread that calls it, and an idle team spins for a while (OpenMP: 200 ms).
Engines with a thread each would therefore slow each other down even if they took turns. Instead, one thread runs the
steps of all engines in turn, with one more thread for each further context if `runtime.contexts` divides the cores.
Jobs that are no step of an engine (texts to score, a calibration) run on the first thread, between two steps.

Among engines with rows to compute the next is the one that fills the largest share of its slots, since a step costs
nearly the same for one row and for many; among equally full ones the one furthest downstream, so that rows leave the
graph. None is passed over more than PATIENCE times in succession.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from operators.engine.loop.worker import Worker
from pipeline.api.errors import PipelineError
from pipeline.api.meter import Clock

T = TypeVar("T")

PATIENCE = 8
"""Most steps that an engine with rows to compute waits for others."""


class Closed(PipelineError):
    """The thread for this job has ended with the run."""

    def __init__(self) -> None:
        super().__init__("the engine has ended with the run")


class _EngineThread(threading.Thread):
    """A thread, and the workers whose steps it runs; number 0 runs the jobs.

    Attributes:
        current: the worker whose step it runs.
        passed: how often a worker was passed over in succession.
    """

    def __init__(self, number: int, run: Callable[[_EngineThread], None]) -> None:
        super().__init__(target=run, args=(self,), name=f"engine-{number}")
        self.number = number
        self.workers: list[Worker] = []
        self.current: Worker | None = None
        self.passed: dict[Worker, int] = {}

    def next(self, paused: Collection[Worker]) -> Worker | None:
        """Return the worker whose turn it is."""
        able = [worker for worker in self.workers if worker.scheduler.runnable and worker not in paused]
        if len(able) < 2:
            return able[0] if able else None
        chosen = max(able, key=self._rank)
        self.passed = {worker: self.passed.get(worker, 0) + 1 for worker in able if worker is not chosen}
        return chosen

    def _rank(self, worker: Worker) -> tuple[bool, tuple[float, int]]:
        return self.passed.get(worker, 0) >= PATIENCE, worker.scheduler.rank()


class EngineThreads:
    """The compute threads, started on demand and ended by `close`."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.changed = threading.Condition()
        """Notified when there may be something to compute."""
        self.clock = clock
        self.began = clock()
        self.failure: BaseException | None = None
        """The error that ended a thread, and with it all."""
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: list[_EngineThread] = []
        self._paused: list[Worker] = []
        self._closing = False

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` on the first thread, between two steps; wait for its result and return it.

        Raises:
            BaseException: the exception of `work`, or the one that ended the thread.
        """
        job: Future[T] = Future()
        with self.changed:
            if self._closing:
                raise self.failure or Closed()
            self._start(1)
            self._jobs.append((job, work))
            self.changed.notify_all()
        return job.result()

    def serve(self, workers: Seq[Worker]) -> None:
        """Run the steps of `workers`, the contexts of an engine, each on a thread of its own."""
        with self.changed:
            self._start(len(workers))
            for thread, worker in zip(self._threads, workers, strict=False):
                thread.workers.append(worker)
            self.changed.notify_all()

    def withdraw(self, workers: Seq[Worker]) -> None:
        """Stop running the steps of `workers`; returns after their current ones."""
        with self.paused(workers):
            for thread in self._threads:
                thread.workers = [worker for worker in thread.workers if worker not in workers]
        for worker in workers:
            worker.stop()

    @contextmanager
    def paused(self, workers: Seq[Worker]) -> Iterator[None]:
        """Run no steps of `workers` within the block, which begins after their current ones."""
        with self.changed:
            self._paused += workers
            try:
                self.changed.wait_for(lambda: not any(thread.current in workers for thread in self._threads))
                yield
            finally:
                for worker in workers:
                    self._paused.remove(worker)
                self.changed.notify_all()

    def close(self) -> None:
        """End the threads after their current steps or jobs."""
        with self.changed:
            self._closing = True
            self.changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _start(self, count: int) -> None:
        for number in range(len(self._threads), count):
            self._threads.append(_EngineThread(number, self._run))
            self._threads[-1].start()

    def _run(self, thread: _EngineThread) -> None:
        try:
            while self._wait_for_work(thread):
                if thread.number == 0 and self._jobs:
                    self._do_next_job()
                if thread.current is not None:
                    thread.current.step()
        except BaseException as error:  # reaches the nodes through Client.collect
            with self.changed:
                self.failure = self.failure or error
                self._closing = True
        finally:
            with self.changed:
                thread.current = None
                while self._jobs:
                    self._jobs.popleft()[0].set_exception(self.failure or Closed())
                self.changed.notify_all()
            for worker in thread.workers:
                worker.stop()

    def _wait_for_work(self, thread: _EngineThread) -> bool:
        with self.changed:
            while True:
                if thread.current in self._paused:
                    self.changed.notify_all()  # `paused` waits for the end of the step
                thread.current = None
                if self._closing:
                    return False
                thread.current = thread.next(self._paused)
                if thread.current is not None or (thread.number == 0 and self._jobs):
                    return True
                for worker in thread.workers:
                    worker.idle()
                self.changed.wait()

    def _do_next_job(self) -> None:
        job, work = self._jobs.popleft()
        try:
            job.set_result(work())
        except BaseException as error:  # concerns the node that asked, not the thread
            job.set_exception(error)
