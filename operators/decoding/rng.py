"""Random numbers that depend on the row's seed and on the step alone: not on slot, neighbours, order or restart."""

from __future__ import annotations

import numpy as np

BLOCK = 64
"""Steps drawn at once; a multiple of the 4 words that one Philox counter gives."""
_WORDS_PER_COUNT = 4


class Uniforms:
    """Uniform float64 in [0, 1), one for each step of a row.

    Counter-based (Philox 4x64, Salmon et al. 2011): the number of step t is word t of the key's stream, so a row
    that is continued later draws the same.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._block = -1
        self._values: list[float] = []

    def at(self, step: int) -> float:
        """The number for `step`, 0 for the first token."""
        block, index = divmod(step, BLOCK)
        if block != self._block:
            counter = block * (BLOCK // _WORDS_PER_COUNT)
            generator = np.random.Generator(np.random.Philox(key=self._seed, counter=counter))
            self._values = generator.random(BLOCK).tolist()
            self._block = block
        return self._values[index]
