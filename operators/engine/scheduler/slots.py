"""Which sequence is in which slot, and whose prompt is still there."""

from __future__ import annotations

import heapq

from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import Slot


class SlotPool:
    """The sequence ids of a decoder. The lowest free id is given first, so that rows stay close together."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.slots = [Slot(self, index) for index in range(size)]
        self._free = list(range(size))
        self._used: set[int] = set()

    def __len__(self) -> int:
        return len(self._used)

    @property
    def free(self) -> int:
        """Slots without a row."""
        return self.size - len(self._used)

    def rows(self) -> list[Sequence]:
        """The rows in the order of their slots."""
        return [row for slot in self.slots if (row := slot.row) is not None]

    def allocate(self, row: Sequence, wanted: Slot | None = None) -> Slot:
        """Give `row` the slot that is `wanted`, which is free, or else the lowest free one."""
        if wanted is None:
            slot = self.slots[heapq.heappop(self._free)]
        else:
            slot = wanted
            self._free.remove(slot.index)
            heapq.heapify(self._free)
        slot.row = row
        row.slot = slot.index
        self._used.add(slot.index)
        return slot

    def release(self, row: Sequence) -> Slot:
        """Take `row` out of its slot; returns the slot."""
        slot = self.slots[row.slot]
        slot.row = None
        self._used.remove(slot.index)
        heapq.heappush(self._free, slot.index)
        return slot

    def row_of(self, slot: Slot) -> Sequence:
        """The row in `slot`.

        Raises:
            RuntimeError: it is empty.
        """
        if slot.row is None:
            raise RuntimeError(f"slot {slot.index} is empty")
        return slot.row

    def hole(self) -> tuple[Slot, Slot] | None:
        """The highest slot with a row and the lowest free slot below it, if there is one."""
        if not self._used or not self._free:
            return None
        highest = max(self._used)
        return (self.slots[highest], self.slots[self._free[0]]) if self._free[0] < highest else None

    def lonely(self) -> bool:
        """Whether some row has no row in the slots next to it."""
        used = self._used
        return any(slot - 1 not in used and slot + 1 not in used for slot in used)

    def check(self) -> None:
        """Raise RuntimeError if slots were lost or given twice. Cheap enough for tests after every step."""
        taken = {slot.index for slot in self.slots if slot.row is not None}
        if sorted([*self._free, *self._used]) != list(range(self.size)) or taken != self._used:
            raise RuntimeError(f"slots are not whole: free {sorted(self._free)}, used {sorted(self._used)}")
        if any(slot.row is not None and slot.row.slot != slot.index for slot in self.slots):
            raise RuntimeError("a row does not know its slot")
