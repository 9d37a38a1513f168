"""KeyedTable: the columns of a small table in memory, whose rows are found by their keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.rows.arrow_types import plain_type
from pipeline.api.errors import InputError
from pipeline.api.records import python_values
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
        most_bytes: that it may take.

    Raises:
        InputError: it takes more, or a column has more text than Arrow can hold.
    """

    def __init__(
        self, name: str, batches: Iterable[pa.RecordBatch], columns: pa.Schema, keys: Sequence[str], most_bytes: int
    ) -> None:
        kept: dict[str, list[pa.Array]] = {column: [] for column in columns.names}
        hashes, places = [np.zeros(0, HASH)], [np.zeros(0, np.int64)]
        self.num_rows = self.size_bytes = 0
        for batch in batches:
            for column, arrays in kept.items():
                arrays.append(batch.column(column))
                self.size_bytes += batch.column(column).nbytes
            if keys:
                of_batch, rows = hashes_of([batch.column(key) for key in keys])
                hashes.append(of_batch)
                places.append(rows + self.num_rows)
                self.size_bytes += KEY_BYTES * len(rows)
            self.num_rows += batch.num_rows
            if self.size_bytes > most_bytes:
                raise InputError(
                    f"table {name}: its first {self.num_rows:,} rows take {self.size_bytes:,} bytes of memory, more"
                    f" than table.memory_limit allows ({most_bytes:,}); raise it (table.memory_limit: 4GiB), name fewer"
                    " columns (columns: [...]), or write a smaller table"
                )
        self._columns = {f.name: _joined(name, kept.pop(f.name), f) for f in columns}
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
        taken = pa.array(places, pa.int64(), mask=none)
        return {name: column.take(taken) for name, column in self._columns.items()}


def _joined(name: str, arrays: Sequence[pa.Array], field: pa.Field) -> pa.Array:
    try:
        return pa.concat_arrays(arrays) if arrays else pa.array([], field.type)
    except pa.ArrowInvalid as error:
        raise InputError(f"table {name}: column '{field.name}' is too long for memory: {error}") from error
