"""EngineThread: the compute thread of all engines of a run, and of nodes that compute without generating.

llama.cpp keeps a team of threads for each thread that calls it, and an idle team spins for a while (OpenMP: 200 ms).
Engines with a thread each would therefore slow each other down even if they took turns. Instead, one thread runs the
steps of all engines in turn. Jobs that are no step of an engine (texts to score, a calibration) run on it between two
steps.

Which engine makes the next step is said by `policy.engine_rank`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from operators.engine.loop.step_loop import StepLoop
from operators.engine.scheduler import policy
from pipeline.api.errors import PipelineError
from pipeline.api.meter import Clock

T = TypeVar("T")


class Closed(PipelineError):
    """The thread for this job has ended with the run."""

    def __init__(self) -> None:
        super().__init__("the engine has ended with the run")


class EngineThread:
    """The compute thread, started on demand and ended by `close`."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.changed = threading.Condition()
        """Notified when there may be something to compute."""
        self.clock = clock
        self.began = clock()
        self.failure: BaseException | None = None
        """The error that ended the thread."""
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._thread: threading.Thread | None = None
        self._loops: list[StepLoop] = []
        self._paused: list[StepLoop] = []
        self._current: StepLoop | None = None
        """The loop whose step it runs."""
        self._passed: dict[StepLoop, int] = {}
        """How often a loop was passed over in succession."""
        self._closing = False

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread, between two steps; wait for its result and return it. Raises the exception of
        `work`, or the one that ended the thread."""
        job: Future[T] = Future()
        with self.changed:
            if self._closing:
                raise self.failure or Closed()
            self._start()
            self._jobs.append((job, work))
            self.changed.notify_all()
        return job.result()

    def serve(self, loop: StepLoop) -> None:
        """Run the steps of `loop`."""
        with self.changed:
            self._start()
            self._loops.append(loop)
            self.changed.notify_all()

    def withdraw(self, loop: StepLoop) -> None:
        """Stop running the steps of `loop`; returns after its current one."""
        with self.paused(loop):
            self._loops = [other for other in self._loops if other is not loop]
        loop.stop()

    @contextmanager
    def paused(self, loop: StepLoop) -> Iterator[None]:
        """Run no steps of `loop` within the block, which begins after its current one."""
        with self.changed:
            self._paused.append(loop)
            try:
                self.changed.wait_for(lambda: self._current is not loop)
                yield
            finally:
                self._paused.remove(loop)
                self.changed.notify_all()

    def close(self) -> None:
        """End the thread after its current step or job."""
        with self.changed:
            self._closing = True
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="engine")
            self._thread.start()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                if self._jobs:
                    self._do_next_job()
                if self._current is not None:
                    self._current.step()
        except BaseException as error:  # reaches the nodes through Client.collect
            with self.changed:
                self.failure = error
                self._closing = True
        finally:
            with self.changed:
                self._current = None
                while self._jobs:
                    self._jobs.popleft()[0].set_exception(self.failure or Closed())
                self.changed.notify_all()
            for loop in self._loops:
                loop.stop()

    def _wait_for_work(self) -> bool:
        with self.changed:
            while True:
                if self._current in self._paused:
                    self.changed.notify_all()  # `paused` waits for the end of the step
                self._current = None
                if self._closing:
                    return False
                self._current = self._next()
                if self._current is not None or self._jobs:
                    return True
                for loop in self._loops:
                    loop.idle()
                self.changed.wait()

    def _next(self) -> StepLoop | None:
        """Return the loop whose turn it is."""
        able = [loop for loop in self._loops if loop.scheduler.runnable and loop not in self._paused]
        if len(able) < 2:
            return able[0] if able else None
        chosen = max(able, key=lambda loop: policy.engine_rank(self._passed.get(loop, 0), *loop.scheduler.rank()))
        self._passed = {loop: self._passed.get(loop, 0) + 1 for loop in able if loop is not chosen}
        return chosen

    def _do_next_job(self) -> None:
        job, work = self._jobs.popleft()
        try:
            job.set_result(work())
        except BaseException as error:  # concerns the node that asked, not the thread
            job.set_exception(error)
