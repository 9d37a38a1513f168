"""When the backend refuses a call: the guilty row is taken out, and the others go on as if it had not been there.

What the call may have left in the KV cache is cut off, and it is made again in halves, and halves of these, until one
row is alone with its failure. That row becomes a reject. Where rows share the room of the KV cache and there is none
left, the youngest one gives up its slot instead and goes on later. A backend that cannot even compute two tokens of no
meaning is broken, and no row is to blame: then the run ends and can be resumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import Decoder
from operators.engine.scheduler.scheduler import Scheduler
from operators.engine.scheduler.step_batch import StepBatch
from operators.engine.sequence import Sequence
from operators.engine.strategies.base import Strategy

NO_ROOM, ABORTED = 1, 2
MOST_FUTILE = 8
"""So many failures in succession that moved no row on, or as many as there are slots, end the run."""
log = logging.getLogger("pipeline.decode")


class Recovery:
    """Makes up for calls that failed, on one decoder.

    Args:
        decoder, scheduler, strategy: those of the calls.
        stopping: whether the run is being stopped: a call that was aborted is then not made again.
    """

    def __init__(
        self, decoder: Decoder, scheduler: Scheduler, strategy: Strategy, stopping: Callable[[], bool]
    ) -> None:
        self._decoder = decoder
        self._scheduler = scheduler
        self._strategy = strategy
        self._stopping = stopping
        self._futile = 0

    def make_up(self, batch: StepBatch, failure: DecodeFailed) -> None:
        """Have the rows of `batch`, which has failed, moved on in smaller calls, or refused.

        Raises:
            DecodeFailed: the run is being stopped, the backend cannot forget what the call left, or fails for whatever
                it is given.
        """
        log.warning("a call with %d rows failed (%s); it is made again in parts", len(batch.sequences), failure)
        self._undo(batch, failure)
        if failure.code == NO_ROOM and self._scheduler.make_room():
            self._count_futile(failure)
            return
        for part in self._parts(batch) or [batch]:
            self._attempt(part)

    def succeeded(self) -> None:
        """A call has succeeded."""
        self._futile = 0

    def _attempt(self, batch: StepBatch) -> None:
        self._strategy.fill(batch)
        try:
            logits = self._decoder.decode()
        except DecodeFailed as failure:
            self._undo(batch, failure)
            parts = self._parts(batch)
            if not parts:
                self._judge(batch, failure)
            for part in parts:
                self._attempt(part)
        else:
            self.succeeded()
            self._strategy.advance(batch, logits)
            self._scheduler.computed(batch)

    def _parts(self, batch: StepBatch) -> list[StepBatch]:
        return self._scheduler.halves(batch) if len(batch.sequences) > 1 else []

    def _undo(self, batch: StepBatch, failure: DecodeFailed) -> None:
        if not self._decoder.partial or (failure.code == ABORTED and self._stopping()):
            raise failure
        self._scheduler.failed(batch)

    def _judge(self, batch: StepBatch, failure: DecodeFailed) -> None:
        """`batch`, with one row, has failed. That may have passed; or the dummy token is to blame, since it
        stands in the slot of another one; or the backend is broken."""
        self._count_futile(failure)
        row = batch.sequences[0]
        if self._works(StepBatch(batch.decoding, batch.chunks)):
            return  # an ordinary step computes it, once the other row is gone
        if not self._backend_works(row):
            raise failure
        row.error = f"the model cannot compute this row, not even alone: {failure}"

    def _works(self, batch: StepBatch) -> bool:
        """Whether `batch` can be computed. Discard the result: a lone row may have different bits beside others."""
        self._strategy.fill(batch)
        try:
            self._decoder.decode()
        except DecodeFailed as failure:
            self._undo(batch, failure)
            return False
        self._scheduler.forget(batch)
        return True

    def _backend_works(self, row: Sequence) -> bool:
        """Whether two tokens of no meaning can be computed in the slot of `row`, which has nothing there any more."""
        self._decoder.truncate(row.slot, 0)
        row.n_past = 0
        self._decoder.batch.clear()
        self._decoder.batch.add_spans([np.zeros(2, np.int32)], [0], [row.slot], [2])
        try:
            self._decoder.decode()
        except DecodeFailed:
            return False
        finally:
            self._decoder.truncate(row.slot, 0)
        return True

    def _count_futile(self, failure: DecodeFailed) -> None:
        self._futile += 1
        if self._futile > max(MOST_FUTILE, self._scheduler.slots.size):
            raise failure
