"""A set of hashes that costs what the hashes do: 16 bytes each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

HASH_BYTES = 16
HASH = np.dtype(f"S{HASH_BYTES}")
"""NumPy orders and compares it byte by byte. It drops zero bytes at the end of one, but not of a whole array."""


class SeenHashes:
    """Which hashes have been seen. 128 bits: among a billion different ones no two are the same but with a chance of
    1 in 10**21.

    Sorted runs, each at least twice as long as the next one: what comes is merged with the runs that are not longer
    (Bentley and Saxe 1980, the logarithmic method). A look-up is a binary search in each. While two long runs are
    merged, there are up to twice as many bytes for a moment.
    """

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.bytes_]] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, hashes: npt.NDArray[np.bytes_]) -> None:
        """Put in `hashes` (HASH [n]), none of which is in yet."""
        run = np.sort(hashes)
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = np.concatenate([self._runs.pop(), run])
            run.sort(kind="stable")  # two sorted halves are merged, not sorted
        if len(run):
            self._runs.append(run)

    def contain(self, hashes: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
        """Which of `hashes` (HASH [n]) are in: bool [n]."""
        found = np.zeros(len(hashes), bool)
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
            found |= run[places] == hashes
        return found
