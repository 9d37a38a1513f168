"""Reducing: has a device leave the likeliest words of each row's logits where they say what all rows of a call draw.

To change between the two llama.cpp plans its calls anew, which costs as much as some steps. So after a call that needed
all logits the next ones have them, too, until as many in a row as PATIENCE would not have needed them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import Decoder, Logits
from operators.engine.backend.keys import is_reduced
from operators.engine.sampling.reduced import suffice
from operators.engine.scheduler.step_batch import StepBatch
from pipeline.api.numbers import counted

PATIENCE = 16
_Lines = Callable[[StepBatch, Logits], tuple[Logits, Logits]]


@dataclass
class ReducedCalls:
    """Calls of an engine whose device may reduce logits."""

    calls_reduced: int = counted("calls whose logits the device has reduced to the likeliest words", "calls")
    calls_repeated: int = counted("calls made again with all logits, since words were equally likely", "calls")


class Reducing:
    """Decides it for the calls of `decoder`, which can truncate its rows.

    Attributes:
        counts: of its calls.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._unneeded = PATIENCE
        self.counts = ReducedCalls()

    def decode(self, batch: StepBatch, fill: Callable[[StepBatch], None], lines: _Lines) -> Logits:
        """Compute the filled `batch`; return its logits, or the keys of candidates that suffice for its rows.

        Args:
            fill: fills the batch, again where the call is made again.
            lines: returns the parts of the logits that are of the rows that decode, and of those whose prompts end.
        """
        rows = [*batch.decoding, *batch.completing]
        self._unneeded = 0 if any(row.params.needs_all for row in rows) else self._unneeded + 1
        self._decoder.reduces = self._unneeded > PATIENCE
        try:
            logits = batch.decode(self._decoder)
        except DecodeFailed:  # its parts, and a trial of the backend, are computed without what may be the cause
            self._unneeded, self._decoder.reduces = 0, False
            raise
        if not (self._decoder.reduces and rows):
            return logits
        self.counts.calls_reduced += 1
        keys = np.concatenate(lines(batch, logits))
        if is_reduced(keys) and suffice(keys, rows):
            return logits
        self._unneeded = 0
        self._decoder.reduces = False
        self.counts.calls_repeated += 1
        batch.uncount(self._decoder)
        fill(batch)
        return batch.decode(self._decoder)
