"""Pieces hold all rows of their chunk once; what is sent is no larger than its rows."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.api.records import Batch
from pipeline.cluster.pieces import Cutter, from_ipc, to_ipc


@given(sizes=st.lists(st.integers(0, 30), max_size=12), rows=st.integers(1, 12))
def test_a_cutter_keeps_rows_and_order(sizes: list[int], rows: int) -> None:
    made: list[Batch] = []
    cutter, first = Cutter(rows), 0
    for size in sizes:
        data = pa.record_batch({"row": pa.array(range(first, first + size), pa.int64())})
        made += cutter.add(Batch(3, data))
        first += size
    full = list(made)
    made += cutter.flush()
    assert [row for batch in made for row in batch.data.column("row").to_pylist()] == list(range(first))
    assert all(batch.num_rows == rows and batch.chunk == 3 for batch in full)
    assert all(1 <= batch.num_rows <= rows for batch in made)


def test_a_piece_of_another_chunk_does_not_join() -> None:
    cutter = Cutter(10)
    data = pa.record_batch({"row": pa.array([1], pa.int64())})
    assert list(cutter.add(Batch(0, data))) == []
    assert [batch.chunk for batch in cutter.add(Batch(1, data))] == [0]
    assert [batch.chunk for batch in cutter.flush()] == [1]


def test_a_slice_is_sent_without_the_rest() -> None:
    large = pa.record_batch({"text": pa.array([f"{i:06}" * 20 for i in range(10_000)])})
    sent = to_ipc(large.slice(500, 3))
    assert len(sent) < 2000
    assert from_ipc(sent).to_pylist() == large.slice(500, 3).to_pylist()
    assert from_ipc(to_ipc(large.slice(0, 0))).num_rows == 0
