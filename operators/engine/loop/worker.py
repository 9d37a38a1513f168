"""Worker: one context of an engine, its slots, and the calls that are made on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import Decoder, Logits
from operators.engine.loop.recovery import Recovery
from operators.engine.scheduler.scheduler import Scheduler
from operators.engine.scheduler.step_batch import Call
from operators.engine.strategies.base import Strategy
from pipeline.api.meter import StageMeter, StageState


class Worker:
    """One context: its slots, and the calls that are made on it.

    Args:
        decoder: the context.
        scheduler: who runs.
        strategy: what is computed.
        meters: of decode and of sample.
        stopping: whether the run is being stopped.
    """

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
        self.requests: deque[Callable[[], None]] = deque()
        self._recovery = Recovery(decoder, scheduler, strategy, stopping)

    def start(self) -> None:
        """Start the clocks."""
        for meter in self.meters:
            meter.clock.start(StageState.STARVED)

    def stop(self) -> None:
        """Stop the clocks."""
        for meter in self.meters:
            meter.clock.stop()

    def enter(self, state: StageState) -> None:
        """Say on both clocks what the thread is doing."""
        for meter in self.meters:
            meter.clock.enter(state)

    def decode(self, call: Call) -> Logits | None:
        """The logits of `call`, whose tokens are in the batch. None if it failed: its rows have been moved on already.

        Raises:
            DecodeFailed: it failed, and that is no row's fault.
        """
        try:
            logits = self.decoder.decode()
        except DecodeFailed as failure:
            self._recovery.make_up(call, failure)
            return None
        self._recovery.succeeded()
        return logits
