"""Sequence: one completion in progress: the request, its tokens so far, and its end."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import Enum, StrEnum

import numpy as np

from operators.engine.backend.images import ImageSpan
from operators.engine.backend.interface import TokenIds
from operators.engine.sampling.logit_edits import is_forbidden
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.row_state import SamplingState, no_token
from operators.engine.sequence.placement import NodeQueue, Placement, Slot
from operators.settings.runtime import KERNEL_TOKENS

JUMP_TOKENS = 16
"""Forced tokens (those that a constraint leaves no choice about) are computed in a call of their own from this many on.
Fewer are decoded one by one in the steps of the other sequences, where they cost as much as any token. A call of its
own costs as much as a step and delays one: it pays if it has more tokens than the step has rows
(docs/structured_output.md)."""


class State(Enum):
    """The stage of a sequence. It only moves forward, with two exceptions: it waits again after a preemption, and goes
    back to prefill for many forced tokens."""

    WAITING = "waiting"
    PREFILL = "prefill"
    SAMPLE = "sample"
    """The KV cache of its whole prompt, and the logits after it, come from another sequence."""
    DECODE = "decode"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """The reason why a completion ended. Written to `finish_reason`."""

    STOP = "stop"
    """An end-of-generation token or one of `stop_token_ids`, or the end of what the constraint allows."""
    STOP_STRING = "stop_string"
    LENGTH = "length"
    """`max_tokens` or `max_sequence_tokens` was reached."""


@dataclass(slots=True)
class Times:
    """Times of a sequence, in seconds on the engine's clock."""

    queued: float = 0.0
    admitted: float = 0.0
    paused_s: float = 0.0
    """Seconds since its admission outside of its slot, or while images of others were encoded; undefined while it is
    outside."""
    first_token: float = 0.0
    finished: float = 0.0


class StopWatcher:
    """Looks for any of `stops` in the bytes of a growing completion: finds also those that are split over tokens.

    Args:
        stops: strings that end the completion, in UTF-8; none of them empty.
        pieces: the bytes of every token id.
        keep: the stop string becomes part of the completion.
    """

    __slots__ = ("_longest", "_pieces", "cut", "keep", "stops", "text")

    def __init__(self, stops: Seq[bytes], pieces: Seq[bytes], keep: bool = False) -> None:
        self.stops = stops
        self.keep = keep
        self._pieces = pieces
        self._longest = max(map(len, stops))
        self.text = bytearray()
        self.cut: int | None = None
        """The index in `text` at which the completion ends, once a stop string was found."""

    def feed(self, token: int) -> bool:
        """Append a token; return True if a stop string is complete. The leftmost counts, of two there the shorter."""
        piece = self._pieces[token]
        start = max(0, len(self.text) - self._longest + 1)
        self.text += piece
        matches = [(at, at + len(stop)) for stop in self.stops if (at := self.text.find(stop, start)) >= 0]
        if matches:
            at, end = min(matches)
            self.cut = end if self.keep else at
        return bool(matches)


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt to complete: the request, its tokens, and its end.

    The sampler, the scheduler and the metrics have a record each: `sampling`, `placement` and `times`.

    Args:
        handle: identifies it to the caller.
        prompt: int32 token ids, at least one; a view into the prompt column.
        params: the sampling parameters.
        seed: 63 bits, for its random numbers.
        max_tokens: most completion tokens; capped by the room that the prompt leaves.
        stops: watches for stop strings, None where there are none.
        priority: sequences with a higher one are admitted first, among those that wait.
        chunk: its chunk of the input; newer chunks do not starve older ones.
        adapters: of the model, bit i is the i-th; 0: the model as it is. What was computed with some is of no use to
            a sequence with others.
        images: the blocks of cells of images in the prompt, in their order.
    """

    handle: object
    prompt: TokenIds
    params: SamplingParams
    seed: int
    max_tokens: int
    stops: StopWatcher | None = None
    priority: float = 0.0
    chunk: int = 0
    adapters: int = 0
    images: tuple[ImageSpan, ...] = ()
    state: State = State.WAITING
    tokens: list[int] = field(default_factory=list, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    error: str | None = field(default=None, init=False)
    """Reason why it cannot be completed; then there is no finish reason."""
    own_error: bool = field(default=False, init=False)
    """True if that is for its own images, which identical sequences may have in other files."""
    fits: bool = field(default=True, init=False)
    """False if its finished text violates the constraint."""
    dropped: int = field(default=0, init=False)
    """1 if the token that ended it is not in `tokens`."""
    drafted: int = field(default=0, init=False)
    """Drafted tokens that calls have verified."""
    accepted: int = field(default=0, init=False)
    """Those of them that are in `tokens`."""
    owner: NodeQueue = field(init=False, repr=False)
    """The queue of the node that submitted it; the attribute exists only then."""
    key: bytes = field(default=b"", init=False)
    """Content key of its completion in the store."""
    slot: Slot = field(init=False, repr=False)
    """Its slot; the attribute exists only while it is in one."""
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
        place = self.slot.num_cached - len(self.prompt)
        return self.tokens[place] if place >= 0 else int(self.prompt[place])

    def next_tokens(self, count: int) -> TokenIds:
        """Return the first `count` of the tokens to compute, int32 [count]."""
        return self.ids(self.slot.num_cached, self.slot.num_cached + count)

    @property
    def next_image(self) -> ImageSpan | None:
        """The block of cells to compute next; None: tokens are."""
        if not self.images:
            return None
        cached = self.slot.num_cached
        return next((image for image in self.images if image.start == cached), None)

    def ids(self, start: int, end: int) -> TokenIds:
        """Return the tokens of prompt and completion from `start` to `end`, int32 [end - start]."""
        size = len(self.prompt)
        if end <= size:
            return self.prompt[start:end]
        drawn = np.array(self.tokens[max(start - size, 0) : end - size], np.int32)
        return drawn if start >= size else np.concatenate([self.prompt[start:], drawn])

    @property
    def length(self) -> int:
        """Number of tokens of prompt and completion."""
        return len(self.prompt) + len(self.tokens)

    @property
    def ended(self) -> bool:
        """True if it is complete, or cannot be completed."""
        return self.finish_reason is not None or self.error is not None

    def update_state(self) -> None:
        """Set the state by the number of tokens to compute: prefill, or decode for a single token.

        A last prompt token that stands alone is decoded among the others: the backend computes one lone token with
        other kernels, and the bits would differ.
        """
        left = self.to_compute
        few = 1 if self.slot.num_cached < len(self.prompt) else JUMP_TOKENS - 1
        self.state = (
            State.PREFILL if left > few or self.next_image is not None else State.DECODE if left else State.SAMPLE
        )

    def cells(self, tokens: int) -> int:
        """Return the most tokens that it has in the KV cache with this many completion tokens."""
        return len(self.prompt) + tokens

    def append(self, token: int) -> None:
        """Add a drawn token; sets the finish reason if it is the last one."""
        if token in self.params.stop_ids:
            self.finish_reason = FinishReason.STOP
            if token not in self.params.kept_stop_ids:
                self.dropped = 1
                self._note_fit()
                return
        self.tokens.append(token)
        if self.sampling.scored is not None:
            self.sampling.scores.append(self.sampling.scored)
        matcher = self.sampling.matcher
        if matcher is not None:
            matcher.take(token)
            if matcher.error is not None:
                self.error = f"its constraint cannot go on: {matcher.error}"
        if self.stops is not None and self.stops.feed(token):
            self.finish_reason = FinishReason.STOP_STRING
        elif matcher is not None and matcher.ended:
            if len(self.tokens) < self.params.min_tokens:
                self.error = no_token(self)
            else:
                self.finish_reason = FinishReason.STOP
        elif self.finish_reason is None and len(self.tokens) >= self.max_tokens:
            self.finish_reason = FinishReason.LENGTH
        if self.finish_reason is not None:
            self._note_fit()

    def skip(self) -> bool:
        """Append the forced tokens, to be computed before the next one is drawn.

        Appends only so many that the kernels of short prompts compute them, whatever other sequences do, so the bits
        depend on the sequence alone.

        Returns:
            True if there were any.
        """
        matcher = self.sampling.matcher
        if not self.params.skips_forced or matcher is None or self.ended:
            return False
        forced = matcher.forced()[: KERNEL_TOKENS - 1 - self.to_compute]
        for token in forced:
            if is_forbidden(self, token):
                self.error = no_token(self)
                return True
            self.append(token)
            matcher.costs.forced_tokens += 1
            if self.finish_reason is not None or self.error is not None:
                return True
        if forced:
            self.update_state()
        return bool(forced)

    @property
    def identity(self) -> Hashable:
        """A key that is equal for sequences with the same result: their limit of tokens, and their content key or its
        parts, the seed unless they are greedy. Parameters are compared as objects: sequences with equal ones mostly
        share the object."""
        if self.key:
            return self.max_tokens, self.key
        stops = None if self.stops is None else (tuple(self.stops.stops), self.stops.keep)
        seed = None if self.params.greedy else self.seed
        return self.max_tokens, self.prompt.tobytes(), id(self.params), stops, seed, self.adapters

    def finish_like(self, other: Sequence) -> None:
        """End as the finished `other` has, which is identical."""
        self.tokens, self.stops, self.sampling.scores = other.tokens, other.stops, other.sampling.scores
        self.fits, self.dropped = other.fits, other.dropped
        self.finish_reason, self.error = other.finish_reason, other.error
        self.times.admitted = self.times.first_token = self.times.finished = other.times.finished

    def refit(self) -> None:
        """Set `fits` for `tokens` from a store."""
        if (matcher := self.sampling.matcher) is not None:
            for token in self.tokens:
                matcher.take(token)
            self._note_fit()

    def _note_fit(self) -> None:
        if (matcher := self.sampling.matcher) is not None:
            self.fits = matcher.complete
