"""Worker: one context of an engine and the step loop on it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import Logits
from operators.engine.loop.recovery import Recovery
from operators.engine.loop.step_log import StepLog
from operators.engine.scheduler.scheduler import Scheduler
from operators.engine.scheduler.step_batch import StepBatch
from operators.engine.scheduler.waiting_queue import WaitingQueue
from operators.engine.sequence import Sequence
from operators.engine.strategies.base import Strategy
from operators.settings.runtime import EngineSettings
from pipeline.api.meter import StageMeter, StageState

_NO_LOGITS: Logits = np.empty((0, 0), np.float32)


class Worker:
    """One context: its slots, and the steps that are made on it. `step` is the step loop.

    Args:
        strategy: fills the batch and takes the logits; it is bound to the context.
        queue: where sequences wait.
        settings: of the scheduler.
        meters: of decode and of sample.
        stopping: whether the run is being stopped.

    Attributes:
        scheduler: decides what each step computes.
        log: times and records the steps; made by the Engine.
        on_stop: called when no more steps are made.
    """

    log: StepLog
    on_stop: Callable[[], None]

    def __init__(
        self,
        strategy: Strategy,
        queue: WaitingQueue,
        settings: EngineSettings,
        meters: tuple[StageMeter, StageMeter],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.strategy = strategy
        self.decoder = strategy.decoder
        self.scheduler = Scheduler(self.decoder, queue, settings, strategy.chunking(self.decoder.shape))
        self.meters = meters
        self._recovery = Recovery(self.scheduler, strategy, stopping)

    def step(self) -> None:
        """Make one step of the sequences in the slots: schedule, fill, decode (or recover), sample, log, finish."""
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
        self.log.record(batch, tokens, began)
        _hand_over(self.scheduler.finish(self.log.clock()))

    def start(self) -> None:
        """Start the clocks."""
        for meter in self.meters:
            meter.clock.start(StageState.STARVED)

    def idle(self) -> None:
        """Have the clocks say what the thread waits for: sequences, or nodes downstream of those that wait."""
        for meter in self.meters:
            meter.clock.enter(StageState.BLOCKED if self.scheduler.queue.waiting else StageState.STARVED)

    def stop(self) -> None:
        """Stop the clocks, and have the nodes look why."""
        for meter in self.meters:
            meter.clock.stop()
        self.on_stop()

    def _decode_or_recover(self, batch: StepBatch) -> Logits | None:
        """Return the logits of `batch`. None if the call failed: its sequences have been moved on in smaller calls, or
        refused.

        Raises:
            DecodeFailed: it failed, and no sequence is to blame.
        """
        if not batch.needs_call:
            return _NO_LOGITS
        try:
            logits = batch.decode(self.decoder)
        except DecodeFailed as failure:
            self._recovery.recover(batch, failure)
            return None
        self._recovery.succeeded()
        return logits


def _hand_over(rows: list[Sequence]) -> None:
    """Give sequences that have ended to those who submitted them."""
    owners = dict.fromkeys(row.owner for row in rows)
    for row in rows:
        if row.owner is not None:
            row.owner.finish(row)
    for owner in owners:
        if owner is not None:
            owner.wake()
