"""The state that the sampler keeps of a row.

Its random numbers depend on its seed, the step and the draw alone: not on slot, neighbours, order or restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from operators.engine.backend.interface import TokenIds
from operators.engine.sampling.constraint import Constraint, Costs, Matcher

if TYPE_CHECKING:
    from operators.engine.sampling.logprobs import Scored
    from operators.engine.sampling.params import SamplingParams

BLOCK = 64
"""Steps drawn at once; a multiple of the 4 words that one Philox counter gives."""
DRAW, XTC, AGAIN = range(3)
"""The draws of a step: its token, whether XTC acts, and the token again if the first does not fit the constraint."""
_WORDS_PER_COUNT = 4
_SEED_BITS = 64


class Uniforms:
    """Uniform float64 in [0, 1): one for each draw of each step of a row.

    Counter-based (Philox 4x64, Salmon et al. 2011). The key is the seed, 64 bits, and in its upper half the number of
    the draw; the number of step t is word t of the key's stream. So a row that is continued later draws the same, and a
    step that draws more often changes nothing for the others.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._blocks: dict[int, tuple[int, list[float]]] = {}

    def at(self, step: int, draw: int = DRAW) -> float:
        """Return the number for a `draw` of `step`; step 0 is the first token."""
        block, index = divmod(step, BLOCK)
        cached = self._blocks.get(draw)
        if cached is None or cached[0] != block:
            cached = self._blocks[draw] = (block, self._block(block, draw))
        return cached[1][index]

    def _block(self, block: int, draw: int) -> list[float]:
        counter = block * (BLOCK // _WORDS_PER_COUNT)
        bits = np.random.Philox(key=self._seed | draw << _SEED_BITS, counter=counter)
        values: list[float] = np.random.Generator(bits).random(BLOCK).tolist()
        return values


class SampledRow(Protocol):
    """The fields of a sequence that the sampler reads; it writes `error` and `sampling`."""

    prompt: TokenIds
    params: SamplingParams
    tokens: list[int]
    sampling: SamplingState
    error: str | None


@dataclass(slots=True, eq=False)
class SamplingState:
    """State of one row that the sampler keeps from token to token.

    Attributes:
        scored: log-probabilities of the token that was drawn last, if the parameters ask for logprobs.
        scores: those of each token.
        mirostat_mu: the surprise up to which candidates are kept; None before the first token.
    """

    seed: int
    constraint: Constraint | None = None
    scored: Scored | None = field(default=None, init=False)
    scores: list[Scored] = field(default_factory=list, init=False)
    mirostat_mu: float | None = field(default=None, init=False)
    _matcher: Matcher | None = field(default=None, init=False)
    _uniforms: Uniforms | None = field(default=None, init=False)

    @property
    def uniforms(self) -> Uniforms:
        if self._uniforms is None:
            self._uniforms = Uniforms(self.seed)
        return self._uniforms

    @property
    def matcher(self) -> Matcher | None:
        """The state of its constraint; None if it has no constraint."""
        if self._matcher is None and self.constraint is not None:
            self._matcher = self.constraint.matcher()
        return self._matcher

    @property
    def costs(self) -> Costs:
        return Costs() if self._matcher is None else self._matcher.costs


def no_token(row: SampledRow) -> str:
    """Return the reason why a row with a constraint cannot go on."""
    matcher = row.sampling.matcher
    if matcher is not None and matcher.error is not None:
        return f"its constraint cannot go on: {matcher.error}"
    return f"at step {len(row.tokens)} every token that its constraint allows is impossible or forbidden otherwise"
