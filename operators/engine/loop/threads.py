"""Lanes: the threads that compute, for all engines of a run, and for nodes that compute without generating.

llama.cpp has a team of threads on the cores for each thread that calls it, and a team that has nothing to do goes on
looking for work for a while (OpenMP: 200 ms). So engines with a thread each would ruin each other even if they took
turns. There is one thread instead, which makes a step now of this engine and now of that one; and one more for each
further context, where `runtime.contexts` divides the cores. What is not a step of an engine (a text to score, a
calibration) is done on the first of them, between two steps.

Of several engines with rows to compute the one comes next that fills most of its slots, since a step costs nearly the
same for one row and for many; of equally full ones that whose rows are furthest downstream, so that rows leave the
graph. None is passed over more than PATIENCE times in succession.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from operators.engine.loop.errands import Errands
from pipeline.api.errors import PipelineError
from pipeline.api.meter import Clock

T = TypeVar("T")

PATIENCE = 8
"""Steps that an engine with rows to compute waits for others at most."""


class Closed(PipelineError):
    """The thread that was asked to compute something has ended with the run."""

    def __init__(self) -> None:
        super().__init__("the engine has ended with the run")


class Runner(Protocol):
    """A context of an engine, as a lane sees it. All but `ended` is called from the lane's thread."""

    requests: deque[Callable[[], None]]
    """What is to be done before its next step."""

    @property
    def runnable(self) -> bool:
        """Whether there is a step to make."""

    def standing(self) -> tuple[float, int]:
        """How full of rows its next step is, 0 to 1, and the depth of the furthest of them in the graph."""

    def idle(self) -> None:
        """No one has anything to compute."""

    def step(self) -> None:
        """Make a step."""

    def ended(self) -> None:
        """It is served no more."""


@dataclass(eq=False)
class _Lane:
    """A thread, and whom it serves.

    Args:
        number: 0 for the one that does the errands.
        current: the runner whose step it makes.
        passed: how often in succession others came first, by runner.
    """

    number: int
    runners: list[Runner] = field(default_factory=list)
    current: Runner | None = None
    passed: dict[int, int] = field(default_factory=dict)
    thread: threading.Thread | None = None

    def next(self) -> Runner | None:
        """The runner whose turn it is."""
        able = [runner for runner in self.runners if runner.runnable]
        if len(able) < 2:
            return able[0] if able else None
        chosen = max(able, key=self._rank)
        self.passed = {id(runner): self.passed.get(id(runner), 0) + 1 for runner in able if runner is not chosen}
        return chosen

    def _rank(self, runner: Runner) -> tuple[bool, tuple[float, int]]:
        return self.passed.get(id(runner), 0) >= PATIENCE, runner.standing()


class Lanes:
    """The threads that compute, made when they are needed and ended by `close`.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.changed = threading.Condition()
        """Told when there may be something to compute."""
        self.clock = clock
        self.began = clock()
        self.failure: BaseException | None = None
        """What ended a thread, and with it all."""
        self._errands = Errands(self.changed)
        self._lanes: list[_Lane] = []
        self._closing = False

    @property
    def errand_waits(self) -> bool:
        """Whether a node waits for what the first thread is to compute."""
        return self._errands.waiting

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` on the first thread, between two steps, and wait for what it returns.

        Raises:
            BaseException: what `work` raised, or what ended the thread.
        """
        with self.changed:
            self._start(1)
        return self._errands.ask(work)

    def serve(self, runners: Seq[Runner]) -> None:
        """Make the steps of `runners`, the contexts of an engine, from now on: each on a thread of its own."""
        with self.changed:
            self._start(len(runners))
            for lane, runner in zip(self._lanes, runners, strict=False):
                lane.runners.append(runner)
            self.changed.notify_all()

    def withdraw(self, runners: Seq[Runner]) -> None:
        """Serve `runners` no more. Returns when their steps are done."""
        with self.changed:
            for lane in self._lanes:
                lane.runners = [runner for runner in lane.runners if runner not in runners]
            self.changed.wait_for(lambda: not any(lane.current in runners for lane in self._lanes))
        for runner in runners:
            runner.ended()

    def serves(self, runner: Runner) -> bool:
        """Whether a thread that runs serves `runner`."""
        return any(runner in lane.runners and lane.thread and lane.thread.is_alive() for lane in self._lanes)

    def close(self) -> None:
        """End the threads after what they do."""
        with self.changed:
            self._closing = True
            self.changed.notify_all()
        for lane in self._lanes:
            if lane.thread is not None:
                lane.thread.join()

    def _start(self, count: int) -> None:
        for number in range(len(self._lanes), count):
            lane = _Lane(number)
            lane.thread = threading.Thread(target=self._run, args=(lane,), name=f"engine-{number}")
            self._lanes.append(lane)
            lane.thread.start()

    def _run(self, lane: _Lane) -> None:
        try:
            while self._wait_for_work(lane):
                if lane.number == 0:
                    self._errands.do_next()
                if lane.current is not None:
                    lane.current.step()
        except BaseException as error:  # reaches the nodes through Engine.raise_failure
            self._fail(error)
        finally:
            if lane.number == 0:
                self._errands.refuse(self.failure or Closed())
            with self.changed:
                lane.current = None
                self.changed.notify_all()
            for runner in lane.runners:
                runner.ended()

    def _wait_for_work(self, lane: _Lane) -> bool:
        with self.changed:
            while True:
                if lane.current is not None and lane.current not in lane.runners:
                    self.changed.notify_all()  # somebody waits for its last step
                lane.current = None
                for runner in lane.runners:
                    while runner.requests:
                        runner.requests.popleft()()
                if self._closing:
                    return False
                lane.current = lane.next()
                if lane.current is not None or (lane.number == 0 and self._errands.waiting):
                    return True
                for runner in lane.runners:
                    runner.idle()
                self.changed.wait()

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            self.failure = self.failure or error
            self._closing = True
            self.changed.notify_all()
