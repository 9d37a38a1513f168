"""Metrics tables of a segment in a worker: lines are kept until they are sent to the driver."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pyarrow as pa

from pipeline.api.runtime import CHUNK
from pipeline.cluster.pieces import TableRows, to_ipc

_ANY = -1
"""Stands for the piece of lines that are about no row."""


class SegmentTables:
    """The metrics tables of one segment. Lines about rows are sent with the answer to their piece, others with a
    report."""

    def __init__(self) -> None:
        self._tables: dict[str, _Lines] = {}

    def get(self, name: str, schema: pa.Schema) -> _Lines:
        return self._tables.setdefault(name, _Lines(name, schema))

    def take(self, piece: int = _ANY, chunk: int = 0) -> list[TableRows]:
        """Return the lines about rows of `piece`, as rows of `chunk`; without it, those about no row since the last
        call."""
        return [rows for table in list(self._tables.values()) for rows in table.take(piece, chunk)]


class _Lines:
    """Lines of a metrics table until they are sent, by piece."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self._name = name
        self._schema = schema
        self._chunk = schema.get_field_index(CHUNK)
        self._lock = threading.Lock()
        self._lines: dict[object, list[Sequence[object]]] = {}

    def append(self, *values: object) -> None:
        self.extend([[value] for value in values])

    def extend(self, columns: Sequence[Sequence[object]]) -> None:
        pieces = columns[self._chunk] if self._chunk >= 0 else [_ANY] * len(columns[0])
        with self._lock:
            for piece, line in zip(pieces, zip(*columns, strict=True), strict=True):
                self._lines.setdefault(piece, []).append(line)

    def take(self, piece: int, chunk: int) -> list[TableRows]:
        """Return the lines of `piece` in one batch, if there are any: the driver has to take those of all workers."""
        with self._lock:
            lines = self._lines.pop(piece, None)
        if not lines:
            return []
        columns: list[Sequence[object]] = list(zip(*lines, strict=True))
        if self._chunk >= 0:
            columns[self._chunk] = [chunk] * len(lines)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self._schema, strict=True)]
        return [TableRows(self._name, to_ipc(pa.record_batch(arrays, schema=self._schema)))]
