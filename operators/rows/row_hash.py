"""64-bit hashes of rows by their identity, independent of machine and order."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.api.records import LINEAGE


def hash_of(text: str) -> int:
    """Hash a text to 64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply SplitMix64's finaliser (Steele et al. 2014), a bijection of uint64 in which each bit depends on every
    bit."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def row_hashes(data: pa.RecordBatch, identities: npt.NDArray[np.uint64], base: int) -> npt.NDArray[np.uint64]:
    """Hash `base`, the identity and the lineage of each row: uint64 [rows].

    Args:
        data: the rows, for their lineage.
        identities: uint64 [rows], `row` or a substitute.
        base: 64 bits, the same for all rows.
    """
    hashes = mix(identities ^ np.uint64(base))
    if LINEAGE.name in data.schema.names:
        for i, lineage in enumerate(data.column(LINEAGE.name).to_pylist()):
            for number in lineage or ():
                hashes[i : i + 1] = mix(hashes[i : i + 1] + np.uint64(number + 1))
    return hashes
