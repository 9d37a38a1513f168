"""How much faster or slower a run may be than what was measured before it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from operators.estimate.lengths import REPLICATES, Floats
from operators.tuning.machine_load import ticks

_DRIFT = 0.06
"""By how much the speed of a machine differs between two runs of the same: standard deviation of its logarithm."""
_NOISY = 0.15
"""Share of all cores that other work may take without a word of it."""


class Noise:
    """Begins where something is measured.

    Other work on the machine slows down what is measured, and may be there or not when the job runs. So the more of it
    there was, the less is known.
    """

    def __init__(self) -> None:
        self._before = ticks()

    @property
    def others(self) -> float:
        """Share of the cores that other work has taken since then; 0 where the kernel does not tell."""
        now = ticks()
        return 0.0 if now is None or self._before is None else now.others_since(self._before)

    def factors(self, random: np.random.Generator) -> Floats:
        """How many times as long a run may take: float64 [REPLICATES]."""
        found: Floats = random.lognormal(0.0, _DRIFT + self.others, REPLICATES)
        return found

    def notes(self) -> Iterator[str]:
        """A word on it, where there is much."""
        if self.others > _NOISY:
            yield f"other work took {self.others:.0%} of the cores while this was measured"
