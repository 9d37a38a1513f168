"""The interface of a step of the chain, and the state that the sampler keeps of a row.

A step changes logits or drops candidates. It has two forms: over a whole vocabulary, one row at a time, and over the
few candidates that are left, several rows at once. Both leave the same candidates with the same logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from operators.engine.sampling.candidates import Few
from operators.engine.sampling.constraint import Constraint, Costs, Matcher
from operators.engine.sampling.logit_edits import Change, find
from operators.engine.sampling.random_numbers import Uniforms
from operators.engine.sampling.whole_vocabulary import Full

if TYPE_CHECKING:
    from operators.engine.backend.interface import TokenIds
    from operators.engine.sampling.logprobs import Scored
    from operators.engine.sampling.params import SamplingParams


class SampledRow(Protocol):
    """The fields of a row that the sampler reads; it writes `error` and `sampling`."""

    prompt: TokenIds
    params: SamplingParams
    tokens: list[int]
    sampling: SamplingState
    error: str | None


@dataclass(slots=True, eq=False)
class SamplingState:
    """State of one row that the sampler keeps from token to token.

    Args:
        seed: of its random numbers; 63 bits.
        constraint: that its text must satisfy.

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
        """Its random numbers."""
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
        """The costs of its constraint."""
        return Costs() if self._matcher is None else self._matcher.costs


class Step(Protocol):
    """A step. Its `repr` names it and everything that it does: content keys are made of it."""

    def few(self, few: Few, rows: Seq[SampledRow]) -> None:
        """Change the candidates of `rows`, in that order."""

    def full(self, full: Full, row: SampledRow) -> None:
        """Change the candidates of `row`."""


class HistoryStep(ABC):
    """A step that changes the logits of some tokens, by the tokens that came before."""

    @abstractmethod
    def change(self, row: SampledRow) -> Change | None:
        """Return the new logits of `row`; None: they stay as they are."""

    def few(self, few: Few, rows: Seq[SampledRow]) -> None:
        for i, row in enumerate(rows):
            if (change := self.change(row)) is not None:
                at, found = find(change.ids, few.ids[i])
                few.logits[i, found] = change.apply(few.logits[i, found], at[found])
        few.sort()

    def full(self, full: Full, row: SampledRow) -> None:
        if (change := self.change(row)) is not None:
            values = full.writable()
            values[change.ids] = change.apply(values[change.ids], slice(None))
