"""SamplingParams: the settings of the sampler, in token ids and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from operators.engine.sampling.chain import Chain, chain_of
from operators.engine.sampling.constraint import Constraint
from operators.engine.sampling.dry import Breakers
from operators.engine.sampling.logit_edits import Change
from operators.settings.sampling import STEP_ORDER


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
    def long_bad_words(self) -> tuple[tuple[int, ...], ...]:
        """The bad words of two or more tokens."""
        return tuple(word for word in self.bad_words if len(word) > 1)

    @cached_property
    def identity(self) -> str:
        """Every value that can change a completion, except max_tokens. Values without effect are left out."""
        edits = [("logit_bias", self.logit_bias), ("bad_words", self.bad_words)]
        least = (self.min_tokens, sorted(self.end_ids)) if self.min_tokens else None
        stops = (sorted(self.stop_ids), sorted(self.kept_stop_ids))
        parts = (stops, least, edits, self.chain, self.logprobs)
        return repr(parts if self.constraint is None else (*parts, self.constraint.identity))
