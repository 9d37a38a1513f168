"""The identity of a row: `row`, and `lineage`, which distinguishes rows made from one source row; and 64-bit hashes of
it, independent of machine and order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import LINEAGE, ROW

IDENTITY = (ROW.name, LINEAGE.name)
"""Columns that identify a row."""


def refuse_identity(names: Iterable[str], what: str) -> None:
    """Raise ConfigError if one of `names` is `row` or `lineage`. `what`: completes "cannot be ..."."""
    if taken := [name for name in names if name in IDENTITY]:
        raise ConfigError(f"'{taken[0]}' says which row it is; `row` and `lineage` cannot be {what}")


def with_lineage(fields: Iterable[pa.Field]) -> pa.Schema:
    """Return a schema of `fields`, with `lineage` after `row`."""
    others = [f for f in fields if f.name != LINEAGE.name]
    others.insert([f.name for f in others].index(ROW.name) + 1, LINEAGE)
    return pa.schema(others)


def repeated(counts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return the parent of each new row, of parents that become `counts` rows each, and its number there, from 0."""
    parents = np.repeat(np.arange(len(counts)), counts)
    numbers = np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts)
    return parents, numbers.astype(np.int32)


def append_to_lineage(lineage: pa.ListArray | None, numbers: npt.NDArray[np.int32]) -> pa.ListArray:
    """Append one of `numbers` (int32 [rows]) to each list of `lineage` (list<int32>; None or null counts as empty)."""
    rows = len(numbers)
    if lineage is not None and lineage.null_count:
        lineage = pa.array([v or [] for v in lineage.to_pylist()], LINEAGE.type)
    old = np.zeros(rows + 1, np.int32) if lineage is None else lineage.offsets.to_numpy()
    values = np.zeros(0, np.int32) if lineage is None else lineage.values.to_numpy()[old[0] : old[-1]]
    joined = np.insert(values, old[1:] - old[0], numbers)
    offsets = old - old[0] + np.arange(rows + 1, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(joined, pa.int32()))


def identities(data: pa.RecordBatch) -> list[tuple[int, tuple[int, ...]]]:
    """Return (row, lineage) of each row; the lineage is empty where there is none."""
    rows = data.column(ROW.name).to_pylist()
    lineages = data.column(LINEAGE.name).to_pylist() if LINEAGE.name in data.schema.names else [None] * len(rows)
    return [(row, tuple(lineage or ())) for row, lineage in zip(rows, lineages, strict=True)]


def samples(data: pa.RecordBatch) -> dict[tuple[int, tuple[int, ...]], list[int]]:
    """Group the rows of `data`, sorted by (row, lineage), that differ in nothing but the last number of their lineage:
    the samples of a prompt, or its branches. Returns the indices of each group in order, by row and the rest of the
    lineage, which identify the group."""
    groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for i, (row, lineage) in enumerate(identities(data)):
        groups.setdefault((row, lineage[:-1]), []).append(i)
    return groups


def require_samples(schema: pa.Schema, purpose: str) -> None:
    """Raise SchemaError unless `schema` has a lineage. `purpose`: completes "there are no samples to ..."."""
    if LINEAGE.name not in schema.names:
        raise SchemaError(f"there are no samples to {purpose}; sampling.n=2 or more makes several of each prompt")


def hash_of(text: str) -> int:
    """Hash a text to 64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply SplitMix64's finaliser (Steele et al. 2014), a bijection of uint64: each bit depends on every bit."""
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
