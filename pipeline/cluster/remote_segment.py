"""RemoteSegment: the node of the driver's graph that stands for a chain of nodes in the workers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from pipeline.api.protocols import Inbox, Operator, Runtime
from pipeline.api.records import Batch, ChunkEnd, Item, Rejects
from pipeline.cluster.dispatcher import Dispatcher
from pipeline.cluster.meters import RemoteMeter
from pipeline.cluster.pieces import Cutter, WorkItem, WorkResult, from_ipc
from pipeline.cluster.segments import ClusterSize, Segment


class RemoteSegment(Operator):
    """Sends rows to the workers, and what they make of them downstream. Rows leave in the order in which pieces are
    answered; a chunk ends when all its pieces are.

    Args:
        segment: the nodes that it stands for.
        size: of the cluster.
        dispatcher: makes the dispatcher of the run, which all segments share.
    """

    def __init__(self, segment: Segment, size: ClusterSize, dispatcher: Callable[[], Dispatcher]) -> None:
        self.segment = segment
        self._size = size
        self._make_dispatcher = dispatcher
        self.meters: Sequence[RemoteMeter] = [RemoteMeter(name) for name in segment.nodes]

    @property
    def title(self) -> str:
        return f"{', '.join(self.segment.nodes)}, in {self._size.workers} workers"

    def plan(self, schema: pa.Schema) -> pa.Schema:
        return self.segment.made

    def open(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._dispatcher = runtime.resource(("dispatcher",), self._make_dispatcher, Dispatcher.close)

    def run(self, inbox: Inbox) -> Iterator[Item]:
        name, dispatcher = self.segment.name, self._dispatcher
        dispatcher.connect(name, inbox.wake)
        cutter = Cutter(self._size.piece_rows)
        self._waiting: Counter[int] = Counter()
        ends: deque[ChunkEnd] = deque()
        while True:
            while self._wants_rows() and (item := inbox.poll()) is not None:
                if isinstance(item, Batch):
                    self._submit(cutter.add(item))
                elif isinstance(item, ChunkEnd):
                    self._submit(cutter.flush())
                    ends.append(item)
            if dispatcher.has_idle_worker:
                self._submit(cutter.flush())
            for piece, answer in dispatcher.take(name):
                yield from self._rows_of(piece, answer)
            while ends and not self._waiting[ends[0].chunk]:
                del self._waiting[ends[0].chunk]
                yield ends.popleft()
            if inbox.exhausted and not ends:
                return
            inbox.wait(idle=not self._waiting.total(), for_items=self._wants_rows())

    def _wants_rows(self) -> bool:
        return self._waiting.total() < self._size.rows_in_flight

    def _submit(self, pieces: Iterator[Batch]) -> None:
        for batch in pieces:
            self._waiting[batch.chunk] += batch.num_rows
            self._dispatcher.submit(self.segment.name, batch)

    def _rows_of(self, piece: WorkItem, answer: WorkResult) -> Iterator[Item]:
        chunk = piece.batch.chunk
        self._waiting[chunk] -= piece.num_rows
        for meter in self.meters:
            meter.add(chunk, answer.counts[meter.name])
        rows = from_ipc(answer.rows)
        yield from (Rejects(chunk, tuple(rejects), node) for node, rejects in answer.rejects)
        expanded = rows.num_rows + sum(len(rejects) for _, rejects in answer.rejects) - piece.num_rows
        if rows.num_rows:
            yield Batch(chunk, rows, expanded)
        elif expanded:
            self._runtime.meter.count(chunk, expanded=expanded)
