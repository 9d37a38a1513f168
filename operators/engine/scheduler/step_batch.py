"""StepBatch: the work of one step; Chunking: how prompts may be split into chunks.

CPU flash attention has one kernel for 64 tokens and more of a row (KERNEL_TOKENS in operators/settings/runtime.py) and
another for fewer, and a lone token has a third. So a prompt keeps its bits wherever it is cut as long as every chunk is
computed by the kernel that the whole would have been: chunks of 64 tokens or more for a prompt of 64 or more, of 2 to
63 for a shorter one (tests/operators/llama/test_cuts.py). And a short prompt may not take the beginning of a long one,
nor the reverse: the radix tree keeps them apart. For an exact decoder (DecoderShape) there are no such rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from operators.engine.backend.batch import BatchBuffer
from operators.engine.backend.images import Encoded
from operators.engine.backend.interface import Decoder, Logits, TokenIds
from operators.engine.images.cells import is_inside, piece_of
from operators.engine.scheduler.radix_tree import common_length
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import Slot


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """The next `count` tokens of `row`. `completes`: they are the last to compute; `encoded`: they are an image's."""

    row: Sequence
    count: int
    completes: bool
    encoded: Encoded | None = None


class IdleReason(StrEnum):
    """The reason why a slot is empty in a decode step."""

    INPUT = "input"  # no sequence waits, but more may come: look upstream
    CREDIT = "credit"  # sequences wait, but their node has not collected finished ones: look downstream
    ROOM = "room"  # sequences wait for room in the KV cache
    TAIL = "tail"  # the input has ended
    ADAPTERS = "adapters"  # those that wait have other adapters than those in slots, and may not share their calls
    PREFIX = "prefix"  # it is not empty: its sequence waits for a prefix that another one computes


@dataclass(slots=True)
class StepBatch:
    """The work of one step: at most one call of the backend.

    Attributes:
        decoding: sequences that decode one step.
        chunks: of prompts.
        known_logits: sequences with the prompt of one before them, which sample from its logits: a step of its own.
        idle: empty slots in a decode step, and why.
        dummy: the slot of a dummy token in this call, so that the backend never sees a lone row; None: no need.
        drafted, accepted: drafted tokens in the call, and those of them that are the rows'; counted by the strategy.
    """

    decoding: list[Sequence] = field(default_factory=list)
    chunks: list[PrefillChunk] = field(default_factory=list)
    known_logits: list[Sequence] = field(default_factory=list)
    idle: dict[IdleReason, int] = field(default_factory=dict)
    dummy: Slot | None = None
    drafted: int = field(default=0, init=False)
    accepted: int = field(default=0, init=False)

    @property
    def sequences(self) -> list[Sequence]:
        return [*self.decoding, *(chunk.row for chunk in self.chunks), *self.known_logits]

    @property
    def completing(self) -> list[Sequence]:
        """The sequences whose last tokens to compute are in this call."""
        return [chunk.row for chunk in self.chunks if chunk.completes]

    @property
    def has_images(self) -> bool:
        """True if the call is of cells of images."""
        return bool(self.chunks) and self.chunks[0].row.next_image is not None

    def encode_images(self, rows: Iterable[Sequence], clock: Callable[[], float], stopping: Callable[[], bool]) -> None:
        """Encode the images whose cells are computed in this call. A row whose image cannot be read gets an error, and
        leaves the batch, as do those that are left when the run is being stopped. `rows`: all in slots; the seconds of
        an image, on `clock`, count for its own alone."""
        chunks, self.chunks = self.chunks, []
        for chunk in chunks:
            if stopping():
                break
            began = clock()
            try:
                image = chunk.row.next_image
                self.chunks.append(chunk if image is None else replace(chunk, encoded=image.encode()))
            except ValueError as error:
                chunk.row.error, chunk.row.own_error = str(error), True
            seconds = clock() - began
            for row in rows:
                row.times.paused_s += 0.0 if row is chunk.row else seconds

    def begin(self, buffer: BatchBuffer) -> None:
        """Empty `buffer`, and enter the adapters of the rows, whose tokens are added next. A dummy token has those of
        the row beside it."""
        buffer.clear()
        buffer.images = [chunk.encoded for chunk in self.chunks if chunk.encoded is not None]
        rows = [*self.decoding, *(chunk.row for chunk in self.chunks)]
        for row in rows:
            if row.adapters:
                buffer.adapters[row.slot.index] = row.adapters
        if self.dummy is not None and rows[0].adapters:
            buffer.adapters[self.dummy.index] = rows[0].adapters

    def decode(self, decoder: Decoder) -> Logits:
        """Compute the filled buffer of `decoder`; count the tokens of the sequences as cached. Raises DecodeFailed if
        the backend refuses the batch; then `undo` is to be called."""
        logits = decoder.decode()
        tokens = decoder.shape.step_tokens
        for row in self.decoding:
            row.slot.num_cached += tokens
        for chunk in self.chunks:
            chunk.row.slot.num_cached += chunk.count
        if self.dummy is not None:
            self.dummy.truncate(self.dummy.num_cached)
        return logits

    def uncount(self, decoder: Decoder) -> None:
        """Take back what `decode` has counted and computed, so that the batch can be filled and computed again."""
        tokens = decoder.shape.step_tokens
        for row in self.decoding:
            row.slot.num_cached -= tokens
        for chunk in self.chunks:
            chunk.row.slot.num_cached -= chunk.count
        self.undo()

    def undo(self) -> None:
        """Truncate tokens that a failed call may have left in the KV cache."""
        slots = [row.slot for row in self.sequences] + ([] if self.dummy is None else [self.dummy])
        for slot in slots:
            slot.truncate(slot.num_cached)


class Chunking:
    """The rule for splitting prompts without changing their bits, for sequences that decode one token per step.

    A prompt with images has pieces: blocks of cells, each computed whole, and the tokens between them, each piece of
    which is split as a prompt of its own.

    Args:
        kernel_tokens: a prompt of that many tokens has no chunk below it, and a shorter one none of a single token; 2
            where there is one kernel for all of them; 0: prompts may be cut anywhere.
        most_shared: see Decoder.
    """

    shares_logits = True
    """Whether sequences with equal prompts may draw from the same logits."""

    def __init__(self, kernel_tokens: int, most_shared: float = math.inf) -> None:
        self.kernel_tokens = kernel_tokens
        self.most_shared = most_shared

    def size(self, row: Sequence, room: int) -> int:
        """Return the tokens of the next chunk of `row` if `room` tokens fit; 0 if no valid chunk fits. A block of an
        image is a chunk whatever the room, and alone in its call then."""
        cached = row.slot.num_cached
        if row.images and cached < len(row.prompt):
            start, end = piece_of(row.prompt, cached)
            left = end - cached
            return left if row.prompt[cached] < 0 else next_piece(left, room, self.least(end - start))
        left = row.placement.stop - cached if cached < row.placement.stop else row.to_compute
        # Forced tokens after a prompt are always fewer than kernel_tokens.
        length = len(row.prompt) if cached < len(row.prompt) else 0
        return next_piece(left, room, self.least(length))

    def shared(self, text: TokenIds, other: TokenIds, known: int = 0) -> int:
        """Return how many tokens of `text` may be taken from a slot with `other`; 0 if that does not pay. `known`:
        tokens known to be equal."""
        if self.kernel_tokens:
            images = bool((text < 0).any() or (other < 0).any())
            return self._shared_pieces(text, other, known) if images else self._shared_texts(text, other, known)
        count = int(min(common_length(text, other, known), len(text) - 1, self.most_shared))
        return piece_of(text, count)[0] if is_inside(text, count) else count

    def _shared_texts(self, text: TokenIds, other: TokenIds, known: int) -> int:
        if (len(text) >= self.kernel_tokens) != (len(other) >= self.kernel_tokens):
            return 0
        least = self.least(len(text))
        count = int(min(common_length(text, other, known), len(text) - least, self.most_shared))
        return count if count >= least else 0

    def _shared_pieces(self, text: TokenIds, other: TokenIds, known: int) -> int:
        """Cut the piece that both have a part of as a prompt of its own, or leave it out."""
        count = int(min(common_length(text, other, known), len(text) - 1, self.most_shared))
        if not count:
            return 0
        start, end = piece_of(text, count - 1)
        if text[start] < 0:
            return count if count == end else start
        if self.least(end - start) != self.least(piece_of(other, count - 1)[1] - start):
            return start
        least = self.least(end - start)
        last = count if count == end else min(count, end - least)
        return last if last - start >= least else start

    def least(self, length: int) -> int:
        """Return the fewest tokens of a chunk of a text of `length` tokens."""
        if not self.kernel_tokens:
            return 1
        return self.kernel_tokens if length >= self.kernel_tokens else 2


def next_piece(left: int, room: int, least: int) -> int:
    """Return the tokens of the next piece of a text of which `left` are left, if `room` fit: none has fewer than
    `least` unless the text has; 0 if none fits."""
    if left <= room:
        return left
    count = min(room, left - least)
    return count if count >= least else 0
