"""Limit: the first rows of the run, and no further reading."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from operators.limit import Limit
from operators.union import Union
from pipeline.api.errors import ConfigError
from pipeline.api.records import ROW
from pipeline.dataflow.graph import Node
from tests.operators.arrivals import Outcome, in_order
from tests.operators.flow import Flow, Rows, chain
from tests.pipeline.ops import Collect, Count

SCHEMA = pa.schema([ROW])
CHUNKS = [[{"row": i} for i in range(first, first + 10)] for first in range(0, 50, 10)]


@pytest.mark.parametrize(
    ("rows", "chunks", "rejected"), [(1, 1, 9), (10, 1, 0), (11, 2, 9), (25, 3, 5), (50, 5, 0), (99, 5, 0)]
)
def test_it_ends_with_the_chunk_that_has_the_last_of_them(rows, chunks, rejected):
    op = Limit(rows)
    op.plan(SCHEMA)
    outcome = Outcome().take(op, in_order(CHUNKS, SCHEMA))
    assert sorted(row for row, _ in outcome.rows) == list(range(min(rows, 50)))
    assert outcome.ended == list(range(chunks))
    assert [*outcome.rejects.values()] == [("filtered", f"beyond the first {rows} rows")] * rejected


def test_what_is_not_needed_is_not_read(tmp_path):
    source = Count(1_000_000)
    flow = Flow(tmp_path, chain(source, limit=Limit(25)))
    assert [row["row"] for row in flow.run()] == list(range(25))
    assert flow.committed == [0, 1, 2]
    assert source.sent < 1_000_000


def test_another_branch_gets_its_rows_all_the_same(tmp_path):
    rows = [{"text": str(i)} for i in range(40)]
    every = Collect()
    nodes = chain(Rows(rows, pa.schema([("text", pa.string())]), chunk_rows=8), limit=Limit(10))
    nodes |= {"every": Node(every, ("source",)), "both": Node(Union(), ("limit", "source"))}
    flow = Flow(tmp_path, nodes)
    out = [(row["row"], row["lineage"]) for row in flow.run()]
    assert [row for row, lineage in out if lineage == [0]] == list(range(10))
    assert [row for row, lineage in out if lineage == [1]] == list(range(40))
    assert len(every.column("row")) == 40
    assert flow.committed == [0, 1, 2, 3, 4]


def test_a_resumed_run_that_had_them_all_reads_nothing(tmp_path: Path):
    op = Limit(3)
    op.plan(SCHEMA)
    op.restore([b"3"])
    assert Outcome().take(op, in_order(CHUNKS, SCHEMA)).ended == []


def test_none_is_no_limit():
    with pytest.raises(ConfigError, match="rows=0 cannot work: it is 1 or more"):
        Limit(0)
