"""Duplicate rows, which are generated once, and rows that draw the same random numbers by mistake, which are
counted."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic

import numpy as np

from operators.engine.sequence import Sequence
from operators.generation.requests import R

PLACES = 2**18


class Duplicates(Generic[R]):
    """The rows of a node in flight, by everything that can change their text: prompt, sampling values, and the seed
    unless greedy. `enabled`: false treats no rows as duplicates."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._others: dict[Hashable, list[R]] = {}
        self.waiting = 0
        """Number of rows that wait for an identical one."""
        self.served = 0
        """Number of rows completed from an identical one."""
        self._again: list[R] = []

    def joins(self, row: R) -> bool:
        """Let `row` wait for an identical row in flight, and return True; without one, let later rows wait for
        `row`."""
        if not self._enabled:
            return False
        identity = row.identity
        others = self._others.get(identity)
        if others is None:
            self._others[identity] = []
            return False
        others.append(row)
        self.waiting += 1
        return True

    def of(self, row: R) -> list[R]:
        """Finish the rows that waited for the finished `row`, and return them; where its error is its own, the first of
        them is to be computed instead (`again`)."""
        others = self._others.pop(row.identity, []) if self._enabled else []
        if others and row.own_error:
            self._again.append(others[0])
            self._others[others[0].identity] = others[1:]
            self.waiting -= 1
            return []
        for other in others:
            other.finish_like(row)
        self.waiting -= len(others)
        self.served += len(others)
        return others

    def again(self) -> list[R]:
        """Return the rows that are to be computed after all, once each."""
        rows, self._again = self._again, []
        return rows


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
                asked = id(row.params), row.adapters, row.prompt.tobytes()
                digest = hash(row.seed if self._of_ids else (row.seed, *asked))
                place = digest % PLACES
                self.count += bool(self._hashes[place] == digest)
                self._hashes[place] = digest

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
