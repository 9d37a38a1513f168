"""KeyedTable: the columns of a table, in memory or on disk, whose rows are found by their keys."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.rows.arrow_types import plain_type
from pipeline.api.errors import InputError
from pipeline.api.records import python_values
from pipeline.system.disk_errors import writing
from pipeline.system.seen_hashes import HASH, HASH_BYTES

Integers = npt.NDArray[np.int64]
KEY_BYTES = HASH_BYTES + 8
"""Bytes that the key of a row takes: its hash, and the number of the row."""
_written = json.JSONEncoder(default=repr).encode


def kind_of_key(kind: pa.DataType) -> str | None:
    """Return what two keys have in common that can be equal; None for a type that is no key."""
    kind = plain_type(kind)
    if pa.types.is_nested(kind):
        return None
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    return str(kind)


def hashes_of(columns: Sequence[pa.Array]) -> tuple[npt.NDArray[np.bytes_], Integers]:
    """Return the hashes of the keys without a null (HASH [keys]), and the numbers of their rows (int64 [keys])."""
    keys = list(zip(*map(python_values, columns), strict=True))
    rows = [i for i, key in enumerate(keys) if None not in key]
    return np.array([_hash(keys[i]) for i in rows], HASH), np.array(rows, np.int64)


def _hash(key: Sequence[object]) -> bytes:
    values = [value + 0.0 if isinstance(value, float) else value for value in key]  # -0.0 is 0.0
    return hashlib.blake2b(_written(values).encode(), digest_size=HASH_BYTES).digest()


class KeyedTable:
    """Columns of a table, and its rows by the hashes of their keys, of 128 bits; keys as such are not kept.

    Args:
        name: of the table, for errors.
        batches: its rows.
        columns: those to keep, with their types.
        keys: names of the columns that are the key; none: every row matches.
        most_bytes: of memory that it may take. The columns of a larger one are in a temporary file (TMPDIR), which is
            gone with the process; its keys are in memory.

    Raises:
        InputError: the keys alone take more, or a column has more text than Arrow can hold.
        StorageError: the disk of the temporary file is full, or fails.
    """

    def __init__(
        self, name: str, batches: Iterable[pa.RecordBatch], columns: pa.Schema, keys: Sequence[str], most_bytes: int
    ) -> None:
        hashes, places = [np.zeros(0, HASH)], [np.zeros(0, np.int64)]
        self.num_rows = key_bytes = 0
        store = _Store(columns, most_bytes)
        for batch in batches:
            if keys:
                of_batch, rows = hashes_of([batch.column(key) for key in keys])
                hashes.append(of_batch)
                places.append(rows + self.num_rows)
                key_bytes += KEY_BYTES * len(rows)
            self.num_rows += batch.num_rows
            store.add(batch.select(columns.names))
            if key_bytes > most_bytes:
                raise InputError(
                    f"table {name}: the keys of its first {self.num_rows:,} rows take {key_bytes:,} bytes of memory,"
                    f" more than table.memory_limit allows ({most_bytes:,}); raise it (table.memory_limit: 4GiB), or"
                    " write a smaller table"
                )
        self._columns, self.disk_bytes = store.columns(name), store.disk_bytes
        self.size_bytes = key_bytes + store.memory_bytes
        every = np.concatenate(hashes)
        order = np.argsort(every, kind="stable")  # equal keys stay in the order of the table
        self._hashes, self._places = every[order], np.concatenate(places)[order]
        self._keyed = bool(keys)

    def find(self, keys: Sequence[pa.Array], rows: int) -> tuple[Integers, Integers]:
        """Return for each of `rows` rows with these keys the first of its matches, for `values`, and their number:
        int64 [rows] each."""
        if not self._keyed:
            return np.zeros(rows, np.int64), np.full(rows, self.num_rows, np.int64)
        first, counts = np.zeros((2, rows), np.int64)
        hashes, found = hashes_of(keys)
        first[found] = np.searchsorted(self._hashes, hashes, "left")
        counts[found] = np.searchsorted(self._hashes, hashes, "right") - first[found]
        return first, counts

    def values(self, matches: Integers, none: npt.NDArray[np.bool_]) -> Mapping[str, pa.Array]:
        """Return the columns of `matches` (int64 [n], from `find` on), and null where `none` (bool [n]) is true."""
        places = np.where(none, 0, matches)
        if self._keyed and len(self._places):
            places = self._places[places]
        return {name: _taken(column, places, none) for name, column in self._columns.items()}


class _Store:
    """Takes the rows of a table: into memory, and all into a file when they are more than `most_bytes`."""

    def __init__(self, schema: pa.Schema, most_bytes: int) -> None:
        self._schema, self._most_bytes = schema, most_bytes
        self._batches: list[pa.RecordBatch] = []
        self._file: Any = None
        self._writer: pa.RecordBatchFileWriter | None = None
        self.memory_bytes = self.disk_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self.memory_bytes += batch.nbytes
        if self._writer is not None or self.memory_bytes > self._most_bytes:
            with writing(Path(tempfile.gettempdir())):
                if self._writer is None:
                    self._file = tempfile.NamedTemporaryFile(prefix="table-", suffix=".arrow")  # noqa: SIM115
                    self._writer = pa.ipc.new_file(self._file, self._schema)
                for each in self._batches:
                    self._writer.write_batch(each)
            self.memory_bytes = 0
            self._batches.clear()

    def columns(self, name: str) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Return the columns: arrays in memory, or of a file, in pieces that are read where they are needed."""
        if self._writer is None:
            arrays = {f.name: [batch.column(f.name) for batch in self._batches] for f in self._schema}
            return {f.name: _joined(name, arrays.pop(f.name), f) for f in self._schema}
        with writing(Path(tempfile.gettempdir())):
            self._writer.close()
            self._file.flush()
        table = pa.ipc.open_file(pa.memory_map(self._file.name)).read_all()
        self.disk_bytes = Path(self._file.name).stat().st_size
        self._file.close()  # and removed: what is mapped stays
        return {field.name: table.column(field.name) for field in self._schema}


def _taken(column: pa.Array | pa.ChunkedArray, places: Integers, none: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the values at `places`, null where `none` is true. Of a column in pieces only these values are copied."""
    if isinstance(column, pa.Array):
        return column.take(pa.array(places, pa.int64(), mask=none))
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    pieces = np.where(none, -1, np.searchsorted(ends, places, "right"))
    order = np.argsort(pieces, kind="stable")
    parts = [pa.nulls(int(none.sum()), column.type)]
    for piece in np.unique(pieces[pieces >= 0]).tolist():
        chunk = column.chunk(piece)
        parts.append(chunk.take(pa.array(places[pieces == piece] - (ends[piece] - len(chunk)))))
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return pa.concat_arrays(parts).take(pa.array(back))


def _joined(name: str, arrays: Sequence[pa.Array], field: pa.Field) -> pa.Array:
    try:
        return pa.concat_arrays(arrays) if arrays else pa.array([], field.type)
    except pa.ArrowInvalid as error:
        raise InputError(f"table {name}: column '{field.name}' is too long for memory: {error}") from error
