"""The outputs of one node: fan-out to its readers, rejects to the reject writer, shards to the committer."""

from __future__ import annotations

from dataclasses import replace

from pipeline.api.errors import PipelineError, Released
from pipeline.api.meter import StageMeter
from pipeline.api.protocols import BaseOperator, keeps_state
from pipeline.api.records import Batch, ChunkEnd, Item, Rejects, Shard
from pipeline.dataflow.commit import ChunkWindow, Committer
from pipeline.dataflow.inbox import Channel
from pipeline.run_dir.chunk_record import OperatorState


class ChunkOrderError(PipelineError):
    """An operator broke the order of chunks; a defect of the operator."""


class Outbox:
    """Where a node's items go.

    Args:
        node: the node's name.
        operator: asked for its state at the end of each chunk.
        meter: the node's meter.
        readers: one channel for each reader; all get the same objects, nothing is copied.
        rejects: the channel to the reject writer.
        committer: gets the node's part in each chunk when the node ends it.
        window: of a source, which waits there before the first item of each chunk leaves.
    """

    def __init__(
        self,
        node: str,
        operator: BaseOperator,
        meter: StageMeter,
        readers: list[Channel],
        rejects: Channel | None,
        committer: Committer,
        window: ChunkWindow | None = None,
    ) -> None:
        self._node = node
        self._operator = operator
        self._meter = meter
        self._readers = readers
        self._rejects = rejects
        self._committer = committer
        self._window = window
        self._shards: list[Shard] = []
        self._begun: int | None = None
        self._ended: int | None = None

    def put(self, item: Item | Shard) -> None:
        """Send `item` to whom it concerns, waiting for room.

        Raises:
            Released: every reader has left.
            Cancelled: the run is being cancelled.
            ChunkOrderError: the item belongs to a chunk that has ended, or a ChunkEnd is out of turn.
        """
        self._check_order(item)
        if self._window is not None and (self._begun is None or item.chunk > self._begun):
            self._begun = item.chunk
            self._window.begin(item.chunk, self._meter)
        match item:
            case Batch():
                self._meter.count(item.chunk, rows_out=item.num_rows, expanded=item.expanded)
                self._to_readers(item)
            case Rejects():
                self._meter.count(item.chunk, rejected=item.num_rows)
                self._to_reject_writer(replace(item, node=self._node))
            case Shard():
                self._meter.count(item.chunk, rows_out=item.rows)
                self._shards.append(item)
            case ChunkEnd():
                self._end(item)

    @property
    def counted(self) -> bool:
        """True when everything that came in must show in what went out: not so for a sink that writes no shards."""
        return bool(self._readers) or self._meter.rows_out > 0

    def close(self) -> None:
        """No more items will come."""
        for channel in [*self._readers, *([self._rejects] if self._rejects else [])]:
            channel.close()

    def _end(self, end: ChunkEnd) -> None:
        self._ended = end.chunk
        if self._window is not None:
            self._meter.count(end.chunk, rows_in=end.rows)
        # The committer first: when the reject writer and the sinks have the end, the chunk may be committed.
        shards, self._shards = self._shards, []
        self._committer.add(self._node, end, self._meter.take(end.chunk), shards, self._state(end.chunk))
        # Then the reject writer: a reader that leaves at this end leaves nobody waiting.
        self._to_reject_writer(end)
        self._to_readers(end)

    def _state(self, chunk: int) -> OperatorState | None:
        if not keeps_state(self._operator):
            return None
        state = self._operator.state(chunk)
        if not isinstance(state, bytes):
            raise TypeError(f"state({chunk}) gave {type(state).__name__}; it must give bytes")
        return OperatorState(state, self._operator.append)

    def _to_readers(self, item: Batch | ChunkEnd) -> None:
        taken = [channel.put(item, self._meter) for channel in self._readers]
        if taken and not any(taken):
            raise Released

    def _to_reject_writer(self, item: Rejects | ChunkEnd) -> None:
        if self._rejects is not None:
            self._rejects.put(item, self._meter)

    def _check_order(self, item: Item | Shard) -> None:
        if self._ended is None:
            return
        if item.chunk <= self._ended:
            raise ChunkOrderError(f"sent a {type(item).__name__} of chunk {item.chunk} after the end of {self._ended}")
        if isinstance(item, ChunkEnd) and item.chunk != self._ended + 1:
            raise ChunkOrderError(f"ended chunk {item.chunk} right after chunk {self._ended}")
