"""Rows that are bound to come out the same: one is generated, the others become what it becomes."""

from __future__ import annotations

from collections.abc import Hashable

from operators.engine.sequence import Sequence


class Twins:
    """The rows that a node has in flight, by all that can change their text: the prompt, the sampling values, and the
    seed unless they are greedy.

    Args:
        enabled: whether to look for them at all.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._others: dict[Hashable, list[Sequence]] = {}
        self.waiting = 0
        """Rows that wait for another one."""
        self.served = 0
        """Rows that became what another one became."""

    def joins(self, row: Sequence) -> bool:
        """Whether `row` waits for one that is generated already; if not, others may wait for it from now on."""
        if not self._enabled:
            return False
        fate = _fate(row)
        others = self._others.get(fate)
        if others is None:
            self._others[fate] = []
            return False
        others.append(row)
        self.waiting += 1
        return True

    def of(self, row: Sequence) -> list[Sequence]:
        """`row` is finished: those that waited for it, as finished as it is."""
        others = self._others.pop(_fate(row), []) if self._enabled else []
        for other in others:
            other.tokens = row.tokens
            other.stops, other.sampling.scores, other.fits = row.stops, row.sampling.scores, row.fits
            other.dropped = row.dropped
            other.finish_reason, other.error = row.finish_reason, row.error
            other.times.admitted = other.times.first_token = other.times.finished = row.times.finished
        self.waiting -= len(others)
        self.served += len(others)
        return others


def _fate(row: Sequence) -> Hashable:
    """What two rows have in common that come out the same: where they are cut, and the content key or what is in it.
    Rows with equal parameters mostly share them as one object, which need not be compared."""
    if row.key:
        return row.max_tokens, row.key
    stops = None if row.stops is None else (tuple(row.stops.stops), row.stops.keep)
    return row.max_tokens, row.prompt.tobytes(), id(row.params), stops, None if row.params.greedy else row.seed
