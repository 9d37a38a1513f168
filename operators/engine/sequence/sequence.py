"""One generation in flight: what it is given, how far it is, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Protocol

import numpy as np

from operators.engine.backend.interface import TokenIds
from operators.engine.sampling.constraint import Costs, Matcher
from operators.engine.sampling.logprobs import Scored
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.random_numbers import Uniforms
from operators.engine.sampling.stop_strings import StopWatcher
from operators.engine.sequence.placement import PrefixNode, SamePrompt
from operators.settings.runtime import KERNEL_TOKENS
from pipeline.api.meter import StageMeter

SPAN_TOKENS = 16
"""So many tokens that are known before they are computed are computed in one call; fewer are fed one by one in the
steps of the rows beside it, where they cost as much as any row's. A call of its own costs what a step costs, and takes
the place of one: it pays where it has more tokens than the step has rows (docs/structured_output.md)."""


class State(Enum):
    """Where a sequence is. It moves forward, but for a row that gives up its slot and waits once more, and for one that
    has many tokens to compute which its constraint left no choice about: they are computed as a prompt is."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a completion ended. Written to `finish_reason`."""

    STOP = "stop"
    """An end-of-generation token or one of `stop_token_ids`, or the end of what the constraint allows."""
    STOP_STRING = "stop_string"
    LENGTH = "length"
    """`max_tokens` or `max_sequence_tokens` was reached."""


class Owner(Protocol):
    """Who submitted a sequence: its meter counts the tokens."""

    meter: StageMeter
    wake: Callable[[], None]
    """Told after a step in which rows of it have ended."""

    def finished(self, row: Sequence) -> None:
        """Take back a row that has ended."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A row that is to be completed.

    Args:
        handle: what the caller finds it again by.
        prompt: int32 token ids, at least one; a view into the prompt column.
        params: how to draw.
        seed: of its random numbers; 63 bits.
        max_tokens: completion tokens at most, as far as they fit beside the prompt.
        stops: watches for stop strings, None where there are none.
        priority: rows with a higher one are admitted first, among those that wait.
        chunk: where it is from; older chunks are not starved by newer ones.
    """

    handle: object
    prompt: TokenIds
    params: SamplingParams
    seed: int
    max_tokens: int
    stops: StopWatcher | None = None
    priority: float = 0.0
    chunk: int = 0
    state: State = State.WAITING
    slot: int = field(default=0, init=False)
    n_past: int = field(default=0, init=False)
    """Tokens in the KV cache."""
    admission: int = field(default=0, init=False)
    """Number of its admission: of two rows the younger has the higher one."""
    shared_tokens: int = field(default=0, init=False)
    """Prompt tokens that it did not compute but took from another row."""
    preemptions: int = field(default=0, init=False)
    """How often it gave up its slot."""
    saved: bytes | None = field(default=None, init=False)
    """What its slot held when it gave it up, if that was kept."""
    prefix: PrefixNode | None = field(default=None, init=False)
    """Where its prompt stands in the tree of prefixes; None while it is too short to be shared."""
    same: SamePrompt | None = field(default=None, init=False)
    """The rows with the same prompt that do not have it yet, itself included."""
    forced: bool = field(default=False, init=False)
    """Whether `feed` ends in tokens that its constraint left no choice about."""
    fits: bool = field(default=True, init=False)
    """Whether the text, once it has ended, is what its constraint asks for."""
    tokens: list[int] = field(default_factory=list, init=False)
    dropped: int = field(default=0, init=False)
    """1 when the token that ended it is none of `tokens`."""
    finish_reason: FinishReason | None = field(default=None, init=False)
    error: str | None = field(default=None, init=False)
    """Why the row cannot be completed; then there is no finish reason."""
    queued_at: float = field(default=0.0, init=False)
    admitted_at: float = field(default=0.0, init=False)
    preempted_s: float = field(default=0.0, init=False)
    """Seconds out of its slot since then; of no meaning while it is out."""
    first_token_at: float = field(default=0.0, init=False)
    finished_at: float = field(default=0.0, init=False)
    owner: Owner | None = field(default=None, init=False)
    """Who submitted it."""
    line: object | None = field(default=None, init=False)
    """The line in which it waits or has waited for its first slot."""
    queued: bool = field(default=False, init=False)
    """Whether it waits there."""
    key: bytes = field(default=b"", init=False)
    """Content key under which its completion is stored."""
    scored: Scored | None = field(default=None, init=False)
    """What the model thought of the token that was drawn last, where its parameters ask for logprobs."""
    scores: list[Scored] = field(default_factory=list, init=False)
    """The same for each of `tokens`."""
    mirostat_mu: float | None = field(default=None, init=False)
    """The surprise up to which candidates are kept; None before the first token."""
    _matcher: Matcher | None = field(default=None, init=False)
    _uniforms: Uniforms | None = field(default=None, init=False)
    _replay: TokenIds | None = field(default=None, init=False)

    @property
    def feed(self) -> TokenIds:
        """What is computed before a token is drawn: the prompt, what a row that begins anew had already drawn, and what
        was not drawn because its constraint left no choice."""
        return self.prompt if self._replay is None else self._replay

    @property
    def prompt_left(self) -> int:
        """Tokens of `feed` that are not in the KV cache yet."""
        return len(self.feed) - self.n_past

    def settle(self) -> None:
        """Be in the state that follows from what is in the KV cache.

        A last prompt token that stands alone is decoded among the others: the backend computes one lone token with
        other kernels, and the bits would differ.
        """
        alone = 0 if self._replay is not None and not self.forced else 1
        self.state = State.PREFILL if self.prompt_left > alone else State.DECODE

    def give_up(self, saved: bytes | None) -> None:
        """Leave the slot, to go on later from `saved`, or by computing all tokens again where that is None."""
        self.preemptions += 1
        self.saved = saved
        self.state = State.WAITING
        if saved is None:
            self.forced = False
            # The last token is not in the cache yet: the next step feeds it.
            self._replay = np.concatenate([self.prompt, np.array(self.tokens[:-1], np.int32)]) if self.tokens else None
            self.n_past = 0

    def cells(self, tokens: int) -> int:
        """Tokens that it has in the KV cache at most, with so many completion tokens."""
        return len(self.prompt) + tokens

    @property
    def next_token(self) -> int:
        """The token that its next decode step feeds."""
        made = self.n_past - len(self.prompt)
        return self.tokens[made] if made >= 0 else int(self.prompt[self.n_past])

    @property
    def behind(self) -> int:
        """Tokens that are known and not in the KV cache yet; none when the next is to be drawn."""
        return len(self.prompt) + len(self.tokens) - self.n_past

    @property
    def uniforms(self) -> Uniforms:
        """Its random numbers."""
        if self._uniforms is None:
            self._uniforms = Uniforms(self.seed)
        return self._uniforms

    @property
    def draws_after_feed(self) -> bool:
        """Whether a token is drawn behind `feed`: not where the row had begun before and computes its tokens again."""
        return self.forced or not self.tokens

    @property
    def matcher(self) -> Matcher | None:
        """How far it is in its constraint; None where it has none."""
        if self._matcher is None and self.params.constraint is not None:
            self._matcher = self.params.constraint.matcher()
        return self._matcher

    @property
    def costs(self) -> Costs:
        """What its constraint has cost."""
        return Costs() if self._matcher is None else self._matcher.costs

    def append(self, token: int) -> None:
        """Take a drawn token; sets the finish reason when it is the last one."""
        meter = self.owner.meter if self.owner is not None else None
        if meter is not None and not self.tokens:
            meter.tokens_in += len(self.prompt)
        if token in self.params.stop_ids:
            self.finish_reason = FinishReason.STOP
            if token not in self.params.kept_stop_ids:
                self.dropped = 1
                return
        self.tokens.append(token)
        if self.scored is not None:
            self.scores.append(self.scored)
        if meter is not None:
            meter.tokens_out += 1
        matcher = self.matcher
        if matcher is not None:
            matcher.take(token)
            if matcher.error is not None:
                self.error = f"its constraint cannot go on: {matcher.error}"
        if self.stops is not None and self.stops.feed(token):
            self.finish_reason = FinishReason.STOP_STRING
        elif matcher is not None and matcher.ended:
            self.finish_reason = FinishReason.STOP
        elif self.finish_reason is None and len(self.tokens) >= self.max_tokens:
            self.finish_reason = FinishReason.LENGTH
        if matcher is not None and self.finish_reason is not None:
            self.fits = matcher.complete

    def skip(self) -> bool:
        """Append the tokens that its constraint leaves no choice about; they are computed before the next is drawn.

        So few at a time that short prompts and they are computed by the same kernels. How they are computed depends on
        the row alone, so that its bits do.

        Returns:
            whether there are any.
        """
        if not self.params.skips_forced or self.matcher is None or self._has_ended():
            return False
        forced = self.matcher.forced()[: KERNEL_TOKENS - 1 - self.behind]
        for token in forced:
            self.append(token)
            self.matcher.costs.forced += 1
            if self._has_ended():
                return True
        if forced and self.behind >= SPAN_TOKENS:
            self._replay = np.concatenate([self.prompt, np.array(self.tokens, np.int32)])
            self.forced = True
            self.settle()
        return bool(forced)

    def refit(self) -> None:
        """Find out anew whether `tokens`, which were drawn some time ago and have ended, fit."""
        if (matcher := self.matcher) is not None:
            for token in self.tokens:
                matcher.take(token)
            self.fits = matcher.complete

    def _has_ended(self) -> bool:
        return self.finish_reason is not None or self.error is not None
