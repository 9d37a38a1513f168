"""SamplingParams: the settings of the sampler, in token ids and numbers; Chain: the steps that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from operators.engine.sampling.candidates import Few
from operators.engine.sampling.constraint import Constraint
from operators.engine.sampling.logit_edits import Change
from operators.engine.sampling.penalties import Breakers, Dry, HistoryStep, Penalties
from operators.engine.sampling.row_state import SampledRow
from operators.engine.sampling.temperature import DynamicTemperature, Mirostat, Temperature
from operators.engine.sampling.truncation import MinP, TopK, TopNSigma, TopP, TypicalP, Xtc
from operators.engine.sampling.whole_vocabulary import Full
from operators.settings.sampling import STEP_ORDER

MOST_TOP_K = 100
"""Largest top-k of a row that draws from CANDIDATES words: the others are for those that its bans and penalties
drop."""


class ChainStep(Protocol):
    """A step of the chain: changes logits or drops candidates. Both forms leave the same candidates with the same
    logits. Its `repr` names it and everything that it does: content keys are made of it."""

    def few(self, few: Few, rows: Sequence[SampledRow]) -> None:
        """Change the few candidates that are left of `rows`, in that order."""

    def full(self, full: Full, row: SampledRow) -> None:
        """Change the candidates of `row`, which may be the whole vocabulary."""


@dataclass(frozen=True)
class Chain:
    """The steps of a row, without those that do nothing.

    Args:
        edits: the penalties that lead the chain: they change the logits of a few tokens.
        steps: the others.
        greedy: take the likeliest token after the edits; then there are no steps.
    """

    edits: tuple[HistoryStep, ...]
    steps: tuple[ChainStep, ...]
    greedy: bool = False

    @property
    def top_k(self) -> int:
        """The k of a top-k that comes first; else 0."""
        first = self.steps[0] if self.steps else None
        return first.k if isinstance(first, TopK) else 0

    @property
    def random(self) -> bool:
        """True if the seed can change a token."""
        cold = any(isinstance(step, Temperature) and step.t == 0 for step in self.steps)
        return not self.greedy and (not cold or any(isinstance(step, Xtc) for step in self.steps))


@dataclass(frozen=True)
class SamplingParams:
    """Settings that decide how tokens are drawn; rows with equal settings share one. docs/sampling.md explains each.

    Args:
        max_tokens: most tokens of a completion. A row may have room for less, so it is no part of `identity`.
        stop_ids: tokens that end a completion.
        kept_stop_ids: those of them that become part of it.
        min_tokens: none of `end_ids` is drawn while there are fewer tokens.
        end_ids: the end-of-generation tokens and `stop_token_ids`.
        logit_bias: pairs of a token id and the number that is added to its logit.
        bad_words: sequences of token ids; the last of a sequence is never drawn right after the others.
        penalty_last_n, dry_penalty_last_n: tokens of the window; None for all.
        logprobs: number of likeliest tokens to record with each token; None records nothing.
        order: names of the steps.
        constraint: that the text must satisfy.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 256
    stop_ids: frozenset[int] = frozenset()
    kept_stop_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    end_ids: frozenset[int] = frozenset()
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int | None = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int | None = 64
    dry_breakers: Breakers = field(default_factory=Breakers)
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    order: tuple[str, ...] = STEP_ORDER
    constraint: Constraint | None = None

    @cached_property
    def chain(self) -> Chain:
        """The steps that act."""
        return chain_of(self)

    @cached_property
    def greedy(self) -> bool:
        """True if no seed changes a token."""
        return not self.chain.random

    @cached_property
    def plain(self) -> bool:
        """True if each token is the likeliest by the model's logits, whatever came before, and nothing else is asked
        of it."""
        edited = self.chain.edits or self.bias is not None or self.min_tokens or self.long_bad_words
        return self.chain.greedy and not edited and self.logprobs is None and self.constraint is None

    @cached_property
    def needs_all(self) -> str | None:
        """The key for which a token cannot be drawn from the CANDIDATES likeliest words alone, and why; None: it can,
        but for words that are equally likely."""
        raised = "raises words that are not among them"
        penalties = [edit for edit in self.chain.edits if isinstance(edit, Penalties)]
        reasons = {
            "sampling.structured, tools or thinking_budget may allow none of them": self.constraint is not None,
            f"sampling.logprobs={self.logprobs} is of all words": self.logprobs is not None,
            f"sampling.mirostat={self.mirostat} looks at all words": bool(self.mirostat),
            f"sampling.logit_bias {raised}": any(bias > 0 for _, bias in self.logit_bias),
            f"a penalty {raised}": any(p.repetition < 1 or min(p.presence, p.frequency) < 0 for p in penalties),
            f"sampling.top_k={self.top_k} is more than {MOST_TOP_K}": self.top_k > MOST_TOP_K and not self.chain.greedy,
            "without sampling.top_k as the first step that cuts, any word may be drawn": not (
                self.chain.greedy or self.chain.top_k
            ),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    @property
    def skips_forced(self) -> bool:
        """True if tokens that the constraint forces are not drawn. With logprobs they are drawn: these need the logits
        of each token."""
        return self.constraint is not None and self.constraint.skip_forced and self.logprobs is None

    @cached_property
    def bias(self) -> Change | None:
        """The change that `logit_bias` and the bad words of one token make."""
        biases: dict[int, float] = {}
        for token, bias in self.logit_bias:
            biases[token] = biases.get(token, 0.0) + bias
        biases |= {word[0]: -np.inf for word in self.bad_words if len(word) == 1}
        ids = sorted(biases)
        return Change(np.array(ids, np.int64), np.array([biases[i] for i in ids], np.float32)) if ids else None

    @cached_property
    def forbidden(self) -> frozenset[int]:
        """The tokens that `bias` forbids at every step."""
        return frozenset() if self.bias is None else frozenset(self.bias.ids[np.isneginf(self.bias.biases)].tolist())

    @cached_property
    def long_bad_words(self) -> tuple[tuple[int, ...], ...]:
        """The bad words of two or more tokens."""
        return tuple(word for word in self.bad_words if len(word) > 1)

    @cached_property
    def identity(self) -> str:
        """Every value that can change a completion, except max_tokens. Values without effect are left out, and a new
        one is part only where it is given: this text is in the key of every stored completion."""
        edits = [("logit_bias", self.logit_bias), ("bad_words", self.bad_words)]
        least = (self.min_tokens, sorted(self.end_ids)) if self.min_tokens else None
        stops = (sorted(self.stop_ids), sorted(self.kept_stop_ids))
        parts = (stops, least, edits, self.chain, self.logprobs)
        return repr(parts if self.constraint is None else (*parts, self.constraint.identity))


def chain_of(params: SamplingParams) -> Chain:
    """Make the steps that `params` ask for, in order. Mirostat replaces all but the temperature, as in llama.cpp."""
    if params.mirostat:
        return Chain((), (Temperature(params.temperature), Mirostat(params.mirostat_tau, params.mirostat_eta)))
    active = [step for name in params.order if (step := STEPS[name](params)) is not None]
    leading = next((n for n, step in enumerate(active) if not isinstance(step, HistoryStep)), len(active))
    edits = tuple(step for step in active[:leading] if isinstance(step, HistoryStep))
    steps = active[leading:]
    # All other steps only cut by falling probability, which keeps the likeliest.
    if params.temperature == 0 and not any(isinstance(step, TypicalP | Xtc | HistoryStep) for step in steps):
        return Chain(edits, (), greedy=True)
    return Chain(edits, tuple(_with_floors(steps)))


def _with_floors(steps: list[ChainStep]) -> list[ChainStep]:
    """Turn a min-p right after a top-p into its floor."""
    joined: list[ChainStep] = []
    for step in steps:
        if isinstance(step, MinP) and joined and isinstance(joined[-1], TopP) and not joined[-1].floor:
            joined[-1] = TopP(joined[-1].p, step.p)
        else:
            joined.append(step)
    return joined


def _temperature(p: SamplingParams) -> ChainStep | None:
    if p.dynatemp_range > 0 and p.temperature > 0:
        return DynamicTemperature(p.temperature, p.dynatemp_range, p.dynatemp_exponent)
    return Temperature(p.temperature) if p.temperature != 1 else None


def _penalties(p: SamplingParams) -> ChainStep | None:
    values = (p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
    return None if p.penalty_last_n == 0 or values == (1, 0, 0) else Penalties(p.penalty_last_n, *values)


def _dry(p: SamplingParams) -> ChainStep | None:
    if p.dry_multiplier == 0 or p.dry_penalty_last_n == 0:
        return None
    return Dry(p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n, p.dry_breakers)


def _xtc(p: SamplingParams) -> ChainStep | None:
    works = p.xtc_probability > 0 and p.xtc_threshold <= 0.5
    return Xtc(p.xtc_probability, p.xtc_threshold) if works else None


STEPS: dict[str, Callable[[SamplingParams], ChainStep | None]] = {
    "penalties": _penalties,
    "dry": _dry,
    "top_n_sigma": lambda p: TopNSigma(p.top_n_sigma) if p.top_n_sigma > 0 else None,
    "top_k": lambda p: TopK(p.top_k) if p.top_k > 0 else None,
    "typical_p": lambda p: TypicalP(p.typical_p) if p.typical_p < 1 else None,
    "top_p": lambda p: TopP(p.top_p) if p.top_p < 1 else None,
    "min_p": lambda p: MinP(p.min_p) if p.min_p > 0 else None,
    "xtc": _xtc,
    "temperature": _temperature,
}
"""The steps that `sampling.order` can name."""
