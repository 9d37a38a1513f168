"""SamplingParams: how the tokens of a row are drawn, in token ids and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

from operators.engine.sampling.chain import Chain, chain_of
from operators.engine.sampling.constraint import Constraint
from operators.engine.sampling.dry import Breakers
from operators.engine.sampling.logit_edits import Bias
from operators.settings.sampling import STEP_ORDER


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of a row are drawn; shared by all rows that have the same. docs/sampling.md says what each does.

    Args:
        max_tokens: completion tokens at most. A row may have room for less, so it is no part of `identity`.
        stop_ids: tokens that end a completion.
        kept_stop_ids: those of them that become part of it.
        min_tokens: as long as there are fewer, none of `end_ids` comes.
        end_ids: the end-of-generation tokens and `stop_token_ids`.
        logit_bias: pairs of token id and what is added to its logit.
        bad_words: sequences of token ids: the last one never comes where the others stand before it.
        penalty_last_n, dry_penalty_last_n: tokens that are looked back on; None for all.
        logprobs: how many of the likeliest tokens to record with each token; None records nothing.
        order: names of steps.
        constraint: what the text has to be.
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
        """Whether the seed does not matter."""
        return not self.chain.random

    @property
    def skips_forced(self) -> bool:
        """Whether tokens that its constraint leaves no choice about are not drawn. With logprobs they are: these come
        from the logits of each token."""
        return self.constraint is not None and self.constraint.skip_forced and self.logprobs is None

    @cached_property
    def bias(self) -> Bias | None:
        """`logit_bias` and the bad words of one token, as a change."""
        biases: dict[int, float] = {}
        for token, bias in self.logit_bias:
            biases[token] = biases.get(token, 0.0) + bias
        biases |= {word[0]: -np.inf for word in self.bad_words if len(word) == 1}
        ids = sorted(biases)
        return Bias(np.array(ids, np.int64), np.array([biases[i] for i in ids], np.float32)) if ids else None

    @cached_property
    def long_bad_words(self) -> tuple[tuple[int, ...], ...]:
        """The bad words of two or more tokens."""
        return tuple(word for word in self.bad_words if len(word) > 1)

    @cached_property
    def identity(self) -> str:
        """Every value that can change a completion, but for max_tokens. What has no effect is left out."""
        edits = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name in ("logit_bias", "bad_words")]
        least = (self.min_tokens, sorted(self.end_ids)) if self.min_tokens else None
        stops = (sorted(self.stop_ids), sorted(self.kept_stop_ids))
        parts = (stops, least, edits, self.chain, self.logprobs)
        return repr(parts if self.constraint is None else (*parts, self.constraint.identity))
