"""Time decoder calls: prompts, and decode steps of rows at one depth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from operators.engine.backend.interface import Decoder
from pipeline.api.meter import Clock

LONGEST_CALL_S = 1.5
"""A call that takes longer is neither repeated nor enlarged."""


class StepTimer:
    """Times decode steps.

    Args:
        decoder: its contents are cleared.
        depth: tokens of each row before its step.
        clock: seconds.
    """

    def __init__(self, decoder: Decoder, depth: int, clock: Clock) -> None:
        self._decoder, self._depth, self._clock = decoder, depth, clock
        read(decoder, depth)
        self._saved = decoder.save(0)
        self._filled = 1

    def step_s(self, rows: int) -> float:
        """Return the seconds of a step of `rows` rows."""
        for slot in range(self._filled, rows):
            self._decoder.restore(slot, self._saved)
        self._filled = max(self._filled, rows)
        return faster_of_two(lambda: self._step(rows), self._clock, lambda: self._rewind(rows))

    def _step(self, rows: int) -> None:
        self._decoder.batch.clear()
        self._decoder.batch.add_rows([1] * rows, [self._depth] * rows, list(range(rows)))
        self._decoder.decode()

    def _rewind(self, rows: int) -> None:
        for slot in range(rows):
            self._decoder.truncate(slot, self._depth if self._decoder.partial else 0)
            if not self._decoder.partial:
                self._decoder.restore(slot, self._saved)


def read(decoder: Decoder, count: int) -> None:
    """Fill slot 0 with `count` tokens, and clear all others."""
    decoder.clear()
    piece = min(decoder.shape.n_batch, decoder.shape.n_ubatch)
    for first in range(0, count, piece):
        ids = np.arange(first, min(first + piece, count), dtype=np.int32) % 100
        decoder.batch.clear()
        decoder.batch.add_spans([ids], [first], [0], [min(2, len(ids))])
        decoder.decode()


def faster_of_two(call: Callable[[], None], clock: Clock, undo: Callable[[], None] = lambda: None) -> float:
    """Return the seconds of the faster of two calls, each undone afterwards: the first may touch memory for the first
    time."""
    seconds = []
    for _ in range(2):
        began = clock()
        call()
        seconds.append(clock() - began)
        undo()
        if seconds[-1] > LONGEST_CALL_S:
            break
    return min(seconds)
