"""Rows that are bound to come out the same: one is generated, the others become what it becomes."""

from __future__ import annotations

from operators.decoding.sequence import Sequence


class Twins:
    """The rows that a node has in flight, by content key.

    Two rows have one key if everything that can change their text is equal: the prompt, the sampling values, and the
    seed unless they are greedy.

    Args:
        enabled: whether to look for them at all.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._others: dict[bytes, list[Sequence]] = {}
        self.waiting = 0
        """Rows that wait for another one."""
        self.served = 0
        """Rows that became what another one became."""

    def joins(self, row: Sequence) -> bool:
        """Whether `row` waits for one that is generated already; if not, others may wait for it from now on."""
        if not self._enabled:
            return False
        others = self._others.get(row.key)
        if others is None:
            self._others[row.key] = []
            return False
        others.append(row)
        self.waiting += 1
        return True

    def of(self, row: Sequence) -> list[Sequence]:
        """`row` is finished: those that waited for it, as finished as it is."""
        others = self._others.pop(row.key, [])
        for other in others:
            other.tokens = row.tokens
            other.stops, other.scores, other.fits = row.stops, row.scores, row.fits
            other.finish_reason, other.error = row.finish_reason, row.error
            other.admitted_at = other.first_token_at = other.finished_at = row.finished_at
        self.waiting -= len(others)
        self.served += len(others)
        return others
