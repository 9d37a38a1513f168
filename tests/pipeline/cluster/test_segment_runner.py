"""The source of rows in a worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from pipeline.cluster.pieces import WorkRequest, to_ipc
from pipeline.cluster.segment_runner import _Pieces


def test_an_older_piece_does_not_take_the_rows_of_a_round_back() -> None:
    """It is sent again when its worker has ended, and says what was known when it was made."""
    source = _Pieces(pa.schema([("row", pa.int64())]))
    runtime: Any = SimpleNamespace(cancelled=False)
    source.open(runtime)
    rows = to_ipc(pa.record_batch({"row": pa.array([1], pa.int64())}))
    for known in (None, 8, None):
        source.put(WorkRequest(0, "workers_1", 0, rows, known))
    items, seen = source.run(runtime), []
    for _ in range(3):
        next(items)
        seen.append(source.round_rows)
        next(items)
    assert seen == [None, 8, 8]
