"""SlotPool: the slots of a decoder; Counts: what happened to the sequences in them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from operators.engine.backend.interface import Decoder
from operators.engine.sequence import Sequence
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

    @property
    def adapters(self) -> int | None:
        """The adapters of its sequences, where they are the same for all; None: there are none."""
        return next((slot.row.adapters for slot in self.slots if slot.row is not None), None)

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
