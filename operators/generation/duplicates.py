"""Duplicate rows, which are generated once, and rows that draw the same random numbers by mistake, which are
counted."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np

from operators.engine.sequence import Sequence

PLACES = 2**18


class Duplicates:
    """The rows of a node in flight, by everything that can change their text: prompt, sampling values, and the seed
    unless greedy.

    Args:
        enabled: false treats no rows as duplicates.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._others: dict[Hashable, list[Sequence]] = {}
        self.waiting = 0
        """Number of rows that wait for an identical one."""
        self.served = 0
        """Number of rows completed from an identical one."""

    def joins(self, row: Sequence) -> bool:
        """Let `row` wait for an identical row in flight, and return True; without one, let later rows wait for
        `row`."""
        if not self._enabled:
            return False
        identity = _identity(row)
        others = self._others.get(identity)
        if others is None:
            self._others[identity] = []
            return False
        others.append(row)
        self.waiting += 1
        return True

    def of(self, row: Sequence) -> list[Sequence]:
        """Finish the rows that waited for the finished `row`, and return them."""
        others = self._others.pop(_identity(row), []) if self._enabled else []
        for other in others:
            other.tokens = row.tokens
            other.stops, other.sampling.scores, other.fits = row.stops, row.sampling.scores, row.fits
            other.dropped = row.dropped
            other.finish_reason, other.error = row.finish_reason, row.error
            other.times.admitted = other.times.first_token = other.times.finished = row.times.finished
        self.waiting -= len(others)
        self.served += len(others)
        return others


def _identity(row: Sequence) -> Hashable:
    """Return a key that is equal for rows with the same result: their limit of tokens, and their content key or its
    parts. Parameters are compared as objects: rows with equal ones mostly share the object."""
    if row.key:
        return row.max_tokens, row.key
    stops = None if row.stops is None else (tuple(row.stops.stops), row.stops.keep)
    return row.max_tokens, row.prompt.tobytes(), id(row.params), stops, None if row.params.greedy else row.seed


class RepeatedDraws:
    """Counts rows that draw the same numbers for the same prompt as an earlier row; or that have its seed at all, where
    seeds are made of ids, which are to differ.

    It takes 2 MiB for any number of rows: each row's hash is kept in one place, until another row takes that place. So
    the count is a lower bound, and exact if there are far fewer rows than PLACES.
    """

    def __init__(self, *, of_ids: bool) -> None:
        self._of_ids = of_ids
        self._hashes = np.zeros(PLACES, np.int64)
        self.count = 0

    def note(self, rows: Iterable[Sequence]) -> None:
        """Count the repeats among `rows`. Greedy rows draw no numbers, but have ids."""
        for row in rows:
            if self._of_ids or not row.params.greedy:
                found = hash(row.seed if self._of_ids else (row.seed, id(row.params), row.prompt.tobytes()))
                place = found % PLACES
                self.count += bool(self._hashes[place] == found)
                self._hashes[place] = found

    def warning(self, id_column: str | None) -> str | None:
        """Return a warning with the number of repeats and their cause (`id_column`, or a column of seeds); None if
        there are none."""
        if not self.count:
            return None
        if self._of_ids:
            return (
                f"at least {self.count} rows have the id of an earlier row in '{id_column}' (data.id_column), and so"
                " its seed: equal prompts get equal texts. Give each row an id of its own, or set data.id_column=null"
                " to seed rows by their position"
            )
        same = f"at least {self.count} rows have the seed and the prompt of an earlier row, and so the same text"
        return f"{same}: their values in column 'seed' repeat"
