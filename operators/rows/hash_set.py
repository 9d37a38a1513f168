"""A set of hashes that costs what the hashes do: 16 bytes each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

HASH_BYTES = 16
HASH = np.dtype(f"S{HASH_BYTES}")
"""NumPy orders and compares it byte by byte. It drops zero bytes at the end of one, but not of a whole array."""


class SeenHashes:
    """A set of hashes of 128 bits: the chance that two of a billion different rows have the same is 1 in 10**21.

    Kept are sorted runs, each at least twice as long as the next one: a new run is merged with those not longer
    (Bentley and Saxe 1980, the logarithmic method). A look-up is a binary search in each. While two long runs are
    merged, the memory doubles for a moment.
    """

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.bytes_]] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, hashes: npt.NDArray[np.bytes_]) -> None:
        """Add `hashes` (HASH [n]), none of which is in the set."""
        run = np.sort(hashes)
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = np.concatenate([self._runs.pop(), run])
            run.sort(kind="stable")  # two sorted halves are merged, not sorted
        if len(run):
            self._runs.append(run)

    def contain(self, hashes: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
        """For each of `hashes` (HASH [n]) whether it is in the set: bool [n]."""
        found = np.zeros(len(hashes), bool)
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
            found |= run[places] == hashes
        return found
