"""Dedup: keeps the first of several equal or similar rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from operators.rows.batches import HeldRows, split
from operators.rows.duplicates import SIGNATURE, KeptRows, Near, NearTexts, Signature
from operators.rows.lineage import identities
from pipeline.api import ROW, Batch, ConfigError, Operator, Output, Stateful, require_column
from pipeline.api.records import python_values
from pipeline.system.seen_hashes import HASH, HASH_BYTES, SeenHashes

_written = json.JSONEncoder(default=repr).encode
"""JSON tells 1 from "1" and null; values that it has no type for (bytes, times, decimals) are written by repr()."""


class Dedup(Operator, Stateful):
    """Keeps the first of rows that are equal, or nearly so, over the whole run; the others become rejects of kind
    `filtered`. The first is the one with the smallest (row, lineage), not the one that arrives first: rows are held
    back until their chunk ends. A row is compared with rows that are kept, and with no others. The reason names the
    kept row, `equal to row 12 in prompt`, or `0.87 like row 12 in completion`: the most similar one.

    What it remembers is committed with each chunk, and only what the chunk adds is written. Memory grows with the rows
    that are kept: some 35 bytes each for `columns` (4 more for each number of a lineage), and about 5 kB each for
    `near` (128 permutations). Columns are kept as hashes of 128 bits, and never as texts.

    Args:
        columns: rows are equal if these columns are. Null equals null.
        near: column, threshold, words and permutations: see operators.rows.duplicates.Near. Needs the extra
        `dedup`.

    Raises:
        ConfigError: neither is given, or datasketch is missing.

    Example:
        distinct:
          inputs: generate
          op:
            _target_: operators.dedup.Dedup
            columns: [prompt, completion]
            near: {column: completion, threshold: 0.8, words: 3}
    """

    append = True

    def __init__(self, columns: list[str] | None = None, near: Near | None = None) -> None:
        if not columns and near is None:
            raise ConfigError("give columns, near or both; columns: [prompt] keeps the first row of each prompt")
        self._columns = columns or []
        self._near_settings = near
        self._near_column = None if near is None else near.column
        self._texts = None if near is None else NearTexts(near)
        self._hashes = SeenHashes()
        self._rows = KeptRows()
        self._held = HeldRows()
        self._added: dict[int, bytes] = {}

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, ROW.name, [ROW.type])
        for name in self._columns:
            require_column(schema, name)
        if self._near_column is not None:
            require_column(schema, self._near_column, [pa.string()])
        return schema

    def process(self, batch: Batch) -> Iterable[Output]:
        self._held.hold(batch)
        return ()

    def finish(self, chunk: int) -> Iterable[Output]:
        batch = self._held.take(chunk)
        if batch is None:
            self._added[chunk] = b""
            return
        keys = self._keys(batch)
        earlier = self._hashes.find(np.array(keys, HASH))
        texts = batch.data.column(self._near_column).to_pylist() if self._near_column is not None else keys
        kept_before = self._rows.count
        kept: list[int] = []
        numbers: dict[bytes, int] = {}
        signatures: list[Signature] = []
        like: list[tuple[int, float | None] | None] = []  # by row, the kept row that it is like, and how near
        for i, (key, number, text) in enumerate(zip(keys, earlier.tolist(), texts, strict=True)):
            same = number if number >= 0 else numbers.get(key)
            like.append((same, None) if same is not None else self._near(text or "", signatures))
            if like[-1] is None:
                if key:
                    numbers[key] = kept_before + len(kept)
                kept.append(i)
        hashes = b"".join(numbers)
        self._hashes.add(np.frombuffer(hashes, HASH), np.arange(kept_before, kept_before + len(numbers)))
        each = identities(batch.data)
        rows = self._rows.add([each[i] for i in kept])
        self._added[chunk] = b"".join([rows, hashes, *(s.tobytes() for s in signatures)])
        reasons = [self._reason(*match) for match in like if match is not None]
        yield from split(batch, np.array([match is None for match in like]), reasons)

    def state(self, chunk: int) -> bytes:
        """Return the rows of `chunk` that were kept, followed by their hashes and their signatures."""
        return self._added.pop(chunk)

    def restore(self, states: Iterable[bytes]) -> None:
        for added in filter(None, states):
            kept_before = self._rows.count
            first = self._rows.restore(added)
            rows = self._rows.count - kept_before
            last = first + (rows * HASH_BYTES if self._columns else 0)
            self._hashes.add(np.frombuffer(added[first:last], HASH), np.arange(kept_before, self._rows.count))
            if self._texts is not None and rows:
                for signature in np.frombuffer(added[last:], SIGNATURE).reshape(rows, -1):
                    self._texts.keep(signature)

    def _near(self, text: str, signatures: list[Signature]) -> tuple[int, float | None] | None:
        """Return the most similar text kept before, if it is a near duplicate; else keep this one and its signature."""
        if self._texts is None:
            return None
        signature = self._texts.signature(text)
        match = self._texts.nearest(signature)
        if match is None:
            self._texts.keep(signature)
            signatures.append(signature)
        return match

    def _reason(self, number: int, similarity: float | None) -> str:
        row = self._rows.name(number)
        if similarity is None or self._near_settings is None:
            return f"equal to {row} in {', '.join(self._columns)}"
        near = self._near_settings
        return f"{similarity:.2f} like {row} in {near.column} (near duplicates: threshold {near.threshold:g})"

    def _keys(self, batch: Batch) -> list[bytes]:
        """Return the hash of each row; empty if only `near` is set."""
        if not self._columns:
            return [b""] * batch.num_rows
        columns = [python_values(batch.data.column(name)) for name in self._columns]
        return [_hash(values) for values in zip(*columns, strict=True)]


def _hash(values: Sequence[Any]) -> bytes:
    return hashlib.blake2b(_written(values).encode(), digest_size=HASH_BYTES).digest()
