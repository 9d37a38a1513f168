"""Runs a ReadPrompts without a graph and checks what every source must keep to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from operators.settings import DataSettings
from operators.sources.read_prompts import BATCH_ROWS, ReadPrompts
from pipeline.api.meter import StageMeter
from pipeline.api.records import Batch, ChunkEnd, Reject, Rejects
from pipeline.dataflow.inbox import NodeInbox


@dataclass
class Reading:
    """What a source sent: its rows without `row`, by row; its rejects, by row; its chunks' row counts; and the rows by
    what it told about them."""

    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    rejects: dict[int, Reject] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    told: Counter[str] = field(default_factory=Counter)

    @property
    def values(self) -> list[dict[str, Any]]:
        """The rows in order."""
        return [self.rows[i] for i in sorted(self.rows)]


def read(path: Path | str | list[str], chunk_rows: int = 100, seek: int = 0, **data: Any) -> Reading:
    """All that a source over `path` sends, from chunk `seek` on."""
    given = path if isinstance(path, list) else str(path)
    return drain(ReadPrompts(DataSettings(path=given, **data), chunk_rows), chunk_rows, seek)


def drain(op: ReadPrompts, chunk_rows: int, seek: int = 0) -> Reading:
    """All that `op` sends; checks chunks, numbers and schema on the way."""
    out = Reading()
    schema = op.plan()
    op.seek(seek)
    for item in op.run(NodeInbox(StageMeter("read"))):
        assert item.chunk == seek + len(out.ends), "an item of another than the open chunk"
        if isinstance(item, ChunkEnd):
            span = range(item.chunk * chunk_rows, item.chunk * chunk_rows + item.rows)
            assert set(span) <= out.rows.keys() | out.rejects.keys(), "a row of the chunk is missing"
            out.ends[item.chunk] = item.rows
        elif isinstance(item, Batch):
            assert item.data.schema.equals(schema)
            assert 0 < item.num_rows <= BATCH_ROWS
            out.told.update(what for _, what in item.told)
            _keep(out, item.chunk, chunk_rows, out.rows, {row.pop("row"): row for row in item.data.to_pylist()})
        elif isinstance(item, Rejects):
            _keep(out, item.chunk, chunk_rows, out.rejects, {reject.row: reject for reject in item.rows})
    assert sum(out.ends.values()) == len(out.rows) + len(out.rejects)
    return out


def _keep(out: Reading, chunk: int, chunk_rows: int, into: dict[int, Any], found: dict[int, Any]) -> None:
    assert all(row // chunk_rows == chunk for row in found), "a row in another chunk"
    assert not found.keys() & (out.rows.keys() | out.rejects.keys()), "a row twice"
    into |= found
