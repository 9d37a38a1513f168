"""Bounded edges: Channel, and the Inbox that reads several of them as one aligned stream.

A channel is bounded in rows. Full: its writer waits (backpressure). Empty: its reader waits (starvation). Both waits
are timed on the clock of the stage that waits. ChunkEnds weigh nothing; how many there can be is bounded by the chunk
window.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from pipeline.api.errors import Cancelled, Released
from pipeline.api.meter import StageMeter, StageState
from pipeline.api.records import Batch, ChunkEnd, Item, Rejects

_END_OF_INPUT = object()


class Channel:
    """One edge into an inbox.

    Args:
        inbox: the reader.
        port: index of this edge among the reader's inputs.
        capacity: rows that may wait here; a larger batch passes when the channel is empty.
    """

    def __init__(self, inbox: Inbox, port: int, capacity: int) -> None:
        self._inbox = inbox
        self.port = port
        self.capacity = capacity
        self.rows = 0
        self.last_end: int | None = None
        """The last ChunkEnd that the reader took from this input."""
        self.closed = False
        """The writer has finished."""
        self.ended = False
        """The reader has seen that the writer has finished."""

    def put(self, item: Item, meter: StageMeter) -> bool:
        """Append `item`, waiting for room on `meter`'s clock. False when the reader has left.

        Raises:
            Cancelled: the run is being cancelled.
        """
        return self._inbox.receive(self, item, meter)

    def close(self) -> None:
        """No more items will come."""
        self._inbox.end_of_input(self)


class Inbox:
    """The inputs of one node, as one stream.

    Batches come in order of arrival; an input that is ahead is read on. ChunkEnd k comes once, when every input has
    sent it or has ended. One thread reads; any thread may write, wake or cancel.
    """

    def __init__(self, meter: StageMeter) -> None:
        self._meter = meter
        self._lock = threading.Lock()
        self._readable = threading.Condition(self._lock)
        self._writable = threading.Condition(self._lock)
        self._channels: list[Channel] = []
        self._items: deque[tuple[Channel, object]] = deque()
        self._ends: dict[int, ChunkEnd] = {}
        self._aligned: deque[ChunkEnd] = deque()
        self._woken = False
        self._cancelled = False
        self._released = False
        self.left = False
        meter.queue_rows = self.queued_rows

    def connect(self, capacity: int) -> Channel:
        """A new input; only before the run starts."""
        channel = Channel(self, len(self._channels), capacity)
        self._channels.append(channel)
        self._meter.queue_capacity += capacity
        return channel

    def queued_rows(self) -> int:
        """Rows that wait on all inputs."""
        return sum(c.rows for c in self._channels)

    def describe(self) -> str:
        """What waits on each input."""
        return ", ".join(
            f"{c.rows} of {c.capacity} rows, last chunk end {c.last_end}{', closed' if c.closed else ''}"
            for c in self._channels
        )

    def receive(self, channel: Channel, item: Item, meter: StageMeter) -> bool:
        """Take `item` from the writer of `channel`; see Channel.put."""
        rows = 0 if isinstance(item, ChunkEnd) else item.num_rows
        with self._lock:
            if self._must_wait(channel, rows):
                with meter.clock.during(StageState.BLOCKED):
                    self._writable.wait_for(lambda: not self._must_wait(channel, rows))
            if self._cancelled:
                raise Cancelled
            if self.left:
                return False
            channel.rows += rows
            self._items.append((channel, item))
            self._readable.notify()
        return True

    def end_of_input(self, channel: Channel) -> None:
        """The writer of `channel` has finished."""
        with self._lock:
            if not channel.closed:
                channel.closed = True
                self._items.append((channel, _END_OF_INPUT))
                self._readable.notify()

    def cancel(self) -> None:
        """Make every wait on this inbox raise Cancelled."""
        with self._lock:
            self._cancelled = True
            self._readable.notify_all()
            self._writable.notify_all()

    def release(self) -> None:
        """Make the reader's waits raise Released: nobody takes what it makes of what would come."""
        with self._lock:
            self._released = True
            self._readable.notify_all()

    def leave(self) -> None:
        """The reader takes no more; its writers are released."""
        with self._lock:
            self.left = True
            self._items.clear()
            for channel in self._channels:
                channel.rows = 0
            self._writable.notify_all()

    def wake(self) -> None:
        """End the reader's present or next `wait`."""
        with self._lock:
            self._woken = True
            self._readable.notify()

    def wait(self, *, idle: bool = True, for_items: bool = True, timeout_s: float | None = None) -> None:
        """Wait until an item is there, all inputs have ended, or `wake` is called; see pipeline.api.protocols.Inbox.

        Raises:
            Cancelled: the run is being cancelled.
            Released: every reader of this node has left.
        """

        def ready() -> bool:
            ended = self._woken or self._cancelled or self._released
            return ended or (for_items and bool(self._items or self._aligned))

        with self._lock, self._meter.clock.during(StageState.STARVED if idle else StageState.BUSY):
            self._readable.wait_for(ready, timeout_s)
            self._woken = False
            self._refuse_ended()

    def poll(self) -> Item | None:
        """The next item if one is there."""
        with self._lock:
            self._refuse_ended()
            while self._items and not self._aligned:
                channel, item = self._items.popleft()
                if isinstance(item, ChunkEnd):
                    channel.last_end = item.chunk
                    self._ends[item.chunk] = item
                    self._align()
                elif isinstance(item, Batch | Rejects):
                    return self._taken(channel, item)
                else:
                    channel.ended = True
                    self._align()
            return self._aligned.popleft() if self._aligned else None

    @property
    def exhausted(self) -> bool:
        """True when every input has ended and all items are taken."""
        with self._lock:
            return not self._items and not self._aligned and all(c.ended for c in self._channels)

    def __iter__(self) -> Iterator[Item]:
        while True:
            item = self.poll()
            if item is not None:
                yield item
            elif self.exhausted:
                return
            else:
                self.wait()

    def _refuse_ended(self) -> None:
        if self._cancelled:
            raise Cancelled
        if self._released:
            raise Released

    def _must_wait(self, channel: Channel, rows: int) -> bool:
        full = channel.rows > 0 and rows > 0 and channel.rows + rows > channel.capacity
        return full and not self.left and not self._cancelled

    def _taken(self, channel: Channel, item: Batch | Rejects) -> Batch | Rejects:
        channel.rows -= item.num_rows
        self._writable.notify_all()
        self._meter.count(item.chunk, rows_in=item.num_rows)
        self._meter.batches += 1
        return item.at_port(channel.port) if isinstance(item, Batch) else item

    def _align(self) -> None:
        live = [c for c in self._channels if not c.ended]
        sent = [c.last_end for c in live if c.last_end is not None]
        if len(sent) < len(live):
            return
        through = min(sent) if live else max(self._ends, default=0)
        for chunk in sorted(k for k in self._ends if k <= through):
            self._aligned.append(self._ends.pop(chunk))
