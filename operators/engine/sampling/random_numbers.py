"""Random numbers by the seed of the row, the step and the draw alone: not by slot, neighbours, order or restart."""

from __future__ import annotations

import numpy as np

BLOCK = 64
"""Steps drawn at once; a multiple of the 4 words that one Philox counter gives."""
DRAW, XTC, AGAIN = range(3)
"""The draws of a step: its token, whether XTC acts, and the token again if the first does not fit the constraint."""
_WORDS_PER_COUNT = 4
_SEED_BITS = 64


class Uniforms:
    """Uniform float64 in [0, 1): one for each draw of each step of a row.

    Counter-based (Philox 4x64, Salmon et al. 2011). The key is the seed and, in its upper half, the number of the draw;
    the number of step t is word t of the key's stream. So a row that is continued later draws the same, and a step
    that draws more often changes nothing for the others.

    Args:
        seed: 0 to 2**64 - 1.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._blocks: dict[int, tuple[int, list[float]]] = {}

    def at(self, step: int, draw: int = DRAW) -> float:
        """Return the number for a `draw` of `step`; step 0 is the first token."""
        block, index = divmod(step, BLOCK)
        known = self._blocks.get(draw)
        if known is None or known[0] != block:
            known = self._blocks[draw] = (block, self._block(block, draw))
        return known[1][index]

    def _block(self, block: int, draw: int) -> list[float]:
        counter = block * (BLOCK // _WORDS_PER_COUNT)
        bits = np.random.Philox(key=self._seed | draw << _SEED_BITS, counter=counter)
        values: list[float] = np.random.Generator(bits).random(BLOCK).tolist()
        return values
