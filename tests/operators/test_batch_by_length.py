"""BatchByLength: what leaves together, when, and that it is all there."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.batch_by_length import BatchByLength, list_lengths
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import SchemaError
from pipeline.api.meter import StageMeter
from pipeline.api.records import ROW, Batch, ChunkEnd, Item
from pipeline.dataflow.inbox import NodeInbox

SCHEMA = pa.schema([ROW, pa.field("prompt_ids", pa.list_(pa.int32()))])


def batch(chunk: int, rows: dict[int, int]) -> Batch:
    """Rows with prompts of the given lengths."""
    ids = pa.array([[0] * length for length in rows.values()], SCHEMA.field("prompt_ids").type)
    return Batch(chunk, pa.record_batch([pa.array(list(rows), pa.int64()), ids], schema=SCHEMA))


def sent(op: BatchByLength, *items: Item) -> list[tuple[int, list[int]] | str]:
    """(chunk, rows) of each batch that leaves, "end k" for each chunk end."""
    inbox = NodeInbox(StageMeter("batch"))
    channel = inbox.connect(1 << 30)
    for item in items:
        channel.inbox.put(channel, item, StageMeter("source"))
    channel.inbox.end(channel)
    assert op.plan(SCHEMA) == SCHEMA
    return [
        f"end {item.chunk}" if isinstance(item, ChunkEnd) else (item.chunk, item.data.column("row").to_pylist())
        for item in op.run(inbox)
        if isinstance(item, Batch | ChunkEnd)
    ]


def test_a_full_window_leaves_and_large_batches_are_cut() -> None:
    op = BatchByLength(EngineSettings(slots=1, lookahead_rows=100))
    rows = dict(enumerate(range(150)))
    out = sent(op, batch(0, rows), ChunkEnd(0, 150))
    assert out == [(0, [*range(99, 35, -1)]), (0, [*range(35, -1, -1)]), (0, [*range(149, 99, -1)]), "end 0"]


def test_rows_of_two_chunks_share_a_window_and_no_batch() -> None:
    out = sent(BatchByLength(EngineSettings()), batch(1, {9: 9}), batch(0, {0: 1}), batch(1, {8: 10}), ChunkEnd(0, 1))
    assert out == [(0, [0]), (1, [8, 9]), "end 0"]


def test_an_empty_inbox_is_not_waited_on() -> None:
    inbox = NodeInbox(StageMeter("batch"))
    channel = inbox.connect(100)
    channel.inbox.put(channel, batch(0, {0: 1}), StageMeter("source"))
    op = BatchByLength(EngineSettings())
    op.plan(SCHEMA)
    running = op.run(inbox)
    first = next(running)
    assert isinstance(first, Batch)
    assert first.num_rows == 1
    channel.inbox.put(channel, ChunkEnd(0, 1), StageMeter("source"))
    channel.inbox.end(channel)
    assert list(running) == [ChunkEnd(0, 1)]


@settings(deadline=None)
@given(lengths=st.lists(st.integers(0, 20), max_size=60), cut=st.integers(1, 60), window=st.integers(1, 70))
def test_every_row_leaves_once_in_its_chunk(lengths: list[int], cut: int, window: int) -> None:
    rows = dict(enumerate(lengths))
    chunks = [dict(list(rows.items())[i : i + 20]) for i in range(0, len(rows), 20)]
    items: list[Item] = []
    for k, chunk in enumerate(chunks):
        items += [batch(k, dict(list(chunk.items())[i : i + cut])) for i in range(0, len(chunk), cut)]
        items.append(ChunkEnd(k, len(chunk)))
    out = sent(BatchByLength(EngineSettings(lookahead_rows=window)), *items)
    for k, chunk in enumerate(chunks):
        left = [row for item in out if not isinstance(item, str) and item[0] == k for row in item[1]]
        assert sorted(left) == list(chunk)
        if window >= 20:
            assert left == sorted(chunk, key=lambda row: (-chunk[row], row))


def test_lengths_of_slices_and_nulls() -> None:
    column = pa.array([[9] * 7, [1], [2, 3], None, []], pa.list_(pa.int32()))
    assert list_lengths(column.slice(1, 3)).tolist() == [1, 2, 0]
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 2, 4], pa.int32()), pa.array([1, 2, 3, 4], pa.int32()), mask=pa.array([True, False])
    )
    assert np.array_equal(list_lengths(hidden), [0, 2])


def test_prompt_ids_are_needed() -> None:
    with pytest.raises(SchemaError, match="needs a column 'prompt_ids'"):
        BatchByLength(EngineSettings()).plan(pa.schema([ROW]))
