"""Dedup: keeps the first of several rows that are equal, or nearly so, or that mean the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from operators.rows.batches import HeldRows, set_apart, split
from operators.rows.duplicates import SIGNATURE, KeptRows, Near, NearTexts, Signature
from operators.rows.lineage import identities
from operators.rows.semantic import ChunkVectors, KeptVectors, Semantic
from pipeline.api import ROW, Batch, ConfigError, MemoryNeed, Operator, Output, Stateful, UsesModel, require_column
from pipeline.api.records import python_values
from pipeline.system.seen_hashes import HASH, HASH_BYTES, SeenHashes

_written = json.JSONEncoder(default=repr).encode
"""JSON tells 1 from "1" and null; values that it has no type for (bytes, times, decimals) are written by repr()."""


class Dedup(Operator, Stateful, UsesModel):
    """Keeps the first of rows that are equal, or nearly so, or mean the same, over the whole run; the others become
    rejects of kind `filtered`. The first is the one with the smallest (row, lineage), not the one that arrives first:
    rows are held back until their chunk ends. A row is compared with rows that are kept, and with no others. The reason
    names the kept row, `equal to row 12 in prompt`, `0.87 like row 12 in completion` or `0.94 like row 12 in
    embedding`: the most similar one.

    What it remembers is committed with each chunk, and only what the chunk adds is written. Memory grows with the rows
    that are kept: some 35 bytes each for `columns` (4 more for each number of a lineage), about 5 kB each for `near`
    (128 permutations), and for `semantic` 4 bytes for each number of a vector. Columns are kept as hashes of 128 bits,
    and never as texts.

    Args:
        columns: rows are equal if these columns are. Null equals null.
        near: column, threshold, words and permutations: see operators.rows.duplicates.Near. Needs the extra
        `dedup`.
        semantic: column of vectors, threshold and most_rows: see operators.rows.semantic.Semantic, and
        docs/synthesis.md.

    Raises:
        ConfigError: none of them is given, or datasketch is missing.

    Example:
        distinct:
          inputs: generate
          op:
            _target_: operators.dedup.Dedup
            columns: [prompt, completion]
            near: {column: completion, threshold: 0.8, words: 3}
    """

    append = True

    def __init__(
        self, columns: list[str] | None = None, near: Near | None = None, semantic: Semantic | None = None
    ) -> None:
        if not columns and near is None and semantic is None:
            raise ConfigError("give columns, near or semantic; columns: [prompt] keeps the first row of each prompt")
        self._columns = columns or []
        self._near_settings = near
        self._near_column = None if near is None else near.column
        self._texts = None if near is None else NearTexts(near)
        self._vectors = None if semantic is None else KeptVectors(semantic)
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
        if self._vectors is not None:
            self._vectors.plan(schema)
        return schema

    def memory_needs(self) -> Iterable[MemoryNeed]:
        if self._vectors is not None:
            yield MemoryNeed(id(self), self._vectors.memory(), 0)

    def process(self, batch: Batch) -> Iterable[Output]:
        self._held.hold(batch)
        return ()

    def finish(self, chunk: int) -> Iterable[Output]:
        batch = self._held.take(chunk)
        if batch is None:
            self._added[chunk] = b""
            return
        vectors = None
        if self._vectors is not None:
            broken, vectors = self._vectors.read(batch.data)
            rejects, batch = set_apart(batch, broken)
            yield from rejects
        keys = self._keys(batch)
        earlier = self._hashes.find(np.array(keys, HASH))
        texts = batch.data.column(self._near_column).to_pylist() if self._near_column is not None else keys
        kept_before = self._rows.count
        kept: list[int] = []
        numbers: dict[bytes, int] = {}
        signatures: list[Signature] = []
        like: list[Duplicate | None] = []
        in_columns, by_hash_alone = f"in {', '.join(self._columns)}", self._texts is None and vectors is None
        for i, (key, number, text) in enumerate(zip(keys, earlier.tolist(), texts, strict=True)):
            same = number if number >= 0 else numbers.get(key)
            if same is not None:
                like.append(Duplicate(same, "equal to", in_columns))
                continue
            signature = None if self._texts is None else self._texts.signature(text or "")
            like.append(None if by_hash_alone else self._near(signature) or self._alike(vectors, i))
            if like[-1] is None:
                if signature is not None and self._texts is not None:
                    self._texts.keep(signature)
                    signatures.append(signature)
                if vectors is not None:
                    vectors.keep(i, kept_before + len(kept))
                if key:
                    numbers[key] = kept_before + len(kept)
                kept.append(i)
        hashes = b"".join(numbers)
        self._hashes.add(np.frombuffer(hashes, HASH), np.arange(kept_before, kept_before + len(numbers)))
        each = identities(batch.data)
        rows = self._rows.add([each[i] for i in kept])
        of_vectors = b"" if vectors is None else vectors.packed(kept)
        self._added[chunk] = b"".join([rows, hashes, *(s.tobytes() for s in signatures), of_vectors])
        reasons = [match.reason(self._rows.name(match.number)) for match in like if match is not None]
        yield from split(batch, np.array([match is None for match in like], bool), reasons)

    def state(self, chunk: int) -> bytes:
        """Return the rows of `chunk` that were kept, followed by their hashes, their signatures and their vectors."""
        return self._added.pop(chunk)

    def restore(self, states: Iterable[bytes]) -> None:
        for added in filter(None, states):
            kept_before = self._rows.count
            first = self._rows.restore(added)
            rows = self._rows.count - kept_before
            last = first + (rows * HASH_BYTES if self._columns else 0)
            self._hashes.add(np.frombuffer(added[first:last], HASH), np.arange(kept_before, self._rows.count))
            if self._texts is not None and self._near_settings is not None:
                first, last = last, last + rows * self._near_settings.permutations * SIGNATURE.itemsize
                for signature in np.frombuffer(added[first:last], SIGNATURE).reshape(rows, -1) if rows else ():
                    self._texts.keep(signature)
            if self._vectors is not None:
                self._vectors.restore(added[last:], kept_before, rows)

    def _near(self, signature: Signature | None) -> Duplicate | None:
        """Return the most similar text that is kept, if it is a near duplicate."""
        if signature is None or self._texts is None or self._near_settings is None:
            return None
        near, found = self._near_settings, self._texts.nearest(signature)
        what = f"in {near.column} (near duplicates: threshold {near.threshold:g})"
        return None if found is None else Duplicate(found[0], f"{found[1]:.2f} like", what)

    def _alike(self, vectors: ChunkVectors | None, row: int) -> Duplicate | None:
        """Return the most similar vector that is kept, if it reaches the threshold."""
        if self._vectors is None or vectors is None or (found := vectors.nearest(row)) is None:
            return None
        semantic = self._vectors.settings
        what = f"in {semantic.column} (semantic: threshold {semantic.threshold:g})"
        return Duplicate(found[1], f"{found[0]:.2f} like", what)

    def _keys(self, batch: Batch) -> list[bytes]:
        """Return the hash of each row; empty without `columns`."""
        if not self._columns:
            return [b""] * batch.num_rows
        columns = [python_values(batch.data.column(name)) for name in self._columns]
        return [_hash(values) for values in zip(*columns, strict=True)]


class Duplicate(NamedTuple):
    """The kept row that a row is a duplicate of, and what the reason says before and behind its name."""

    number: int
    before: str
    behind: str

    def reason(self, row: str) -> str:
        return f"{self.before} {row} {self.behind}"


def _hash(values: Sequence[Any]) -> bytes:
    return hashlib.blake2b(_written(values).encode(), digest_size=HASH_BYTES).digest()
