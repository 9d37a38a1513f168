"""Constraints for a model: its vocabulary as llguidance needs it, each constraint compiled once, a matcher a row."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from operators.constraints.grammars import MOST_KEPT, Form
from operators.engine.backend.interface import Model
from operators.engine.sampling.constraint import Costs
from pipeline.api.errors import ConfigError


class Compiler:
    """Compiles constraints for `model`. Reading its vocabulary takes a second at 150,000 words, and is done once.

    Raises:
        ConfigError: the model has no end-of-generation token.
    """

    def __init__(self, model: Model) -> None:
        if not model.end_ids:
            raise ConfigError("sampling.structured needs a model with an end-of-generation token; this one has none")
        ends = sorted(model.end_ids)
        tokenizer = LLTokenizer(TokenizerWrapper(_Vocabulary(model, ends)), eos_token=ends)
        self._compile = functools.lru_cache(MOST_KEPT)(functools.partial(LlgConstraint, tokenizer, model.n_vocab))

    def constraint(self, form: Form, *, skip_forced: bool) -> LlgConstraint:
        """Return the constraint of this form, compiled or from the cache; a ConfigError if it is too complex."""
        return self._compile(form, skip_forced=skip_forced)


class _Vocabulary:
    """The tokenizer interface of llguidance.

    The bytes of a token are those that it adds to a completion: a control token adds none, and never fits.
    """

    bos_token_id = None

    def __init__(self, model: Model, ends: Sequence[int]) -> None:
        self.eos_token_id = ends[0]
        self.special_token_ids = list(ends)
        self.tokens = list(model.pieces())
        self._model = model

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokenize a text; llguidance asks for the usual tokens of forced bytes, and allows no others. In the name of a
        control token these are ordinary ones: the token itself adds no bytes."""
        data = text.encode() if isinstance(text, str) else text
        ids: list[int] = self._model.tokenize([data], special=False)[0].tolist()
        return ids[1:] if self._model.add_bos else ids


class LlgConstraint:
    """Implements operators.engine.sampling.constraint.Constraint."""

    def __init__(self, tokenizer: LLTokenizer, n_vocab: int, form: Form, *, skip_forced: bool) -> None:
        self.noun = form.noun
        self.check = form.check
        self.skip_forced = skip_forced
        self.identity = f"{form.digest} {'skip' if skip_forced else 'draw'} forced"
        self._n_vocab = n_vocab
        self._first = LLMatcher(tokenizer, form.grammar, log_level=0)
        if self._first.is_error():
            raise ConfigError(f"sampling.structured cannot be compiled: {_first_line(self._first)}")

    def matcher(self) -> LlgMatcher:
        began = time.perf_counter()
        matcher = LlgMatcher(self._first.deep_copy(), self._n_vocab)
        matcher.costs.constraint_s = time.perf_counter() - began
        return matcher


class LlgMatcher:
    """Implements operators.engine.sampling.constraint.Matcher."""

    def __init__(self, matcher: LLMatcher, n_vocab: int) -> None:
        self._matcher = matcher
        self._n_vocab = n_vocab
        self.costs = Costs()

    @property
    def complete(self) -> bool:
        return not self._matcher.is_error() and self._matcher.is_accepting()

    @property
    def ended(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def error(self) -> str | None:
        return _first_line(self._matcher) if self._matcher.is_error() else None

    def allows(self, token: int) -> bool:
        began = time.perf_counter()
        allows = self._matcher.validate_tokens([token]) == 1
        self.costs.constraint_s += time.perf_counter() - began
        return allows

    def allowed(self) -> npt.NDArray[np.bool_]:
        began = time.perf_counter()
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)
        self.costs.masks += 1
        self.costs.constraint_s += time.perf_counter() - began
        return allowed

    def take(self, token: int) -> None:
        began = time.perf_counter()
        self._matcher.consume_token(token)
        self.costs.constrained_tokens += 1
        self.costs.constraint_s += time.perf_counter() - began

    def forced(self) -> list[int]:
        began = time.perf_counter()
        tokens = self._matcher.compute_ff_tokens()
        if tokens:
            tokens = tokens[: self._matcher.validate_tokens(tokens)]
        self.costs.constraint_s += time.perf_counter() - began
        return tokens


def _first_line(matcher: LLMatcher) -> str:
    return matcher.get_error().splitlines()[0]
