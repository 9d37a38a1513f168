"""SeenHashes: a set of 128-bit hashes with a number each, for millions of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

HASH_BYTES = 16
HASH = np.dtype(f"S{HASH_BYTES}")
"""NumPy compares it byte by byte. It strips trailing zero bytes from a single value, but not in an array."""


class SeenHashes:
    """Numbers by their 128-bit hashes; the chance of a collision among a billion is 1 in 10**21.

    It keeps sorted runs, each at least twice as long as the next one: a new run is merged with those not longer
    (Bentley and Saxe 1980, the logarithmic method). A look-up is a binary search in each. While two long runs are
    merged, the memory doubles for a moment.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[npt.NDArray[np.bytes_], npt.NDArray[np.int64]]] = []

    def add(self, hashes: npt.NDArray[np.bytes_], numbers: npt.NDArray[np.int64]) -> None:
        """Add `hashes` (HASH [n]), none of which may be there, with their `numbers` (int64 [n])."""
        run, numbers = _sorted(hashes, numbers)
        while self._runs and len(self._runs[-1][0]) < 2 * len(run):
            longer, others = self._runs.pop()
            run, numbers = _sorted(np.concatenate([longer, run]), np.concatenate([others, numbers]))
        if len(run):
            self._runs.append((run, numbers))

    def find(self, hashes: npt.NDArray[np.bytes_]) -> npt.NDArray[np.int64]:
        """Return the number of each of `hashes` (HASH [n]), or -1: int64 [n]."""
        matches = np.full(len(hashes), -1)
        for run, numbers in self._runs:
            places = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
            matches = np.where(run[places] == hashes, numbers[places], matches)
        return matches


def _sorted(
    hashes: npt.NDArray[np.bytes_], numbers: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[np.int64]]:
    order = np.argsort(hashes, kind="stable")  # a stable sort merges two sorted halves
    return hashes[order], numbers[order]
