"""Which sequence is in which slot."""

from __future__ import annotations

import heapq

from operators.decoding.sequence import Sequence


class SlotPool:
    """The sequence ids of a decoder. The lowest free id is given first, so that rows stay close together."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size))
        self._rows: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def free(self) -> int:
        """Slots without a row."""
        return self.size - len(self._rows)

    def rows(self) -> list[Sequence]:
        """The rows in the order of their slots."""
        return [self._rows[slot] for slot in sorted(self._rows)]

    def allocate(self, row: Sequence) -> int:
        """Give `row` the lowest free slot."""
        row.slot = heapq.heappop(self._free)
        self._rows[row.slot] = row
        return row.slot

    def release(self, row: Sequence) -> None:
        """Take `row` out of its slot."""
        del self._rows[row.slot]
        heapq.heappush(self._free, row.slot)

    def hole(self) -> tuple[Sequence, int] | None:
        """The row in the highest slot and the lowest free slot below it, if there is one."""
        if not self._rows or not self._free:
            return None
        highest = max(self._rows)
        return (self._rows[highest], self._free[0]) if self._free[0] < highest else None

    def relocate(self, row: Sequence) -> None:
        """Put `row` into the lowest free slot."""
        self.release(row)
        # Its own slot is free now, but a hole is lower.
        self.allocate(row)

    def check(self) -> None:
        """Raise RuntimeError if slots were lost or given twice. Cheap enough for tests after every step."""
        if sorted([*self._free, *self._rows]) != list(range(self.size)):
            raise RuntimeError(f"slots are not whole: free {sorted(self._free)}, used {sorted(self._rows)}")
        if any(row.slot != slot for slot, row in self._rows.items()):
            raise RuntimeError("a row does not know its slot")
