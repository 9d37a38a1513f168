"""One generation in flight: the request, its tokens so far, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum

import numpy as np

from operators.engine.backend.interface import TokenIds
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.step import SamplingState
from operators.engine.sampling.stop_strings import StopWatcher
from operators.engine.sequence.node_queue import NodeQueue
from operators.engine.sequence.placement import Placement, Slot
from operators.settings.runtime import KERNEL_TOKENS

JUMP_TOKENS = 16
"""From so many tokens on, those that a constraint leaves no choice about are computed in one call. Fewer are decoded
one by one in the steps of the other sequences, where they cost as much as any token. A call of its own costs what a
step costs, and takes the place of one: it pays where it has more tokens than the step has rows
(docs/structured_output.md)."""


class State(Enum):
    """Where a sequence is. It moves forward, except that it waits once more after a preemption, and that many tokens
    which its constraint left no choice about are computed as a prompt is."""

    WAITING = "waiting"
    PREFILL = "prefill"
    SAMPLE = "sample"
    """Its whole prompt is in the KV cache, from another sequence, and so are the logits known."""
    DECODE = "decode"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a completion ended. Written to `finish_reason`."""

    STOP = "stop"
    """An end-of-generation token or one of `stop_token_ids`, or the end of what the constraint allows."""
    STOP_STRING = "stop_string"
    LENGTH = "length"
    """`max_tokens` or `max_sequence_tokens` was reached."""


@dataclass(slots=True)
class Times:
    """Moments of a sequence, in seconds on the engine's clock."""

    queued: float = 0.0
    admitted: float = 0.0
    preempted_s: float = 0.0
    """Seconds out of its slot since then; of no meaning while it is out."""
    first_token: float = 0.0
    finished: float = 0.0


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt that is to be completed: the request, its tokens, and how it ended.

    What the sampler, the scheduler and the metrics keep of it are three records of their own: `sampling`, `placement`
    and `times`.

    Args:
        handle: what the caller finds it again by.
        prompt: int32 token ids, at least one; a view into the prompt column.
        params: how to draw.
        seed: of its random numbers; 63 bits.
        max_tokens: completion tokens at most, as far as they fit beside the prompt.
        stops: watches for stop strings, None where there are none.
        priority: sequences with a higher one are admitted first, among those that wait.
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
    tokens: list[int] = field(default_factory=list, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    error: str | None = field(default=None, init=False)
    """Why it cannot be completed; then there is no finish reason."""
    fits: bool = field(default=True, init=False)
    """Whether the text, once it has ended, is what its constraint asks for."""
    dropped: int = field(default=0, init=False)
    """1 when the token that ended it is none of `tokens`."""
    owner: NodeQueue | None = field(default=None, init=False)
    """Who submitted it."""
    key: bytes = field(default=b"", init=False)
    """Content key under which its completion is stored."""
    slot: Slot = field(init=False, repr=False)
    """Where it is; the attribute exists only while it is in a slot."""
    sampling: SamplingState = field(init=False)
    placement: Placement = field(default_factory=Placement, init=False)
    times: Times = field(default_factory=Times, init=False)

    def __post_init__(self) -> None:
        self.sampling = SamplingState(self.seed, self.params.constraint)

    @property
    def to_compute(self) -> int:
        """Number of its tokens that are not in the KV cache of its slot; at 0 the next token is drawn."""
        return len(self.prompt) + len(self.tokens) - self.slot.num_cached

    @property
    def next_token(self) -> int:
        """The first of the tokens to compute."""
        made = self.slot.num_cached - len(self.prompt)
        return self.tokens[made] if made >= 0 else int(self.prompt[made])

    def next_tokens(self, count: int) -> TokenIds:
        """Return the first `count` of the tokens to compute, int32 [count]."""
        start, size = self.slot.num_cached, len(self.prompt)
        if start + count <= size:
            return self.prompt[start : start + count]
        made = self.tokens[max(start - size, 0) : start + count - size]
        return np.concatenate([self.prompt[start:], np.array(made, np.int32)])

    def update_state(self) -> None:
        """Go on as what is in the KV cache asks for: as a prompt, or token by token.

        A last prompt token that stands alone is decoded among the others: the backend computes one lone token with
        other kernels, and the bits would differ.
        """
        left = self.to_compute
        few = 1 if self.slot.num_cached < len(self.prompt) else JUMP_TOKENS - 1
        self.state = State.PREFILL if left > few else State.DECODE if left else State.SAMPLE

    def cells(self, tokens: int) -> int:
        """Return how many tokens it has in the KV cache at most, with so many completion tokens."""
        return len(self.prompt) + tokens

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

        So few at a time that the kernels of short prompts compute them. How they are computed depends on the sequence
        alone, and so do its bits.

        Returns:
            whether there are any.
        """
        matcher = self.sampling.matcher
        if not self.params.skips_forced or matcher is None or self._has_ended():
            return False
        forced = matcher.forced()[: KERNEL_TOKENS - 1 - self.to_compute]
        for token in forced:
            self.append(token)
            matcher.costs.forced += 1
            if self._has_ended():
                return True
        if forced:
            self.update_state()
        return bool(forced)

    def refit(self) -> None:
        """Set `fits` for `tokens` that a store had."""
        if (matcher := self.sampling.matcher) is not None:
            for token in self.tokens:
                matcher.take(token)
            self.fits = matcher.complete

    def _has_ended(self) -> bool:
        return self.finish_reason is not None or self.error is not None
