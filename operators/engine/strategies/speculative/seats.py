"""Seats: the sequences of a draft model's context, and what is in their KV cache.

A row that is drafted for has a seat, whose beginning is the row's text and whose end may be an earlier draft. Seats in
use have no holes between them, since llama.cpp cuts a batch into micro-batches over consecutive sequences.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from operators.engine.backend.interface import Buffer, Decoder, TokenIds
from operators.engine.scheduler.radix_tree import common_length
from operators.engine.sequence import Sequence
from operators.engine.strategies.speculative.lookup import DraftedRow

LEAST_COPY = 64
"""A prompt takes its first tokens from another seat if these are so many more than its own seat has."""


@dataclass(slots=True, eq=False)
class Seat:
    """A sequence of the context: `length` tokens are in its KV cache, and the first `sure` of these are the row's.
    `mark`: what the decoder needs to go back to `marked` tokens, if it cannot truncate."""

    index: int
    row: DraftedRow | None = None
    length: int = 0
    sure: int = 0
    marked: int = 0
    mark: Buffer = b""


class Seats:
    """The seats of one context.

    Args:
        decoder: the context; nothing else uses it.
        n_vocab: words of the job's model: none beyond them is returned.
        own_vocab: words of the draft model: others are computed as its last one.

    Attributes:
        all: in the order of their sequence ids.
        read: tokens that were computed by `read_text`, all together.
    """

    def __init__(self, decoder: Decoder, n_vocab: int, own_vocab: int) -> None:
        self.read = 0
        self._decoder = decoder
        self._n_vocab = n_vocab
        self._last_word = own_vocab - 1
        self._lines = np.zeros((decoder.shape.slots, decoder.shape.max_sequence_tokens), np.int32)
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._decoder.clear()
        self.all = [Seat(index) for index in range(self._decoder.shape.slots)]
        self._of: dict[Sequence, Seat] = {}

    def release(self, row: Sequence) -> None:
        """Take the seat of `row` from it; what is there may serve a prompt that begins alike."""
        if (seat := self._of.pop(row, None)) is not None:
            seat.row = None

    def arrange(self, rows: Collection[DraftedRow]) -> list[Seat]:
        """Return the seats of `rows`, in their order and without holes; other rows may lose theirs."""
        for row in rows:
            if row not in self._of:
                self._sit(row, rows)
        taken = {self._of[row].index for row in rows}
        holes = iter(index for index in range(len(rows)) if index not in taken)
        for row in rows:
            if (seat := self._of[row]).index >= len(rows):
                lower = self.all[next(holes)]
                self._copy(seat, lower, seat.length)
                self._take(lower, row)
                self.truncate(seat, 0)
        return sorted((self._of[row] for row in rows), key=lambda seat: seat.index)

    def behind(self, row: Sequence) -> int:
        """Return how many tokens of `row` are to be computed for its next draft, at least 1."""
        length, seat = row.length, self._of.get(row)
        if seat is None:
            return length - min(int(self._common(row.prompt).max()), length - 1)
        held = self._lines[seat.index, seat.sure : seat.length]
        right = seat.sure + common_length(held, row.ids(seat.sure, min(length, seat.length)))
        seat.sure = self._reachable(seat, min(right, length - 1))
        return length - seat.sure

    def read_text(self, seat: Seat, row: Sequence, end: int) -> None:
        """Compute the text of `row` up to `end`, from what is sure on."""
        self.truncate(seat, seat.sure)
        self.read += end - seat.length
        while seat.length < end:
            upto = min(end, seat.length + self._decoder.shape.n_ubatch)
            self.compute([seat], [row.ids(seat.length, upto)], outputs=0)
        seat.sure = end

    def compute(self, seats: Seq[Seat], texts: Seq[TokenIds], outputs: int = 1) -> list[int]:
        """Compute `texts` behind what is in `seats`; return the likeliest token after each, if there are `outputs`.
        Raises DecodeFailed if the backend refused them; then `clear` is due."""
        batch = self._decoder.batch
        batch.clear()
        batch.add_spans(texts, [seat.length for seat in seats], [seat.index for seat in seats], [outputs] * len(seats))
        used = batch.token[: batch.n_tokens]
        np.minimum(used, self._last_word, out=used)
        logits = self._decoder.decode()
        for seat, text in zip(seats, texts, strict=True):
            self._lines[seat.index, seat.length : seat.length + len(text)] = text
            seat.length += len(text)
        likeliest: list[int] = logits[:, : self._n_vocab].argmax(axis=1).tolist()
        return likeliest

    def due(self, seat: Seat, row: Sequence, start: int) -> TokenIds:
        """Return the tokens of `row` to compute in the next call: from `start` on, for which what is behind it is
        dropped, or from what the seat has if nothing can be."""
        if seat.sure < start:
            self.read_text(seat, row, start)
        self.truncate(seat, start if self._decoder.partial else seat.sure)
        return row.ids(seat.length, row.length)

    def note(self, seat: Seat, *, drafts: bool) -> None:
        """Take what is in `seat` for the text of its row. `drafts`: more is computed behind it, to be dropped again."""
        seat.sure = seat.length
        if drafts and not self._decoder.partial:
            seat.mark, seat.marked = self._decoder.mark(seat.index), seat.length

    def truncate(self, seat: Seat, length: int) -> None:
        """Drop what is in `seat` behind `length` tokens, of a decoder that cannot truncate what is behind its mark."""
        if seat.length <= length:
            return
        length = self._reachable(seat, length)
        if length and not self._decoder.partial:
            self._decoder.rewind(seat.index, length, seat.mark)
        else:
            self._decoder.truncate(seat.index, length)
        seat.length, seat.sure = length, min(length, seat.sure)
        seat.marked = min(length, seat.marked)

    def _reachable(self, seat: Seat, length: int) -> int:
        """Return the most tokens, at most `length`, to which `seat` can be truncated."""
        if self._decoder.partial or length == seat.length:
            return length
        return seat.marked if seat.marked <= length else 0

    def _sit(self, row: DraftedRow, rows: Collection[DraftedRow]) -> None:
        """Give `row` a seat, with what there is of its prompt already. `rows` keep theirs."""
        free = [seat for seat in self.all if seat.row is None] or [seat for seat in self.all if seat.row not in rows]
        common = self._common(row.prompt)
        best, seat = self.all[int(common.argmax())], free[0]
        held = int(common[seat.index])
        if common[best.index] >= held + LEAST_COPY:
            held = int(common[best.index])
            self._copy(best, seat, held)
        self._take(seat, row)
        seat.sure = held
        if (length := row.length) > held + LEAST_COPY:  # now, so that the next row can copy it
            self.read_text(seat, row, length - 1)

    def _take(self, seat: Seat, row: DraftedRow) -> None:
        if seat.row is not None:
            del self._of[seat.row]
        self.release(row)
        self._of[row] = seat
        seat.row = row

    def _common(self, prompt: TokenIds) -> TokenIds:
        """Return how many tokens each seat has in common with the beginning of `prompt`, int32 [seats]."""
        if not self._decoder.partial:  # a seat has its text as a whole
            return np.zeros(len(self.all), np.int32)
        same = self._lines[:, : len(prompt)] == prompt
        first = np.where(same.all(axis=1), len(prompt), same.argmin(axis=1))
        return np.minimum(first, [seat.length for seat in self.all]).astype(np.int32)

    def _copy(self, source: Seat, target: Seat, length: int) -> None:
        self._decoder.copy(source.index, target.index, length)
        self._lines[target.index, :length] = self._lines[source.index, :length]
        target.length, target.sure = length, min(length, source.sure)
        target.mark, target.marked = source.mark, min(length, source.marked)
