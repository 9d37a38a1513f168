"""StepLoop: the steps on the context of an engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import Logits
from operators.engine.loop.recovery import Recovery
from operators.engine.loop.step_log import StepLog
from operators.engine.scheduler.scheduler import Scheduler
from operators.engine.scheduler.step_batch import StepBatch
from operators.engine.strategies.base import Strategy
from operators.settings.runtime import EngineSettings
from pipeline.api.meter import StageState

_NO_LOGITS: Logits = np.empty((0, 0), np.float32)


class StepLoop:
    """A context: its slots, and the steps on it.

    Args:
        strategy: of the context.
        log: times and records the steps.
        stopping: returns whether the run is being stopped.
    """

    def __init__(
        self, strategy: Strategy, settings: EngineSettings, log: StepLog, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self.strategy = strategy
        self.log = log
        self.decoder = strategy.decoder
        self.scheduler = Scheduler(self.decoder, settings, strategy.chunking)
        self._stopping = stopping
        self._recovery = Recovery(self.scheduler, strategy, stopping)

    def step(self) -> None:
        """Run one step for the rows in the slots: schedule, encode images, draft, fill, decode (or
        recover), sample, log, finish."""
        began = self.log.clock()
        with self.log.timed("form"):
            batch = self.scheduler.schedule(began)
            if batch is None:
                return
        if batch.has_images:
            with self.log.timed("encode"):
                batch.encode_images(self.scheduler.slots.rows(), self.log.clock, self._stopping)
        if self.strategy.drafts:
            with self.log.timed("draft"):
                self.strategy.draft(batch)
        with self.log.timed("fill"):
            self.strategy.fill(batch)
            tokens = self.decoder.batch.n_tokens
        with self.log.timed("decode"):
            logits = self._decode_or_recover(batch)
        with self.log.timed("sample"):
            if logits is not None:
                self.strategy.advance(batch, logits)
        self.log.record(batch, tokens, began, self.scheduler)
        self.scheduler.finish(self.log.clock())

    def start(self) -> None:
        for meter in self.log.meters:
            meter.clock.start(StageState.STARVED)

    def idle(self) -> None:
        """Set the meters to waiting: for sequences, or for nodes downstream of the waiting ones."""
        for meter in self.log.meters:
            meter.clock.enter(StageState.BLOCKED if self.scheduler.queue.waiting else StageState.STARVED)

    def stop(self) -> None:
        """Stop the meters, and wake the nodes, which find out why the steps have stopped."""
        for meter in self.log.meters:
            meter.clock.stop()
        for node in self.scheduler.queue.nodes:
            node.wake()

    def _decode_or_recover(self, batch: StepBatch) -> Logits | None:
        """Return the logits of `batch`; None if the call failed and its sequences were computed in smaller calls or
        rejected."""
        if not (batch.decoding or batch.chunks):
            return _NO_LOGITS
        try:
            logits = self.strategy.decode(batch)
        except DecodeFailed as failure:
            self._recovery.recover(batch, failure)
            return None
        self._recovery.succeeded()
        return logits
