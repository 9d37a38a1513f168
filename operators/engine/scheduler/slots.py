"""SlotPool: the slots of a decoder; Counts: what happened to the sequences in them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from operators.engine.backend.interface import Decoder
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import Slot


@dataclass
class Counts:
    """Counts since the engine began."""

    shared_tokens: int = 0
    """Prompt tokens taken from another slot instead of computed."""
    copies: int = 0
    """Rows copied between slots to share a prefix."""
    moves: int = 0
    """Rows moved to close a hole."""
    snapshots_taken: int = 0
    """Snapshots taken of prefixes; only of recurrent and hybrid models."""
    snapshots_used: int = 0
    """Sequences that began from a snapshot."""
    snapshots_evicted: int = 0
    """Snapshots dropped to make room for others, or because they could not be restored."""
    preempted: int = 0
    """Sequences that lost their slot, to compute their tokens again."""
    failed_calls: int = 0
    """Calls that the backend refused; their rows were computed in smaller ones."""


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
