"""A set of 128-bit hashes in NumPy arrays, at 16 bytes per hash."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

HASH_BYTES = 16
HASH = np.dtype(f"S{HASH_BYTES}")
"""NumPy compares it byte by byte. It strips trailing zero bytes from a single value, but not in an array."""


class SeenHashes:
    """A set of 128-bit hashes; the chance of a collision among a billion rows is 1 in 10**21.

    It keeps sorted runs, each at least twice as long as the next one: a new run is merged with those not longer
    (Bentley and Saxe 1980, the logarithmic method). A look-up is a binary search in each. While two long runs are
    merged, the memory doubles for a moment.
    """

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.bytes_]] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, hashes: npt.NDArray[np.bytes_]) -> None:
        """Add `hashes` (HASH [n]), none of which may be in the set."""
        run = np.sort(hashes)
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = np.concatenate([self._runs.pop(), run])
            run.sort(kind="stable")  # a stable sort merges two sorted halves
        if len(run):
            self._runs.append(run)

    def contain(self, hashes: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
        """Test each of `hashes` (HASH [n]) for membership: bool [n]."""
        found = np.zeros(len(hashes), bool)
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
            found |= run[places] == hashes
        return found
