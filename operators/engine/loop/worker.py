"""Worker: one context of an engine and the step loop on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import Decoder, Logits
from operators.engine.loop.recovery import Recovery
from operators.engine.loop.step_log import StepLog
from operators.engine.scheduler.scheduler import Scheduler
from operators.engine.scheduler.step_batch import StepBatch
from operators.engine.sequence import Sequence
from operators.engine.strategies.base import Strategy
from pipeline.api.meter import StageMeter, StageState

_NO_LOGITS: Logits = np.empty((0, 0), np.float32)


class Worker:
    """One context: its slots, and the steps that are made on it. `step` is the step loop.

    Args:
        decoder: the context.
        scheduler: decides what each step computes.
        strategy: fills the batch and takes the logits.
        meters: of decode and of sample.
        stopping: whether the run is being stopped.

    Attributes:
        jobs: what is to be done between two steps, on the thread that makes them.
        log: times and records the steps; made by the Engine.
        on_stop: called when no more steps are made.
    """

    log: StepLog
    on_stop: Callable[[], None]

    def __init__(
        self,
        decoder: Decoder,
        scheduler: Scheduler,
        strategy: Strategy,
        meters: tuple[StageMeter, StageMeter],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.decoder = decoder
        self.scheduler = scheduler
        self.strategy = strategy
        self.meters = meters
        self.jobs: deque[Callable[[], None]] = deque()
        self._recovery = Recovery(decoder, scheduler, strategy, stopping)

    def step(self) -> None:
        """Make one step of the rows in the slots: schedule, fill, decode (or recover), sample, finish, log."""
        began = self.log.clock()
        with self.log.timed("form"):
            batch = self.scheduler.schedule(began)
            if batch is None:
                return
            self.strategy.fill(batch)
            tokens = self.decoder.batch.n_tokens
        with self.log.timed("decode"):
            logits = self._decode_or_recover(batch)
        with self.log.timed("sample"):
            if logits is not None:
                self.strategy.advance(batch, logits)
                self.scheduler.computed(batch)
        ended = self.scheduler.finish(self.log.clock())
        self.log.record(batch, tokens, began)
        _hand_over(ended)

    @property
    def runnable(self) -> bool:
        """Whether rows are in slots, or may be."""
        return self.scheduler.runnable

    def rank(self) -> tuple[float, int]:
        """How full of rows the next step is, 0 to 1, and the depth of the furthest of them in the graph."""
        return self.scheduler.fullness, self.scheduler.depth

    def start(self) -> None:
        """Start the clocks."""
        for meter in self.meters:
            meter.clock.start(StageState.STARVED)

    def idle(self) -> None:
        """Have the clocks say what the thread waits for: rows, or those downstream of rows that wait."""
        for meter in self.meters:
            meter.clock.enter(StageState.BLOCKED if self.scheduler.queue.waiting else StageState.STARVED)

    def stop(self) -> None:
        """Stop the clocks, and have the nodes look why."""
        for meter in self.meters:
            meter.clock.stop()
        self.on_stop()

    def _decode_or_recover(self, batch: StepBatch) -> Logits | None:
        """The logits of `batch`. None if the call failed: its rows have been moved on in smaller calls, or refused.

        Raises:
            DecodeFailed: it failed, and that is no row's fault.
        """
        if not batch.needs_call:
            return _NO_LOGITS
        try:
            logits = self.decoder.decode()
        except DecodeFailed as failure:
            self._recovery.make_up(batch, failure)
            return None
        self._recovery.succeeded()
        return logits


def _hand_over(rows: list[Sequence]) -> None:
    """Give rows that have ended to those who submitted them."""
    owners = dict.fromkeys(row.owner for row in rows)
    for row in rows:
        if row.owner is not None:
            row.owner.finished(row)
    for owner in owners:
        if owner is not None:
            owner.wake()
