"""Outbox: the output of one node. Batches go to its readers, rejects to the reject writer, shards to the committer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pipeline.api.errors import PipelineError, Released
from pipeline.api.meter import StageMeter
from pipeline.api.protocols import remembers
from pipeline.api.records import Batch, ChunkEnd, Item, Rejects, Shard
from pipeline.dataflow.commit import ChunkWindow, Committer
from pipeline.dataflow.graph import Node
from pipeline.dataflow.inbox import Edge
from pipeline.run_dir.chunk_record import OperatorState
from pipeline.system.known_secrets import hidden


class ChunkOrderError(PipelineError):
    """An operator sent items out of the order of chunks: a defect of the operator."""


@dataclass
class Outbox:
    """The output of a node.

    Args:
        name: of the node.
        node: its operator's state is taken at the end of each chunk.
        readers: the edge to each reader; all get the same objects, nothing is copied.
        rejects: the edge to the reject writer; None for the reject writer itself.
        committer: gets the node's part of each chunk.
        window: for a source, which waits there before it begins a chunk; else None.
    """

    name: str
    node: Node
    meter: StageMeter
    readers: list[Edge]
    rejects: Edge | None
    committer: Committer
    window: ChunkWindow | None = None
    _shards: list[Shard] = field(default_factory=list)
    _begun: int = -1
    _ended: int | None = None

    def put(self, item: Item | Shard) -> None:
        """Send `item` on, waiting while an edge is full. Raises Released once every reader has left, Cancelled, and
        ChunkOrderError if the chunk of the item has ended or a ChunkEnd is not the next one."""
        if self._ended is not None and item.chunk <= self._ended:
            raise ChunkOrderError(f"sent a {type(item).__name__} of chunk {item.chunk} after the end of {self._ended}")
        if self.window is not None and item.chunk > self._begun:
            self._begun = item.chunk
            self.window.begin(item.chunk, self.meter)
        match item:
            case Batch():
                self.meter.count(item.chunk, rows_out=item.num_rows, expanded=item.expanded)
                for _, what in item.told:
                    self.meter.tell(item.chunk, hidden(what))
                self._to_readers(item)
            case Rejects():
                self.meter.count(item.chunk, rejected=item.num_rows)
                self._to_reject_writer(item if item.node else replace(item, node=self.name))
            case Shard():
                self.meter.count(item.chunk, rows_out=item.rows)
                self._shards.append(item)
            case ChunkEnd():
                self._end(item)

    @property
    def balances(self) -> bool:
        """True if the row counts of the node must balance; those of a sink without shards need not."""
        return bool(self.readers) or self.meter.rows_out > 0

    def close(self) -> None:
        """Close all edges."""
        for edge in (*self.readers, self.rejects):
            if edge is not None:
                edge.inbox.end(edge)

    def _end(self, end: ChunkEnd) -> None:
        if self._ended is not None and end.chunk != self._ended + 1:
            raise ChunkOrderError(f"ended chunk {end.chunk} right after chunk {self._ended}")
        self._ended = end.chunk
        if self.window is not None:
            self.meter.count(end.chunk, rows_in=end.rows)
        # The committer first: once the reject writer and the sinks have the end, the chunk may be committed.
        shards, self._shards = self._shards, []
        for meter in self.node.meters:
            self.committer.add(meter.name, end, meter.take(end.chunk))
        self.committer.add(self.name, end, self.meter.take(end.chunk), shards, self._state(end.chunk))
        # Then the reject writer: `_to_readers` raises Released if the last reader leaves at this end.
        self._to_reject_writer(end)
        self._to_readers(end)

    def _state(self, chunk: int) -> OperatorState | None:
        op = self.node.op
        if not remembers(op):
            return None
        state = op.state(chunk)
        if not isinstance(state, bytes):
            raise TypeError(f"state({chunk}) gave {type(state).__name__}; it must give bytes")
        return OperatorState(state, op.append)

    def _to_readers(self, item: Batch | ChunkEnd) -> None:
        taken = not self.readers
        for edge in self.readers:
            taken = edge.inbox.put(edge, item, self.meter) or taken
        if not taken:
            raise Released

    def _to_reject_writer(self, item: Rejects | ChunkEnd) -> None:
        if self.rejects is not None:
            self.rejects.inbox.put(self.rejects, item, self.meter)
