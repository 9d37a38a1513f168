"""Dedup: keeps the first of several equal or similar rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from operators.rows.batches import HeldRows, split
from operators.rows.duplicates import HASH, HASH_BYTES, SIGNATURE, Near, NearTexts, SeenHashes, Signature
from pipeline.api.errors import ConfigError
from pipeline.api.protocols import BaseOperator
from pipeline.api.records import ROW, Batch, Output, require_column


class Dedup(BaseOperator):
    """Keeps the first of rows that are equal, or nearly so, over the whole run; the others become rejects of kind
    `filtered`. The first is the one with the smallest (row, lineage), not the one that arrives first: rows are held
    back until their chunk ends. A row is compared with rows that are kept, and with no others.

    What it remembers is committed with each chunk, and only what the chunk adds is written. Memory grows with the rows
    that are kept: 16 bytes each for `columns`, and about 5 kB each for `near` (128 permutations). Columns are kept as
    hashes of 128 bits, and never as texts.

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
        self._near_column = None if near is None else near.column
        self._texts = None if near is None else NearTexts(near)
        self._seen = SeenHashes()
        self._hash_bytes = HASH_BYTES if columns else 0
        self._signature_bytes = 0 if near is None else near.permutations * SIGNATURE.itemsize
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
        seen = self._seen.contain(np.array(keys, HASH))
        texts = batch.data.column(self._near_column).to_pylist() if self._near_column is not None else keys
        kept: dict[bytes, None] = {}  # a set in its order
        signatures: list[Signature] = []
        reasons: list[str | None] = []
        for key, is_seen, text in zip(keys, seen.tolist(), texts, strict=True):
            if is_seen or (key and key in kept):
                reasons.append(f"equal to an earlier row in {', '.join(self._columns)}")
            elif self._is_near(text or "", signatures):
                reasons.append(f"nearly equal to an earlier row in {self._near_column}")
            else:
                reasons.append(None)
                if key:
                    kept[key] = None
        hashes = b"".join(kept)
        self._seen.add(np.frombuffer(hashes, HASH))
        self._added[chunk] = hashes + b"".join(s.tobytes() for s in signatures)
        yield from split(batch, np.array([why is None for why in reasons]), [why for why in reasons if why])

    def state(self, chunk: int) -> bytes:
        """Return the hashes of the rows of `chunk` that were kept, followed by their signatures."""
        return self._added.pop(chunk)

    def restore(self, states: Iterable[bytes]) -> None:
        for added in states:
            rows = len(added) // (self._hash_bytes + self._signature_bytes)
            hashes = rows * self._hash_bytes
            self._seen.add(np.frombuffer(added[:hashes], HASH))
            if self._texts is not None and rows:
                for signature in np.frombuffer(added[hashes:], SIGNATURE).reshape(rows, -1):
                    self._texts.keep(signature)

    def _is_near(self, text: Any, signatures: list[Signature]) -> bool:
        """Return True if a similar text was kept before; else keep this one, and append its signature."""
        if self._texts is None:
            return False
        signature = self._texts.signature(text)
        if self._texts.has_like(signature):
            return True
        self._texts.keep(signature)
        signatures.append(signature)
        return False

    def _keys(self, batch: Batch) -> list[bytes]:
        """Return the hash of each row; empty if only `near` is set."""
        if not self._columns:
            return [b""] * batch.num_rows
        columns = [batch.data.column(name).to_pylist() for name in self._columns]
        return [_hash(values) for values in zip(*columns, strict=True)]


def _hash(values: Sequence[Any]) -> bytes:
    # JSON tells 1 from "1" and null; values that it has no type for (bytes, times, decimals) are written by repr().
    written = json.dumps(values, default=repr).encode()
    return hashlib.blake2b(written, digest_size=HASH_BYTES).digest()
