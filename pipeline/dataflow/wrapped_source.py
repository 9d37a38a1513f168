"""WrappedSource: the base of sources that send the rows of another one in another way, and how they cut chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.api.protocols import Concludes, Runtime, Source, Stateful
from pipeline.api.records import ROW, Batch, Rejects, require_column


class WrappedSource(Source, Stateful, Concludes):
    """Does as `source` does, but for what a subclass writes anew: `seek`, `run`, `state` and `restore`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._chunk = 0
        """The next chunk to send."""
        self.concluded = source.concluded if isinstance(source, Concludes) else ()

    def plan(self) -> pa.Schema:
        schema: pa.Schema = self._source.plan()
        require_column(schema, ROW.name, [ROW.type])
        return schema

    def fingerprint(self) -> Mapping[str, Any]:
        return self._source.fingerprint()

    def open(self, runtime: Runtime) -> None:
        self._source.open(runtime)

    def close(self) -> None:
        self._source.close()

    def report(self, directory: Path, node: str) -> Iterable[str]:
        return self._source.report(directory, node) if isinstance(self._source, Concludes) else ()

    def conclude(self, directory: Path) -> None:
        if isinstance(self._source, Concludes):
            self._source.conclude(directory)

    def seek(self, chunk: int) -> None:
        """Number the next chunk `chunk`; `restore` sets the position in the source."""
        self._chunk = chunk


def part(item: Batch | Rejects, chunk: int, first: int, last: int) -> Batch | Rejects:
    """Return the rows of `item` with numbers in [first, last), as rows of `chunk`."""
    if isinstance(item, Rejects):
        return Rejects(chunk, tuple(reject for reject in item.rows if first <= reject.row < last))
    rows = np.asarray(item.data.column(ROW.name))
    inside = (rows >= first) & (rows < last)
    told = tuple((row, what) for row, what in item.told if first <= row < last)
    return Batch(chunk, item.data if inside.all() else item.data.filter(pa.array(inside)), told=told)


def renumbered(item: Batch | Rejects, numbers: Mapping[int, int]) -> Batch | Rejects:
    """Return those rows of `item` whose number is in `numbers`, under the number there."""
    if isinstance(item, Rejects):
        kept = tuple(replace(reject, row=numbers[reject.row]) for reject in item.rows if reject.row in numbers)
        return replace(item, rows=kept)
    new = np.array([numbers.get(row, -1) for row in item.data.column(ROW.name).to_pylist()], np.int64)
    data = item.data.filter(pa.array(new >= 0))
    data = data.set_column(data.schema.get_field_index(ROW.name), ROW, pa.array(new[new >= 0], ROW.type))
    told = tuple((numbers[row], what) for row, what in item.told if row in numbers)
    return replace(item, data=data, told=told)
