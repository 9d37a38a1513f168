"""SeenRows: the rows that a run with `append` has taken, by their keys.

The key of a row is a hash of its id or, where it has none, of its content and of how often that content came before in
one reading of the input: so of three equal rows all three are taken, once. A bad row has its text as its content.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.api.numbers import counted
from pipeline.api.records import python_values
from pipeline.system.seen_hashes import HASH, HASH_BYTES, SeenHashes

CONTENT = np.dtype("<u8")
_HEAD = struct.Struct("<II")
"""Before the rows of a chunk: their number, and the bytes of the schema."""
_written = json.JSONEncoder(default=repr).encode


class RowKey(NamedTuple):
    """What a row is known by. `content`: 64 bits of a hash. `has_id`: the key is of an id."""

    key: bytes
    content: int
    has_id: bool = False


class Taken(NamedTuple):
    """A row that is taken: its number in the run, its key, and the number of the row that it supersedes."""

    number: int
    key: bytes
    supersedes: int | None


@dataclass
class AppendCounts:
    """What was met in one reading of the input."""

    rows_known: int = counted("rows of the input that were taken before", "rows")
    rows_newer: int = counted("rows that were taken again, since they have changed", "rows")
    rows_changed: int = counted(
        "rows of the input with the id of one that was taken and other content, left out", "rows"
    )


@dataclass(frozen=True)
class ChunkKeys:
    """The rows of one committed chunk. `schema`: of the input, in the first chunk that has rows.

    `keys`: HASH [n]; `contents`: CONTENT [n].
    """

    keys: npt.NDArray[np.bytes_]
    contents: npt.NDArray[np.uint64]
    schema: bytes = b""

    def packed(self) -> bytes:
        """Return the chunk as bytes: 24 for each row."""
        head = _HEAD.pack(len(self.keys), len(self.schema))
        return b"".join([head, self.schema, self.keys.tobytes(), self.contents.tobytes()])

    @classmethod
    def unpacked(cls, state: bytes) -> ChunkKeys:
        rows, schema_bytes = _HEAD.unpack_from(state)
        keys_at = _HEAD.size + schema_bytes
        contents_at = keys_at + rows * HASH_BYTES
        schema = state[_HEAD.size : keys_at]
        return cls(np.frombuffer(state, HASH, rows, keys_at), np.frombuffer(state, CONTENT, rows, contents_at), schema)


def keys_of(data: pa.RecordBatch, id_column: str | None, without: Sequence[str]) -> list[RowKey]:
    """Return the keys of rows. Columns `without` are no content, nor are nulls: a column that comes later changes no
    key. A row whose id is null is known by its content."""
    names = sorted(name for name in data.schema.names if name not in without)
    columns = [python_values(data.column(name)) for name in names]
    ids = [None] * data.num_rows if id_column is None else python_values(data.column(id_column))
    rows = zip(*columns, strict=True) if columns else ((),) * data.num_rows
    return [_key(identity, names, values) for identity, values in zip(ids, rows, strict=True)]


def _key(identity: object, names: Sequence[str], values: Sequence[object]) -> RowKey:
    content = _hash([(name, value) for name, value in zip(names, values, strict=True) if value is not None])
    number = int.from_bytes(content[:8], "little")
    return RowKey(content, number) if identity is None else RowKey(_hash(["id", identity]), number, has_id=True)


def key_of_bad(record: str) -> RowKey:
    """Return the key of a row that could not be read. `record`: its text."""
    content = _hash(["bad", record])
    return RowKey(content, int.from_bytes(content[:8], "little"))


def _hash(values: object) -> bytes:
    return hashlib.blake2b(_written(values).encode(errors="backslashreplace"), digest_size=HASH_BYTES).digest()


class SeenRows:
    """The rows that were taken, numbered from 0: some 50 bytes each.

    Args:
        again: a row with a known id and other content is taken again; else it is counted.
    """

    def __init__(self, *, again: bool) -> None:
        self._again = again
        self._hashes = SeenHashes()
        self._contents = np.zeros(0, CONTENT)
        self._times = np.zeros(0, np.uint32)
        """By the number of the first row of a key: how often it came in this reading of the input."""
        self._newest: dict[int, int] = {}
        """By the number of the first row of an id: that of its newest one, where there are several."""
        self._superseded: dict[int, int] = {}
        """By the number of a row: that of the row that it supersedes."""
        self._current: set[int] = set()
        self._older: set[int] = set()
        """The first rows of ids with several versions, whose newest and whose others this reading has met."""
        self.same_ids = 0
        """Rows that were taken again although this reading has another version of them, too."""
        self.count = 0
        self.counts = AppendCounts()

    def restore(self, chunks: Iterable[ChunkKeys]) -> None:
        """Take the rows of committed chunks, in order."""
        listed = [*chunks, ChunkKeys(np.zeros(0, HASH), np.zeros(0, CONTENT))]
        keys = np.concatenate([chunk.keys for chunk in listed])
        self._contents = np.concatenate([chunk.contents for chunk in listed])
        listed.clear()
        self.count = len(keys)
        self._times = np.zeros(self.count, np.uint32)
        order = np.argsort(keys, kind="stable")  # the rows of one id in the order of their numbers
        repeats = np.append(False, keys[order[1:]] == keys[order[:-1]])[: self.count]
        self._hashes.add(keys[order[~repeats]], order[~repeats])
        for place in np.flatnonzero(repeats).tolist():
            before, row = int(order[place - 1]), int(order[place])
            self._superseded[row] = before
            self._newest[int(self._first(keys[row : row + 1])[0])] = row

    def begin_reading(self) -> None:
        """Begin to read the input, from its first row."""
        self._times[:] = 0

    def named(self, rows: Sequence[RowKey]) -> list[RowKey]:
        """Return the keys under which the next rows of the input were taken, if they were."""
        numbers = self._first_of(rows)
        return [row if number < 0 else self._occurrence(row, number) for row, number in zip(rows, numbers, strict=True)]

    def take(self, rows: Sequence[RowKey]) -> list[Taken | None]:
        """Take those of the next rows of the input that are new, and number them; None for the others."""
        fresh: dict[bytes, int] = {}
        taken = [self._take(row, number, fresh) for row, number in zip(rows, self._first_of(rows), strict=True)]
        self._hashes.add(np.array(list(fresh), HASH), np.array(list(fresh.values()), np.int64))
        return taken

    @property
    def gone_back(self) -> int:
        """Rows of which this reading has met an older version and not the newest."""
        return len(self._older - self._current)

    def taken_as(self, number: int, key: bytes) -> Taken:
        """Return the row `number`, which was taken before."""
        return Taken(number, key, self._superseded.get(number))

    def _take(self, row: RowKey, number: int, fresh: dict[bytes, int]) -> Taken | None:
        first = number if number >= 0 else fresh.get(row.key, -1)
        if first < 0:
            return self._number(row, fresh)
        if not row.has_id:
            named = self._occurrence(row, first)
            if named is not row and named.key not in fresh and self._first([named.key])[0] < 0:
                return self._number(named, fresh)
            self.counts.rows_known += 1
            return None
        newest = self._newest.get(first, first)
        version: int | None = newest
        while version is not None and self._contents[version] != row.content:
            version = self._superseded.get(version)
        if version is not None:
            self._times[first] += 1
            self.counts.rows_known += 1
            if first in self._newest:
                (self._current if version == newest else self._older).add(first)
        elif not self._again:
            self.counts.rows_changed += 1
        else:
            self.counts.rows_newer += 1
            self.same_ids += bool(self._times[first])
            self._newest[first] = self.count
            self._superseded[self.count] = newest
            self._current.add(first)
            return Taken(self._append(row.content), row.key, newest)
        return None

    def _number(self, row: RowKey, fresh: dict[bytes, int]) -> Taken:
        number = fresh[row.key] = self._append(row.content)
        self._times[number] = 1
        return Taken(number, row.key, None)

    def _append(self, content: int) -> int:
        if self.count == len(self._contents):
            more = max(1024, self.count // 4)
            self._contents = np.append(self._contents, np.zeros(more, CONTENT))
            self._times = np.append(self._times, np.zeros(more, np.uint32))
        self._contents[self.count] = content
        self.count += 1
        return self.count - 1

    def _occurrence(self, row: RowKey, first: int) -> RowKey:
        """Return the key of a row whose content came before, as that of row `first`, in this reading too or not."""
        times = int(self._times[first])
        if row.has_id:
            return row
        self._times[first] += 1
        return row if times == 0 else row._replace(key=_hash([row.key.hex(), times]))

    def _first_of(self, rows: Sequence[RowKey]) -> list[int]:
        numbers: list[int] = self._first([row.key for row in rows]).tolist()
        return numbers

    def _first(self, keys: Sequence[bytes] | npt.NDArray[np.bytes_]) -> npt.NDArray[np.int64]:
        return self._hashes.find(np.asarray(keys, HASH))
