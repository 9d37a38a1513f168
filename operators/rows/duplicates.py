"""The rows that Dedup keeps: hashes to find equal ones, and signatures to find near duplicates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.settings.checks import check
from pipeline.api.errors import ConfigError, install

HASH_BYTES = 16
HASH = np.dtype(f"S{HASH_BYTES}")
"""NumPy compares it byte by byte. It strips trailing zero bytes from a single value, but not in an array."""
SIGNATURE = np.dtype("<u4")
"""datasketch uses 64 bits per number, but the upper half is always zero."""
Signature = npt.NDArray[np.uint32]


class SeenHashes:
    """A set of 128-bit hashes; the chance of a collision among a billion rows is 1 in 10**21.

    It keeps sorted runs, each at least twice as long as the next one: a new run is merged with those not longer
    (Bentley and Saxe 1980, the logarithmic method). A look-up is a binary search in each. While two long runs are
    merged, the memory doubles for a moment.
    """

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.bytes_]] = []

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


@dataclass
class Near:
    """The measure of near duplicates (`near` of a Dedup).

    Args:
        column: a column of texts; null counts as an empty text.
        threshold: the share of shingles that two texts have in common (Jaccard similarity), above 0 and up to 1, from
            which on the later one is a duplicate. It is estimated, with an error of about 1 / sqrt(permutations).
        words: consecutive words that make a shingle. Case and white space do not count. Fewer find texts alike that
            only share words; a text of fewer words is one shingle.
        permutations: numbers of a signature. More estimate better, and cost memory and time in proportion.
    """

    column: str
    threshold: float = 0.8
    words: int = 3
    permutations: int = 128

    def __post_init__(self) -> None:
        check(0 < self.threshold <= 1, "near.threshold", self.threshold, "it is above 0 and up to 1")
        check(self.words >= 1, "near.words", self.words, "it is 1 or more")
        check(self.permutations >= 16, "near.permutations", self.permutations, "it is 16 or more; 128 is usual")


class NearTexts:
    """The kept texts as MinHash signatures, in datasketch's index for locality-sensitive hashing.

    Raises:
        ConfigError: datasketch is not installed, or it has no index for such a threshold.
    """

    def __init__(self, near: Near) -> None:
        try:
            from datasketch import MinHash, MinHashLSH
        except ImportError as error:
            raise ConfigError(f"near needs the package datasketch: {install('dedup')}") from error
        self._near = near
        try:
            self._index: Any = MinHashLSH(threshold=near.threshold, num_perm=near.permutations)
        except ValueError as error:  # the best index would be a single band, which datasketch refuses
            raise ConfigError(
                f"near.threshold={near.threshold} is too high for {near.permutations} permutations: {error};"
                " lower it, or compare whole columns with columns: [...]"
            ) from error
        self._first: Any = MinHash(num_perm=near.permutations)
        self._kept: list[Signature] = []

    def signature(self, text: str) -> Signature:
        """Return the signature of a text: SIGNATURE [permutations]."""
        minhash = self._minhash(None)
        minhash.update_batch(set(shingles(text, self._near.words)))
        signature: Signature = minhash.hashvalues.astype(SIGNATURE)
        return signature

    def has_like(self, signature: Signature) -> bool:
        """Return True if a kept text is a near duplicate: if the estimated similarity of a candidate reaches the
        threshold."""
        found = self._index.query(self._minhash(signature))
        return any(np.mean(self._kept[i] == signature) >= self._near.threshold for i in found)

    def keep(self, signature: Signature) -> None:
        """Add the signature of a kept text."""
        self._index.insert(len(self._kept), self._minhash(signature), check_duplication=False)
        self._kept.append(signature)

    def _minhash(self, signature: Signature | None) -> Any:
        """Make datasketch's object for a signature, or for no text, by copying one: making new permutations takes
        longer than hashing a text."""
        minhash = self._first.copy()
        if signature is not None:
            minhash.hashvalues = signature.astype(np.uint64)
        return minhash


def shingles(text: str, words: int) -> Iterator[bytes]:
    """Yield every `words` consecutive words of `text`."""
    found = text.lower().split()
    for i in range(max(1, len(found) - words + 1)):
        yield " ".join(found[i : i + words]).encode()
