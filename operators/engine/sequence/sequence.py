"""One generation in flight: what it is given, how far it is, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Protocol

import numpy as np

from operators.engine.backend.interface import TokenIds
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.step import SamplingState
from operators.engine.sampling.stop_strings import StopWatcher
from operators.engine.sequence.placement import Placement
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


@dataclass(slots=True)
class Times:
    """When what became of a row, in seconds on the engine's clock."""

    queued: float = 0.0
    admitted: float = 0.0
    preempted_s: float = 0.0
    """Seconds out of its slot since then; of no meaning while it is out."""
    first_token: float = 0.0
    finished: float = 0.0


@dataclass(slots=True, eq=False)
class Sequence:
    """A row that is to be completed.

    What the sampler, the scheduler and the metrics keep of it are three records of their own: `sampling`, `placement`
    and `times`.

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
    tokens: list[int] = field(default_factory=list, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    error: str | None = field(default=None, init=False)
    """Why the row cannot be completed; then there is no finish reason."""
    fits: bool = field(default=True, init=False)
    """Whether the text, once it has ended, is what its constraint asks for."""
    dropped: int = field(default=0, init=False)
    """1 when the token that ended it is none of `tokens`."""
    forced: bool = field(default=False, init=False)
    """Whether `feed` ends in tokens that its constraint left no choice about."""
    owner: Owner | None = field(default=None, init=False)
    """Who submitted it."""
    key: bytes = field(default=b"", init=False)
    """Content key under which its completion is stored."""
    sampling: SamplingState = field(init=False)
    placement: Placement = field(default_factory=Placement, init=False)
    times: Times = field(default_factory=Times, init=False)
    _replay: TokenIds | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.sampling = SamplingState(self.seed, self.params.constraint)

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
        self.placement.preemptions += 1
        self.placement.saved = saved
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
    def draws_after_feed(self) -> bool:
        """Whether a token is drawn behind `feed`: not where the row had begun before and computes its tokens again."""
        return self.forced or not self.tokens

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
        if self.sampling.scored is not None:
            self.sampling.scores.append(self.sampling.scored)
        if meter is not None:
            meter.tokens_out += 1
        matcher = self.sampling.matcher
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
        matcher = self.sampling.matcher
        if not self.params.skips_forced or matcher is None or self._has_ended():
            return False
        forced = matcher.forced()[: KERNEL_TOKENS - 1 - self.behind]
        for token in forced:
            self.append(token)
            matcher.costs.forced += 1
            if self._has_ended():
                return True
        if forced and self.behind >= SPAN_TOKENS:
            self._replay = np.concatenate([self.prompt, np.array(self.tokens, np.int32)])
            self.forced = True
            self.settle()
        return bool(forced)

    def refit(self) -> None:
        """Find out anew whether `tokens`, which were drawn some time ago and have ended, fit."""
        if (matcher := self.sampling.matcher) is not None:
            for token in self.tokens:
                matcher.take(token)
            self.fits = matcher.complete

    def _has_ended(self) -> bool:
        return self.finish_reason is not None or self.error is not None
