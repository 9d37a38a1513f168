"""Recovery from failed decode calls: reject the row that causes the failure, and continue the others unaffected.

First the tokens that the call may have left in the KV cache are truncated. Then it is repeated in halves, and halves of
these, until a single row fails on its own, which is rejected. If rows share the KV cache and it is full, the youngest
one is preempted instead. If the backend cannot even compute two arbitrary tokens, it is broken and no row is to blame:
the run ends, and can be resumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from operators.engine.backend.batch import DecodeFailed
from operators.engine.scheduler.scheduler import Scheduler
from operators.engine.scheduler.step_batch import StepBatch
from operators.engine.sequence.placement import Slot
from operators.engine.strategies.base import Strategy

NO_ROOM, ABORTED = 1, 2
MOST_FUTILE = 8
"""The run ends after more consecutive failures without progress than this and than there are slots."""
log = logging.getLogger("pipeline.decode")


class Recovery:
    """Repeats failed calls in smaller parts, on one decoder; aborted ones not if the run is `stopping`."""

    def __init__(self, scheduler: Scheduler, strategy: Strategy, stopping: Callable[[], bool]) -> None:
        self._decoder = strategy.decoder
        self._scheduler = scheduler
        self._strategy = strategy
        self._stopping = stopping
        self._futile = 0

    def recover(self, batch: StepBatch, failure: DecodeFailed) -> None:
        """Compute the rows of the failed `batch` in smaller calls, or reject them. Raises DecodeFailed if the run is
        being stopped, the backend cannot truncate the remains of the call, or it fails for any input."""
        log.warning("a call with %d rows failed (%s); it is made again in parts", len(batch.sequences), failure)
        self._undo(batch, failure)
        if failure.code == NO_ROOM and self._scheduler.shrink_budget():
            self._count_futile(failure)
            return
        for part in self._scheduler.halves(batch) or [self._scheduler.batch(batch.decoding, batch.chunks)]:
            self._attempt(part)

    def succeeded(self) -> None:
        """Note that a call has succeeded."""
        self._futile = 0

    def _attempt(self, batch: StepBatch) -> None:
        self._strategy.fill(batch)
        try:
            logits = self._strategy.decode(batch)
        except DecodeFailed as failure:
            self._undo(batch, failure)
            parts = self._scheduler.halves(batch)
            if not parts:
                self._judge(batch, failure)
            for part in parts:
                self._attempt(part)
        else:
            self.succeeded()
            self._strategy.advance(batch, logits)

    def _undo(self, batch: StepBatch, failure: DecodeFailed) -> None:
        if not self._decoder.partial or (failure.code == ABORTED and self._stopping()):
            raise failure
        batch.undo()
        self._scheduler.counts.failed_calls += 1

    def _judge(self, batch: StepBatch, failure: DecodeFailed) -> None:
        """Reject the only row of the failed `batch`; unless the dummy token in another row's slot may be the cause, or
        the backend is broken."""
        self._count_futile(failure)
        row = batch.sequences[0]
        if self._works(StepBatch(batch.decoding, batch.chunks)):
            return  # a later step computes it, when the other row is gone
        if not self._backend_works(row.slot):
            raise failure
        row.error = f"the model cannot compute this row, not even alone: {failure}"

    def _works(self, batch: StepBatch) -> bool:
        """Return True if `batch` can be computed. Discards the result: a row computed alone may have other bits."""
        self._strategy.fill(batch)
        try:
            self._decoder.decode()
        except DecodeFailed as failure:
            self._undo(batch, failure)
            return False
        batch.undo()
        return True

    def _backend_works(self, slot: Slot) -> bool:
        """Return True if two arbitrary tokens can be computed in the empty `slot`."""
        slot.truncate(0)
        self._decoder.batch.clear()
        self._decoder.batch.add_spans([np.zeros(2, np.int32)], [0], [slot.index], [2])
        try:
            self._decoder.decode()
        except DecodeFailed:
            return False
        finally:
            slot.truncate(0)
        return True

    def _count_futile(self, failure: DecodeFailed) -> None:
        self._futile += 1
        if self._futile > max(MOST_FUTILE, self._scheduler.slots.size):
            raise failure
