"""Who is admitted, in which slot, and what the next call computes.

A call is either the prefill of some prompts or one decode step of all rows, never both: in the per-sequence layout
llama.cpp cuts a batch into micro-batches of equal token counts over consecutive slots, so a prompt beside decoding rows
would be cut where its neighbours are, and its bits would depend on them. Prompts go first: a slot that prefills later
is a slot that does not decode now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from operators.decoding.model import DecoderShape
from operators.decoding.sequence import Sequence, State
from operators.decoding.slots import SlotPool


class Unfilled(StrEnum):
    """Why slots are empty in a decode step."""

    INPUT = "input"
    """No row waits, more may come: look upstream."""
    CREDIT = "credit"
    """Rows wait, but what their node finished has not been taken: look downstream."""
    REFILL = "refill"
    """Rows wait until `refill` slots are free."""
    TAIL = "tail"
    """The input has ended."""


@dataclass(eq=False)
class Line:
    """The rows of one node that wait for a slot.

    Args:
        depth: distance of the node from the source; the deepest line is served first, so that rows leave the graph.
        credit: rows that the node can still take back when they are finished.
    """

    depth: int
    credit: Callable[[], int]
    waiting: deque[Sequence] = field(default_factory=deque)
    ended: bool = False
    admitted: int = 0
    """Rows given a slot so far; written by the engine's thread."""
    returned: int = 0
    """Finished rows that the node has taken back; written by the node's thread."""


@dataclass(frozen=True, slots=True)
class Span:
    """`count` prompt tokens of `row`, from token `row.n_past` on."""

    row: Sequence
    count: int

    @property
    def completes(self) -> bool:
        """Whether the prompt is in the cache after it."""
        return self.count == self.row.prompt_left


@dataclass(frozen=True, slots=True)
class Prefill:
    """A call that computes prompts."""

    spans: list[Span]

    @property
    def sequences(self) -> list[Sequence]:
        """The rows that take part."""
        return [span.row for span in self.spans]


@dataclass(frozen=True, slots=True)
class Decode:
    """A call that computes one step of every row. `unfilled`: empty slots and why."""

    rows: list[Sequence]
    unfilled: dict[Unfilled, int]

    @property
    def sequences(self) -> list[Sequence]:
        """The rows that take part."""
        return self.rows


Work = Prefill | Decode


class Scheduler:
    """Continuous batching over the slots of one decoder.

    Args:
        shape: the decoder's sizes.
        move: moves a row between slots in the decoder.
        refill: free slots to wait for before rows are admitted beside decoding ones.
    """

    def __init__(self, shape: DecoderShape, move: Callable[[int, int], None], refill: int = 1) -> None:
        self._shape = shape
        self._move = move
        self._refill = refill
        self.slots = SlotPool(shape.slots)
        self.lines: list[Line] = []

    def add_line(self, line: Line) -> None:
        """Serve the rows of `line` from now on."""
        self.lines = sorted([*self.lines, line], key=lambda other: -other.depth)

    def drop_line(self, line: Line) -> None:
        """No longer serve `line`; rows of it that are in slots go on."""
        self.lines = [other for other in self.lines if other is not line]

    @property
    def runnable(self) -> bool:
        """Whether `schedule` would give work."""
        return len(self.slots) > 0 or any(line.waiting and line.credit() > 0 for line in self.lines)

    @property
    def waiting(self) -> bool:
        """Whether any row waits for a slot."""
        return any(line.waiting for line in self.lines)

    def schedule(self, now: float) -> Work | None:
        """Admit rows, and say what the next call computes; None when there is nothing to do. `now`: seconds."""
        unfilled = self._admit(now)
        rows = self.slots.rows()
        prefilling = [row for row in rows if row.state is State.PREFILL]
        if prefilling:
            return Prefill(self._group(prefilling))
        if not rows:
            return None
        if self._shape.per_sequence and self._close_holes():
            rows = self.slots.rows()
        return Decode(rows, {unfilled: self.slots.free} if self.slots.free else {})

    def release(self, row: Sequence) -> None:
        """A row has left its slot."""
        self.slots.release(row)

    def _admit(self, now: float) -> Unfilled:
        """Fill the free slots; returns why those that stay free do."""
        if len(self.slots) and self.slots.free < self._refill and self.waiting:
            return Unfilled.REFILL
        for line in self.lines:
            while self.slots.free and line.waiting and line.credit() > 0:
                row = line.waiting.popleft()
                line.admitted += 1
                self.slots.allocate(row)
                row.admitted_at = now
                # A last prompt token that stands alone is decoded among the others: the backend computes one lone
                # token with other kernels, and the bits would differ.
                row.state = State.PREFILL if row.prompt_left > 1 else State.DECODE
        if self.waiting:
            return Unfilled.CREDIT
        return Unfilled.TAIL if all(line.ended for line in self.lines) else Unfilled.INPUT

    def _group(self, rows: list[Sequence]) -> list[Span]:
        """Spans that are one micro-batch: in the per-sequence layout equal counts in consecutive slots."""
        if not self._shape.per_sequence:
            return self._fitting(rows, self._shape.n_batch)
        first = self._piece(rows[0])
        spans = [Span(rows[0], first)]
        for row in rows[1:]:
            total = first * (len(spans) + 1)
            if row.slot != spans[-1].row.slot + 1 or self._piece(row) != first or total > self._shape.n_ubatch:
                break
            spans.append(Span(row, first))
        return spans

    def _fitting(self, rows: list[Sequence], room: int) -> list[Span]:
        spans: list[Span] = []
        for row in rows:
            piece = self._piece(row)
            if piece > room:
                break
            spans.append(Span(row, piece))
            room -= piece
        return spans

    def _piece(self, row: Sequence) -> int:
        # Cut at multiples of n_ubatch from the row's own start: a cut that depended on the neighbours would show in
        # the bits (flash attention has another kernel from 64 tokens up).
        return min(row.prompt_left, self._shape.n_ubatch)

    def _close_holes(self) -> bool:
        """Move the highest rows into the lowest free slots; a hole would cut the step into several micro-batches."""
        moved = False
        while (hole := self.slots.hole()) is not None:
            row, target = hole
            self._move(row.slot, target)
            self.slots.relocate(row)
            moved = True
        return moved
