"""Bounded edges: order, alignment, backpressure, early leave, cancel. Threads meet at events, never at times."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from pipeline.api.errors import Cancelled
from pipeline.api.load import ROW_BYTES
from pipeline.api.meter import StageMeter, StageState
from pipeline.api.records import Batch, ChunkEnd, Item
from pipeline.dataflow.inbox import Edge, NodeInbox
from tests.pipeline.api.test_meter import FakeClock
from tests.pipeline.ops import NUMBERS


def rows(chunk: int, *values: int) -> Batch:
    return Batch(chunk, pa.record_batch([list(values), list(values)], schema=NUMBERS))


def put(edge: Edge, item: Item, writer: StageMeter) -> bool:
    return edge.inbox.put(edge, item, writer)


def drain(inbox: NodeInbox) -> list[Item]:
    """Everything that is there without waiting."""
    found = []
    while (item := inbox.poll()) is not None:
        found.append(item)
    return found


def seen(items: list[Item]) -> list[object]:
    """Batches as (port, first value), chunk ends as their number."""
    return [(i.port, i.data["x"][0].as_py()) if isinstance(i, Batch) else i.chunk for i in items]


class Signalling(StageMeter):
    """A meter that tells when its stage begins to wait in the state `waiting`."""

    def __init__(self, waiting: StageState, clock: FakeClock) -> None:
        super().__init__("signalling", clock)
        self.waits = threading.Event()
        self.clock.start()
        enter = self.clock.enter

        def told(state: StageState) -> StageState | None:
            before = enter(state)
            if state is waiting:
                self.waits.set()
            return before

        self.clock.enter = told  # type: ignore[method-assign]


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    result: list[object] = []

    def run() -> None:
        try:
            result.append(work())
        except Cancelled as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


def test_items_come_in_order_and_the_ends_in_their_place():
    inbox = NodeInbox(StageMeter("reader"))
    channel, writer = inbox.connect(10), StageMeter("writer")
    for item in (rows(0, 1), rows(0, 2), ChunkEnd(0, 2), rows(1, 3), ChunkEnd(1, 1)):
        put(channel, item, writer)
    channel.inbox.end(channel)
    assert seen(list(inbox)) == [(0, 1), (0, 2), 0, (0, 3), 1]
    assert inbox.exhausted


def test_a_full_channel_blocks_its_writer_on_the_writers_clock():
    clock = FakeClock()
    reader, writer = StageMeter("reader", clock), Signalling(StageState.BLOCKED, clock)
    inbox = NodeInbox(reader)
    channel = inbox.connect(3)
    assert put(channel, rows(0, 1, 2), writer)
    thread, result = in_thread(lambda: put(channel, rows(0, 3, 4), writer))
    writer.waits.wait()
    clock.now += 5
    assert reader.queue_rows() == 2
    assert isinstance(inbox.poll(), Batch)
    thread.join()
    assert result == [True]
    assert writer.clock.seconds() == {"busy_s": 0, "starved_s": 0, "blocked_s": 5, "wall_s": 5}
    assert (reader.rows_in, reader.batches, reader.queue_rows()) == (2, 1, 2)


def test_an_empty_inbox_starves_its_reader_on_the_readers_clock():
    clock = FakeClock()
    reader, writer = Signalling(StageState.STARVED, clock), StageMeter("writer", clock)
    inbox = NodeInbox(reader)
    channel = inbox.connect(3)
    thread, result = in_thread(lambda: next(iter(inbox)))
    reader.waits.wait()
    clock.now += 7
    put(channel, rows(0, 1), writer)
    thread.join()
    assert isinstance(result[0], Batch)
    assert reader.clock.seconds()["starved_s"] == 7


def test_rows_of_many_bytes_count_as_several():
    """A row of 10 * ROW_BYTES is ten: a third does not fit into an edge of 25 rows until the first is taken."""
    writer = Signalling(StageState.BLOCKED, FakeClock())
    inbox = NodeInbox(StageMeter("reader"))
    edge = inbox.connect(25)
    large = [Batch(0, pa.record_batch([pa.array([bytes(10 * ROW_BYTES)])], ["image"])) for _ in range(3)]
    for batch in large[:2]:
        put(edge, batch, writer)
    thread, _ = in_thread(lambda: put(edge, large[2], writer))
    assert writer.waits.wait(10)
    assert edge.rows == 2
    assert inbox.poll() is not None
    thread.join(10)
    assert (edge.rows, edge.load) == (2, 20)
    drain(inbox)
    assert (edge.rows, edge.load) == (0, 0)


def test_a_batch_larger_than_the_capacity_passes_an_empty_channel():
    channel = NodeInbox(StageMeter("reader")).connect(1)
    assert put(channel, rows(0, 1, 2, 3), StageMeter("writer"))


def test_a_chunk_end_passes_a_full_channel():
    inbox = NodeInbox(StageMeter("reader"))
    channel, writer = inbox.connect(1), StageMeter("writer")
    put(channel, rows(0, 1), writer)
    put(channel, ChunkEnd(0, 1), writer)
    assert seen(drain(inbox)) == [(0, 1), 0]


def test_a_fan_in_forwards_an_end_when_every_input_has_sent_it_and_reads_on_the_input_that_is_ahead():
    inbox = NodeInbox(StageMeter("reader"))
    ahead, behind, writer = inbox.connect(9), inbox.connect(9), StageMeter("writer")
    for item in (rows(0, 1), ChunkEnd(0, 1), rows(1, 2), ChunkEnd(1, 1), rows(2, 3)):
        put(ahead, item, writer)
    assert seen(drain(inbox)) == [(0, 1), (0, 2), (0, 3)]
    put(behind, rows(0, 10), writer)
    put(behind, ChunkEnd(0, 1), writer)
    assert seen(drain(inbox)) == [(1, 10), 0]
    put(behind, ChunkEnd(1, 0), writer)
    assert seen(drain(inbox)) == [1]


def test_an_input_that_has_ended_holds_nobody_up():
    inbox = NodeInbox(StageMeter("reader"))
    short, long, writer = inbox.connect(9), inbox.connect(9), StageMeter("writer")
    put(short, ChunkEnd(0, 0), writer)
    for k in range(3):
        put(long, ChunkEnd(k, 0), writer)
    assert seen(drain(inbox)) == [0]
    short.inbox.end(short)
    assert seen(drain(inbox)) == [1, 2]
    long.inbox.end(long)
    assert drain(inbox) == []
    assert inbox.exhausted


def test_a_reader_that_leaves_releases_its_writer():
    reader, writer = StageMeter("reader"), Signalling(StageState.BLOCKED, FakeClock())
    inbox = NodeInbox(reader)
    channel = inbox.connect(1)
    put(channel, rows(0, 1), writer)
    thread, result = in_thread(lambda: put(channel, rows(0, 2), writer))
    writer.waits.wait()
    inbox.leave()
    thread.join()
    assert result == [False]
    assert reader.queue_rows() == 0


def test_a_cancel_ends_every_wait():
    clock = FakeClock()
    reader, writer = Signalling(StageState.STARVED, clock), Signalling(StageState.BLOCKED, clock)
    empty, full = NodeInbox(reader), NodeInbox(StageMeter("other", clock))
    channel = full.connect(1)
    put(channel, rows(0, 1), writer)
    threads = [in_thread(empty.wait), in_thread(lambda: put(channel, rows(0, 2), writer))]
    reader.waits.wait()
    writer.waits.wait()
    empty.stop(Cancelled)
    full.stop(Cancelled)
    for thread, result in threads:
        thread.join()
        assert isinstance(result[0], Cancelled)
    with pytest.raises(Cancelled):
        full.poll()


def test_a_wake_ends_the_next_wait():
    inbox = NodeInbox(StageMeter("reader"))
    inbox.connect(1)
    inbox.wake()
    inbox.wait()
    assert inbox.poll() is None
