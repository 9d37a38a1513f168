"""The rows that Dedup keeps: signatures to find near duplicates, and which rows they are."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.settings.checks import check
from pipeline.api.errors import ConfigError, install

SIGNATURE = np.dtype("<u4")
"""datasketch uses 64 bits per number, but the upper half is always zero."""
Signature = npt.NDArray[np.uint32]
Identity = tuple[int, Sequence[int]]
"""Row and lineage."""
_Identities = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.int32]]
"""Rows, the lengths of their lineages, and the numbers of all lineages."""
_SIZES = struct.Struct("<II")
"""Before packed identities: the number of rows, and of the numbers in all their lineages."""


class KeptRows:
    """The identities of the kept rows by their numbers from 0: 9 bytes each, and 4 for each number of a lineage."""

    def __init__(self) -> None:
        self.count = 0
        self._firsts: list[int] = []
        self._chunks: list[_Identities] = []

    def add(self, identities: Sequence[Identity]) -> bytes:
        """Add the rows that a chunk adds. Returns them as bytes, for `restore`."""
        rows = np.array([row for row, _ in identities], "<i8")
        lengths = np.array([len(lineage) for _, lineage in identities], "u1")
        numbers = np.array([number for _, lineage in identities for number in lineage], "<i4")
        packed = b"".join([_SIZES.pack(len(rows), len(numbers)), rows.tobytes(), lengths.tobytes(), numbers.tobytes()])
        self.restore(packed)
        return packed

    def restore(self, packed: bytes) -> int:
        """Add the rows that were packed at the beginning of `packed`. Returns how many bytes they take."""
        rows, numbers = _SIZES.unpack_from(packed)
        size = int(_SIZES.size + 9 * rows + 4 * numbers)
        copied = packed[:size]  # a view would keep all of `packed` in memory
        identities = (
            np.frombuffer(copied, "<i8", rows, _SIZES.size),
            np.frombuffer(copied, "u1", rows, _SIZES.size + 8 * rows),
            np.frombuffer(copied, "<i4", numbers, _SIZES.size + 9 * rows),
        )
        if rows:
            self._firsts.append(self.count)
            self._chunks.append(identities)
            self.count += rows
        return size

    def name(self, number: int) -> str:
        """Return the identity of a kept row in words: `row 12` or `row 12, lineage [0, 2],`."""
        chunk = bisect_right(self._firsts, number) - 1
        i = number - self._firsts[chunk]
        rows, lengths, numbers = self._chunks[chunk]
        first = int(lengths[:i].sum())
        lineage = numbers[first : first + lengths[i]].tolist()
        return f"row {rows[i]}, lineage {lineage}," if lineage else f"row {rows[i]}"


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

    def nearest(self, signature: Signature) -> tuple[int, float] | None:
        """Return the number of the most similar kept text, the earliest of several, and its estimated similarity; None
        if it does not reach the threshold."""
        near = [(float(np.mean(self._kept[i] == signature)), -i) for i in self._index.query(self._minhash(signature))]
        similarity, number = max(near, default=(0.0, 0))
        return (-number, similarity) if near and similarity >= self._near.threshold else None

    def keep(self, signature: Signature) -> None:
        """Add the signature of a kept text."""
        self._index.insert(len(self._kept), self._minhash(signature), check_duplication=False)
        self._kept.append(signature)

    def _minhash(self, signature: Signature | None) -> Any:
        """Make datasketch's object for a signature, or no text, as a copy: new permutations take longer than a text."""
        minhash = self._first.copy()
        if signature is not None:
            minhash.hashvalues = signature.astype(np.uint64)
        return minhash


def shingles(text: str, words: int) -> Iterator[bytes]:
    """Yield every `words` consecutive words of `text`."""
    parts = text.lower().split()
    for i in range(max(1, len(parts) - words + 1)):
        yield " ".join(parts[i : i + words]).encode()
