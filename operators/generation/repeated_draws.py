"""Rows that draw the same numbers for the same prompt as an earlier row, and so become the same text."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from operators.engine.sequence import Sequence

PLACES = 2**18


class RepeatedDraws:
    """Counts such rows in 2 MiB, however many rows there are: each row's hash is kept in one place, until another row
    takes that place. So the count is a lower bound, and exact as long as there are far fewer rows than PLACES."""

    def __init__(self) -> None:
        self._hashes = np.zeros(PLACES, np.int64)
        self.count = 0

    def note(self, rows: Iterable[Sequence]) -> None:
        """Look at `rows`. Greedy ones draw nothing."""
        for row in rows:
            if not row.params.greedy:
                found = hash((row.seed, id(row.params), row.prompt.tobytes()))
                place = found % PLACES
                self.count += bool(self._hashes[place] == found)
                self._hashes[place] = found
