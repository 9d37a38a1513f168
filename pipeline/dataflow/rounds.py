"""Rounds: read a source round after round, as one endless source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.api.protocols import BaseOperator, Inbox, Runtime
from pipeline.api.records import ROW, Batch, ChunkEnd, Item, Rejects, Shard, require_column
from pipeline.dataflow.target_progress import TargetProgress


@dataclass
class Place:
    """The position of a Rounds.

    Args:
        row: the next row, counted over all rounds.
        round: its round, from 0.
        round_rows: rows per round; None during the first one.
        source_chunk: the source's chunk to read next; `row` may be inside it.
        source_row: the first row of that chunk, counted within the round.
    """

    row: int = 0
    round: int = 0
    round_rows: int | None = None
    source_chunk: int = 0
    source_row: int = 0


class Rounds(BaseOperator):
    """Sends the rows of `source` round after round, until the target is reached or a budget is spent.

    Row i of round r has the number r * N + i, where N is the source's number of rows; so its seed differs from round to
    round. Rows are regrouped into chunks of `chunk_rows`, across the source's own chunks and the ends of rounds. Each
    chunk of the source is buffered until it has ended.

    Args:
        source: a source that can seek.
        target: of the run; it ends the rounds.
        chunk_rows: rows per chunk.
    """

    def __init__(self, source: BaseOperator, target: TargetProgress, chunk_rows: int) -> None:
        self._source = source
        self._target = target
        self._chunk_rows = chunk_rows
        self._place = Place()
        self._chunk = 0
        self._used = 0
        """Rows of the current chunk that were sent."""

    @property
    def title(self) -> str:
        return f"{self._source.title}, in rounds"

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

    def seek(self, chunk: int) -> None:
        """Number the next chunk `chunk`; `restore` sets the position in the source."""
        self._chunk = chunk

    def restore(self, states: Iterable[bytes]) -> None:
        (state,) = states
        self._place = Place(**json.loads(state))
        self._target.round_rows = self._place.round_rows

    def state(self, chunk: int) -> bytes:
        """Return the position after the rows sent so far: the end of `chunk`, since it is called then."""
        return json.dumps(asdict(self._place)).encode()

    def run(self, inbox: Inbox) -> Iterator[Item | Shard]:
        while self._more and self._target.round_rows != 0:
            yield from self._round(inbox)
        self._target.source_ended(self._place.row)
        if self._used or (self._chunk == 0 and self._target.round_rows == 0):
            yield self._end()

    @property
    def _more(self) -> bool:
        """True if another row may be sent. The target and its token and time budgets are checked between chunks."""
        last = self._target.last_row
        return (last is None or self._place.row < last) and not (self._used == 0 and self._target.check())

    def _round(self, inbox: Inbox) -> Iterator[Item]:
        """Yield the rest of the current round."""
        place = self._place
        first_row = place.round * (place.round_rows or 0)
        self._source.seek(place.source_chunk)
        held: list[Batch | Rejects] = []
        for item in self._source.run(inbox):
            if isinstance(item, Batch | Rejects):
                held.append(item)
            elif isinstance(item, ChunkEnd):
                stop = first_row + place.source_row + item.rows
                yield from self._cut([_moved(one, first_row) for one in held], stop)
                if place.row < stop:
                    return
                held.clear()
                place.source_chunk, place.source_row = item.chunk + 1, place.source_row + item.rows
        self._target.round_rows = place.round_rows = place.source_row
        place.round, place.source_chunk, place.source_row = place.round + 1, 0, 0

    def _cut(self, items: list[Batch | Rejects], stop: int) -> Iterator[Item]:
        """Yield the rows of `items` from the current one up to `stop`, regrouped into chunks."""
        place = self._place
        while place.row < stop and self._more:
            last = min(stop, place.row + self._chunk_rows - self._used, self._target.last_row or stop)
            yield from (part for item in items if (part := _part(item, self._chunk, place.row, last)).num_rows)
            self._used += last - place.row
            place.row = last
            if self._used == self._chunk_rows:
                yield self._end()

    def _end(self) -> ChunkEnd:
        end = ChunkEnd(self._chunk, self._used)
        self._chunk, self._used = self._chunk + 1, 0
        return end


def _moved(item: Batch | Rejects, by: int) -> Batch | Rejects:
    """Return `item` with `by` added to its row numbers."""
    if not by:
        return item
    if isinstance(item, Rejects):
        return replace(item, rows=tuple(replace(reject, row=reject.row + by) for reject in item.rows))
    rows = pa.array(np.asarray(item.data.column(ROW.name)) + by, ROW.type)
    return item.with_data(item.data.set_column(item.data.schema.get_field_index(ROW.name), ROW, rows))


def _part(item: Batch | Rejects, chunk: int, first: int, last: int) -> Batch | Rejects:
    """Return the rows of `item` with numbers in [first, last), as rows of `chunk`."""
    if isinstance(item, Rejects):
        return Rejects(chunk, tuple(reject for reject in item.rows if first <= reject.row < last))
    rows = np.asarray(item.data.column(ROW.name))
    inside = (rows >= first) & (rows < last)
    return Batch(chunk, item.data if inside.all() else item.data.filter(pa.array(inside)))
