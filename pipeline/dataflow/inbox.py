"""Edge: a bounded queue between two nodes; Inbox: the edges into one node, read as one aligned stream.

Edges are bounded in rows, of which one with many bytes (an image) counts as several. The writer of a full edge waits
(blocked, backpressure), the reader of an empty one waits (starved); both waits are timed by the meter of the node that
waits. ChunkEnds take no capacity: the chunk window bounds their number.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.api.errors import Cancelled, Released
from pipeline.api.load import load_of
from pipeline.api.meter import StageMeter, StageState
from pipeline.api.records import Batch, ChunkEnd, Item, Rejects

_END_OF_INPUT = object()


@dataclass(eq=False)
class Edge:
    """One input of an inbox, guarded by the inbox's lock.

    Args:
        inbox: of the reader.
        port: index among the reader's inputs.
        capacity: rows that may wait; a larger batch is accepted when the edge is empty.
        rows: rows that wait.
        load: the same, with bytes counted as rows.
        last_end: number of the last chunk whose end the reader took from this edge.
        closed: the writer has finished.
        ended: the reader has seen that the writer has finished.
    """

    inbox: NodeInbox
    port: int
    capacity: int
    rows: int = 0
    load: int = 0
    last_end: int | None = None
    closed: bool = False
    ended: bool = False


class NodeInbox:
    """The inputs of one node as one stream.

    Batches come in order of arrival, also from an input that is ahead of the others. ChunkEnd k comes once, when every
    input has sent it or has ended. One thread reads; any thread may write, wake or cancel.
    """

    def __init__(self, meter: StageMeter) -> None:
        self._meter = meter
        self._lock = threading.Lock()
        self._readable = threading.Condition(self._lock)
        self._writable = threading.Condition(self._lock)
        self._edges: list[Edge] = []
        self._items: deque[tuple[Edge, object, int]] = deque()
        self._ends: dict[int, ChunkEnd] = {}
        self._aligned: deque[ChunkEnd] = deque()
        self._woken = False
        self._stop: type[Cancelled | Released] | None = None
        self.left = False
        meter.queue_rows = lambda: sum(edge.rows for edge in self._edges)

    def connect(self, capacity: int) -> Edge:
        """Add an input of `capacity` rows. Only before the run starts."""
        edge = Edge(self, len(self._edges), capacity)
        self._edges.append(edge)
        self._meter.queue_capacity += capacity
        return edge

    def describe(self) -> str:
        """Return a line on the state of each input, for the watchdog."""
        return ", ".join(
            f"{c.rows} of {c.capacity} rows, last chunk end {c.last_end}{', closed' if c.closed else ''}"
            for c in self._edges
        )

    def put(self, edge: Edge, item: Item, meter: StageMeter) -> bool:
        """Append `item` to `edge`, waiting for capacity; the time counts as blocked on `meter`, the writer's. Returns
        False if the reader has left; raises Cancelled."""
        rows, load = 0 if isinstance(item, ChunkEnd) else item.num_rows, load_of(item)
        with self._lock:
            if load and edge.load and edge.load + load > edge.capacity:
                self._wait_for_room(edge, load, meter)
            if self._stop is Cancelled:
                raise Cancelled
            if self.left:
                return False
            edge.rows += rows
            edge.load += load
            self._items.append((edge, item, load))
            self._readable.notify()
        return True

    def end(self, edge: Edge) -> None:
        """Mark `edge` as closed by its writer."""
        with self._lock:
            if not edge.closed:
                edge.closed = True
                self._items.append((edge, _END_OF_INPUT, 0))
                self._readable.notify()

    def stop(self, why: type[Cancelled | Released]) -> None:
        """Make the reader's calls raise `why`, also one that waits. Writers raise Cancelled too, but not Released."""
        with self._lock:
            if self._stop is not Cancelled:
                self._stop = why
            self._readable.notify_all()
            self._writable.notify_all()

    def leave(self) -> None:
        """Discard all items and accept no more; `put` returns False."""
        with self._lock:
            self.left = True
            self._items.clear()
            for edge in self._edges:
                edge.rows = edge.load = 0
            self._writable.notify_all()

    def wake(self) -> None:
        with self._lock:
            self._woken = True
            self._readable.notify()

    def wait(self, *, idle: bool = True, for_items: bool = True, timeout_s: float | None = None) -> None:
        """Wait as described in pipeline.api.protocols.Inbox; raises Cancelled or Released."""

        def ready() -> bool:
            ended = self._woken or self._stop is not None
            return ended or (for_items and bool(self._items or self._aligned))

        with self._lock, self._meter.clock.during(StageState.STARVED if idle else StageState.BUSY):
            self._readable.wait_for(ready, timeout_s)
            self._woken = False
            if self._stop is not None:
                raise self._stop

    def poll(self) -> Item | None:
        with self._lock:
            if self._stop is not None:
                raise self._stop
            while self._items and not self._aligned:
                edge, item, load = self._items.popleft()
                if isinstance(item, Batch | Rejects):
                    rows = item.num_rows
                    edge.rows -= rows
                    edge.load -= load
                    self._writable.notify_all()
                    self._meter.count(item.chunk, rows_in=rows)
                    self._meter.batches += 1
                    return item.at_port(edge.port) if isinstance(item, Batch) else item
                if isinstance(item, ChunkEnd):
                    edge.last_end = item.chunk
                    self._ends[item.chunk] = item
                else:
                    edge.ended = True
                self._align()
            return self._aligned.popleft() if self._aligned else None

    @property
    def exhausted(self) -> bool:
        with self._lock:
            return not self._items and not self._aligned and all(edge.ended for edge in self._edges)

    def __iter__(self) -> Iterator[Item]:
        while True:
            item = self.poll()
            if item is not None:
                yield item
            elif self.exhausted:
                return
            else:
                self.wait()

    def _wait_for_room(self, edge: Edge, load: int, meter: StageMeter) -> None:
        def ready() -> bool:
            return not edge.load or edge.load + load <= edge.capacity or self.left or self._stop is Cancelled

        with meter.clock.during(StageState.BLOCKED):
            self._writable.wait_for(ready)

    def _align(self) -> None:
        live = [edge for edge in self._edges if not edge.ended]
        sent = [edge.last_end for edge in live if edge.last_end is not None]
        if len(sent) < len(live):
            return
        through = min(sent) if live else max(self._ends, default=0)
        for chunk in sorted(k for k in self._ends if k <= through):
            self._aligned.append(self._ends.pop(chunk))
