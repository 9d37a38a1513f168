"""A run under a target: `Rounds` reads the source round after round, `Target` counts the rows that reach the sink and
ends the run when there are enough."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa

from pipeline.api.errors import ConfigError, GraphError
from pipeline.api.protocols import Inbox, Operator, Runtime, Source, Stateful
from pipeline.api.records import ROW, Batch, ChunkEnd, Item, RejectKind, Rejects, Shard
from pipeline.dataflow.graph import Graph, Node
from pipeline.dataflow.new_rows import NewRows
from pipeline.dataflow.target_progress import TargetProgress
from pipeline.dataflow.wrapped_source import WrappedSource, part
from pipeline.settings import TargetSettings
from pipeline.system.atomic_files import sorted_by_identity

NODE = "target"


@dataclass
class Position:
    """A position in the rounds.

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


class Rounds(WrappedSource):
    """Sends the rows of `source` round after round, until the target is reached or a budget is spent.

    Row i of round r has the number r * N + i, where N is the source's number of rows; so its seed differs from round to
    round. Rows are regrouped into chunks of `chunk_rows`, across the source's own chunks and the ends of rounds. Each
    chunk of the source is buffered until it has ended.
    """

    def __init__(self, source: Source, target: TargetProgress, chunk_rows: int) -> None:
        super().__init__(source)
        self._target = target
        self._chunk_rows = chunk_rows
        self._position = Position()
        self._used = 0
        """Rows of the current chunk that were sent."""

    @property
    def title(self) -> str:
        return f"{self._source.title}, in rounds"

    def restore(self, states: Iterable[bytes]) -> None:
        (state,) = states
        self._position = Position(**json.loads(state))
        self._target.round_rows = self._position.round_rows

    def state(self, chunk: int) -> bytes:
        """Return the position after the rows sent so far: the end of `chunk`, since it is called then."""
        return json.dumps(asdict(self._position)).encode()

    def run(self, inbox: Inbox) -> Iterator[Item | Shard]:
        while self._more and self._target.round_rows != 0:
            yield from self._round(inbox)
        self._target.source_ended(self._position.row)
        if self._used or (self._chunk == 0 and self._target.round_rows == 0):
            yield self._end()

    @property
    def _more(self) -> bool:
        """True if another row may be sent. The target and its token and time budgets are checked between chunks."""
        last = self._target.last_row
        return (last is None or self._position.row < last) and not (self._used == 0 and self._target.check())

    def _round(self, inbox: Inbox) -> Iterator[Item]:
        """Yield the rest of the current round."""
        position = self._position
        first_row = position.round * (position.round_rows or 0)
        self._source.seek(position.source_chunk)
        held: list[Batch | Rejects] = []
        for item in self._source.run(inbox):
            if isinstance(item, Batch | Rejects):
                held.append(item)
            elif isinstance(item, ChunkEnd):
                stop = first_row + position.source_row + item.rows
                yield from self._cut([_moved(one, first_row) for one in held], stop)
                if position.row < stop:
                    return
                held.clear()
                position.source_chunk, position.source_row = item.chunk + 1, position.source_row + item.rows
        self._target.round_rows = position.round_rows = position.source_row
        position.round, position.source_chunk, position.source_row = position.round + 1, 0, 0

    def _cut(self, items: list[Batch | Rejects], stop: int) -> Iterator[Item]:
        """Yield the rows of `items` from the current one up to `stop`, regrouped into chunks."""
        position = self._position
        while position.row < stop and self._more:
            last = min(stop, position.row + self._chunk_rows - self._used, self._target.last_row or stop)
            yield from (cut for item in items if (cut := part(item, self._chunk, position.row, last)).num_rows)
            self._used += last - position.row
            position.row = last
            if self._used == self._chunk_rows:
                yield self._end()

    def _end(self) -> ChunkEnd:
        end = ChunkEnd(self._chunk, self._used)
        self._chunk, self._used = self._chunk + 1, 0
        return end


class Target(Operator, Stateful):
    """Passes the first `accepted_rows` rows, in the order of (row, lineage), and filters out all others.

    It decides at each chunk's end. The run ends with the chunk in which the target is reached, or after which the time
    or token budget is spent. Its counts are committed with each chunk.
    """

    def __init__(self, progress: TargetProgress) -> None:
        self._progress = progress

    def plan(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def open(self, runtime: Runtime) -> None:
        self._runtime = runtime
        runtime.log.info("%d of %d rows are accepted", self._progress.accepted, self._progress.wanted)

    def restore(self, states: Iterable[bytes]) -> None:
        (state,) = states
        self._progress.resume(**json.loads(state))

    def state(self, chunk: int) -> bytes:
        return json.dumps({"accepted": self._progress.accepted, **self._progress.sums}).encode()

    def run(self, inbox: Inbox) -> Iterator[Item]:
        """Hold rows until their chunk ends, then pass on as many as are still needed.

        The end of the input ends the run: otherwise, if a node upstream of this one has left (as Limit does), the
        source would go on for the other sinks alone until a budget is spent.
        """
        last = -1
        held: dict[int, list[Batch]] = {}
        for item in inbox:
            if isinstance(item, Batch):
                self._progress.arrived += item.num_rows
                held.setdefault(item.chunk, []).append(item)
            elif isinstance(item, ChunkEnd):
                last = item.chunk
                yield from self._first(held.pop(last, []))
                if self._progress.check():
                    self._runtime.stop_after_chunk(last)
                yield item
        self._runtime.stop_after_chunk(last)

    def _first(self, batches: list[Batch]) -> Iterator[Batch | Rejects]:
        """Yield the first rows of a chunk, as many as are needed, and reject the others."""
        rows = sum(batch.num_rows for batch in batches)
        kept = min(rows, self._progress.wanted - self._progress.accepted)
        self._progress.accepted += kept
        if kept == rows:
            yield from batches
            return
        table = sorted_by_identity(pa.Table.from_batches([batch.data for batch in batches]))
        (data,) = table.combine_chunks().to_batches()
        whole = batches[0].with_data(data)
        if kept:
            yield whole.with_data(data.slice(0, kept))
        reason = f"target of {self._progress.wanted} rows was reached"
        yield whole.reject(range(kept, rows), reason, RejectKind.FILTERED)


def with_target(nodes: Mapping[str, Node], settings: TargetSettings, chunk_rows: int) -> Graph:
    """Return the graph of `nodes` with its source wrapped in Rounds and a node `target` inserted before the sink."""
    progress = TargetProgress(settings)
    sink, source = _sink(nodes, settings.sink), next(name for name, node in nodes.items() if not node.inputs)
    if NODE in nodes:
        raise GraphError(NODE, f"has the name of the node that target.accepted_rows={progress.wanted} adds; rename it")
    if len(nodes[sink].inputs) != 1:
        raise GraphError(sink, "has several inputs, and a target needs a sink with one; put a Union before it")
    op = nodes[source].op
    if not isinstance(op, Source):
        raise GraphError(source, f"{type(op).__name__} has no seek(chunk), so it cannot be read round after round")
    found = dict(nodes)
    if isinstance(op, NewRows):  # what a row is counted by is that it is new: each is read once
        op.enough, progress.grows = progress.check, True
    else:
        found[source] = replace(nodes[source], op=Rounds(op, progress, chunk_rows))
    del found[sink]
    found[NODE] = Node(Target(progress), nodes[sink].inputs, nodes[sink].capacity_rows)
    found[sink] = replace(nodes[sink], inputs=(NODE,))
    return Graph(found, progress)


def _sink(nodes: Mapping[str, Node], named: str | None) -> str:
    read = {source for node in nodes.values() for source in node.inputs}
    sinks = [name for name in nodes if name not in read]
    if named is None and len(sinks) > 1:
        raise ConfigError(f"the graph has the sinks {', '.join(sinks)}; say whose rows count: target.sink={sinks[0]}")
    if named is not None and named not in sinks:
        raise ConfigError(f"target.sink={named} is no sink; the graph has {', '.join(sinks)}")
    return named or sinks[0]


def _moved(item: Batch | Rejects, by: int) -> Batch | Rejects:
    """Return `item` with `by` added to its row numbers."""
    if not by:
        return item
    if isinstance(item, Rejects):
        return replace(item, rows=tuple(replace(reject, row=reject.row + by) for reject in item.rows))
    rows = pa.array(np.asarray(item.data.column(ROW.name)) + by, ROW.type)
    data = item.data.set_column(item.data.schema.get_field_index(ROW.name), ROW, rows)
    return replace(item, data=data, told=tuple((row + by, what) for row, what in item.told))
