"""Slots (SlotPool) and cells of the KV cache (KvBudget), and the sequences that lost theirs (Preempted)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from operators.engine.backend.interface import Decoder, DecoderShape
from operators.engine.scheduler import policy
from operators.engine.scheduler.policy import KvState
from operators.engine.sequence import Sequence, State
from operators.engine.sequence.placement import Slot
from pipeline.api.numbers import counted


@dataclass
class Counts:
    """Counts since the engine began."""

    shared_tokens: int = counted("prompt tokens from the prefix cache", "tokens")
    copies: int = counted("rows copied between slots to share a prefix", "rows")
    moves: int = counted("rows moved to close a hole between slots", "rows")
    snapshots_taken: int = counted("snapshots of prefixes taken", "snapshots")
    snapshots_used: int = counted("rows that began from a snapshot of a prefix", "rows")
    snapshots_evicted: int = counted("snapshots of prefixes dropped for others or as unusable", "snapshots")
    preempted: int = counted("rows that lost their slot and computed their tokens again", "rows")
    failed_calls: int = counted("calls that the backend refused; rows were computed in smaller ones", "calls")


class SlotPool:
    """The sequence ids of a decoder. The lowest free one is given first, so that sequences stay close together.

    Attributes:
        size: number of slots.
        spare: the id after the last slot, for the dummy token of a decoder with one slot.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.size = decoder.shape.slots
        self.slots = [Slot(decoder, index) for index in range(self.size)]
        self.spare = Slot(decoder, self.size)
        self._free = list(range(self.size))

    def __len__(self) -> int:
        return self.size - len(self._free)

    @property
    def free(self) -> int:
        return len(self._free)

    def rows(self) -> list[Sequence]:
        """Return the sequences in slot order."""
        return [row for slot in self.slots if (row := slot.row) is not None]

    def allocate(self, row: Sequence, wanted: Slot | None = None) -> Slot:
        """Give `row` the free slot `wanted`, or else the lowest free one."""
        if wanted is None:
            slot = self.slots[heapq.heappop(self._free)]
        else:
            slot = wanted
            self._free.remove(slot.index)
            heapq.heapify(self._free)
        slot.row, row.slot = row, slot
        return slot

    def release(self, row: Sequence) -> Slot:
        """Take `row` out of its slot; return the slot."""
        slot = row.slot
        slot.row = None
        del row.slot
        heapq.heappush(self._free, slot.index)
        return slot

    def hole(self) -> tuple[Sequence, Slot] | None:
        """Return the sequence in the highest slot and the lowest free slot below it; None if there is no hole."""
        if not self._free or not len(self):
            return None
        highest = next(row for slot in reversed(self.slots) if (row := slot.row) is not None)
        return (highest, self.slots[self._free[0]]) if self._free[0] < highest.slot.index else None

    def lonely(self) -> bool:
        """True if a sequence has no neighbour in an adjacent slot."""
        taken = {slot.index for slot in self.slots if slot.row is not None}
        return any(index - 1 not in taken and index + 1 not in taken for index in taken)


class KvBudget:
    """The cells of a decoder.

    In the per-sequence layout every slot has room for a sequence of the greatest length, so nothing is decided here. In
    the unified layout all slots share the cells. By default a sequence is admitted if its greatest length fits beside
    the greatest lengths of the others; with `optimistic` if its expected length does, estimated from finished
    sequences. Cells shared by sequences are counted for each.

    Args:
        shape: the decoder's sizes.
        optimistic: reserve cells by expected lengths; sequences may then be preempted.
    """

    def __init__(self, shape: DecoderShape, optimistic: bool) -> None:
        self._cells = None if shape.per_sequence else shape.cells
        self._optimistic = optimistic
        self._finished = 0
        self._finished_tokens = 0

    @property
    def is_shared(self) -> bool:
        """True if sequences compete for cells."""
        return self._cells is not None

    def shrink(self, rows: Seq[Sequence]) -> None:
        """Lower the budget to the cells that `rows` have now, since the backend has no room for more; but let the
        longest fit alone."""
        if self._cells is not None:
            held = sum(row.slot.num_cached for row in rows)
            self._cells = min(self._cells, max(held, *(row.cells(row.max_tokens) for row in rows)))

    def reserve(self, rows: Iterable[Sequence]) -> KvState:
        """Return the cells, and the reservations of `rows`."""
        mean = self._finished_tokens / self._finished if self._finished else None
        state = KvState(self._cells, 0, self._optimistic, mean)
        if self._cells is None:
            return state
        return replace(state, reserved=sum(policy.reservation(row, state) for row in rows))

    def left(self, rows: Seq[Sequence], most: int) -> int:
        """Return how many tokens may be computed beside those that `rows` have in the cache, at most `most`. A lone
        sequence may take all: the backend then says if it does not fit."""
        if self._cells is None or len(rows) < 2:
            return most
        return min(most, self._cells - sum(row.slot.num_cached for row in rows))

    def finished(self, row: Sequence) -> None:
        """Learn from the length of `row`."""
        self._finished += 1
        self._finished_tokens += len(row.tokens)


class Preempted:
    """Sequences that lost their slots, to be resumed when there is room, in order of admission. They compute their
    tokens again.

    Args:
        counts: `preempted` is incremented here.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self.rows: list[Sequence] = []

    def add(self, row: Sequence) -> None:
        """Add `row`, which leaves its slot."""
        row.placement.preemptions += 1
        row.state = State.WAITING
        self._counts.preempted += 1
        self.rows.append(row)

    def next(self) -> Sequence | None:
        """Return the sequence to resume next."""
        return min(self.rows, key=lambda row: row.placement.admission, default=None)

    def resume(self, row: Sequence) -> None:
        """Resume `row`, which is in an empty slot."""
        self.rows.remove(row)
        row.update_state()

    def forget(self, belongs: Callable[[Sequence], bool]) -> list[Sequence]:
        """Remove the sequences for which `belongs` is true, and return them."""
        left = [row for row in self.rows if belongs(row)]
        self.rows = [row for row in self.rows if not belongs(row)]
        return left
