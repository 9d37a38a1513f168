"""Workers as threads of this process, which begin at once: everything that a cluster does, without another process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from pipeline.cluster import worker
from pipeline.cluster.pool import USUAL_WORKERS, ServiceDesk, WorkerLost
from pipeline.cluster.start import POOLS, calls_at_a_time
from pipeline.cluster.worker import Worker, WorkerPlan
from pipeline.settings import JobSettings


@contextmanager
def workers_in_threads() -> Iterator[None]:
    """Make the workers of cluster=processes threads of this process."""

    def threads(settings: JobSettings, plan: WorkerPlan, own_memory: int) -> ThreadPool:
        return ThreadPool(plan, calls_at_a_time(settings.cluster))

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(POOLS, "processes", threads)
        patched.setattr(worker, "LOGGERS", ())  # what they log is in the run's log anyway
        yield


class ThreadPool:
    """Starts workers as threads of this process, each with a model of its own.

    Args:
        plan: of every worker.
        calls: that a worker answers at a time.
    """

    def __init__(self, plan: WorkerPlan, calls: int) -> None:
        self._plan = plan
        self._calls = calls
        self._desk = ServiceDesk()
        self.fits = USUAL_WORKERS

    @property
    def lost(self) -> None:
        return None

    def start_worker(self, name: str) -> ThreadHandle:
        return ThreadHandle(Worker(self._plan, self._desk), self._calls)

    def missing(self) -> str:
        return "the model is still being loaded"

    def close(self) -> None:
        self._desk.close()


class ThreadHandle:
    """A worker that is called by threads."""

    def __init__(self, worker: Worker, calls: int) -> None:
        self._worker = worker
        self._threads = ThreadPoolExecutor(calls, "worker")
        self._open: set[Future[Any]] = set()
        self._settling = threading.Lock()
        self._lost = False

    def call(self, method: str, *args: object) -> Future[Any]:
        answer: Future[Any] = Future()
        if self._lost:
            answer.set_exception(WorkerLost("it was ended"))
            return answer
        self._open.add(answer)
        self._threads.submit(self._answer, answer, method, args)
        return answer

    def kill(self) -> None:
        if self._lost:
            return
        self._lost = True
        for answer in list(self._open):
            self._settle(answer, WorkerLost("it was ended"))
        self._threads.submit(self._worker.stop)
        self._threads.shutdown(wait=False)

    def _answer(self, answer: Future[Any], method: str, args: tuple[object, ...]) -> None:
        try:
            found = getattr(self._worker, method)(*args)
        except BaseException as error:
            self._settle(answer, error)
        else:
            self._settle(answer, found)

    def _settle(self, answer: Future[Any], found: object) -> None:
        with self._settling:
            self._open.discard(answer)
            if answer.done():
                return
            if isinstance(found, BaseException):
                answer.set_exception(found)
            else:
                answer.set_result(found)
