"""WriteParquet: which files, which columns, and equal bytes for equal rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.filter import Filter
from operators.settings import OutputSettings
from operators.sinks.write_parquet import WriteParquet
from pipeline.errors import ConfigError, SchemaError
from pipeline.graph import Node
from pipeline.meter import StageMeter
from pipeline.records import LINEAGE, ROW, Batch, Shard
from pipeline.runtime import NodeRuntime, Resources, RunContext
from tests.operators.flow import Flow, Rows, chain

SCHEMA = pa.schema([ROW, LINEAGE, pa.field("text", pa.string()), pa.field("ids", pa.list_(pa.int32()))])


def row(i: int) -> dict[str, Any]:
    return {"row": i // 2, "lineage": [i % 2], "text": None if i % 5 == 0 else f"t{i % 7}", "ids": [i] * (i % 4)}


def runtime(folder: Path) -> NodeRuntime:
    return NodeRuntime(RunContext(folder, Resources(), Resources()), "write", 1, StageMeter("write"))


def write(folder: Path, batches: list[list[dict[str, Any]]], output: OutputSettings | None = None) -> Shard:
    op = WriteParquet(output or OutputSettings())
    op.plan(SCHEMA)
    op.open(runtime(folder))
    for rows in batches:
        assert not list(op.process(Batch(0, pa.RecordBatch.from_pylist(rows, SCHEMA))))
    (shard,) = op.finish(0)
    assert isinstance(shard, Shard)
    return shard


@settings(max_examples=30, deadline=None)
@given(cut=st.integers(1, 40), seed=st.integers(0, 9), slices=st.booleans())
def test_order_and_batches_do_not_show_in_the_bytes(tmp_path_factory, cut: int, seed: int, slices: bool) -> None:
    rows = [row(i) for i in range(40)]
    shuffled = random.Random(seed).sample(rows, len(rows))
    folder = tmp_path_factory.mktemp("out")
    first = write(folder / "a", [rows])
    second = write(folder / "b", [shuffled[i : i + cut] for i in range(0, 40, cut)])
    assert (first.sha256, first.rows) == (second.sha256, 40)
    assert pq.read_table(second.temporary).to_pylist() == rows


def test_metadata_of_the_schema_is_left_out(tmp_path: Path) -> None:
    op = WriteParquet(OutputSettings(compression="none"))
    op.plan(SCHEMA.with_metadata({"when": "now"}))
    op.open(runtime(tmp_path))
    (shard,) = op.finish(3)
    assert isinstance(shard, Shard)
    assert shard.path == tmp_path / "data" / "part-00003.parquet"
    assert pq.read_schema(shard.temporary).equals(SCHEMA)
    assert pq.read_schema(shard.temporary).metadata is None
    assert not shard.path.exists()


def test_one_file_a_chunk_in_a_flow_also_for_a_second_sink(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i}"} for i in range(40)]
    nodes = chain(Rows(rows, pa.schema([("prompt", pa.string())]), chunk_rows=16))
    nodes |= {
        "main": Node(WriteParquet(OutputSettings()), ("source",)),
        "second": Node(WriteParquet(OutputSettings(), "second"), ("source",)),
        "some": Node(Filter("row < 5"), ("source",)),
    }
    Flow(tmp_path, nodes).run()
    for folder in (tmp_path / "data", tmp_path / "data" / "second"):
        files = sorted(folder.glob("*.parquet"))
        assert [f.name for f in files] == [f"part-0000{k}.parquet" for k in range(3)]
        assert [r["prompt"] for f in files for r in pq.read_table(f).to_pylist()] == [r["prompt"] for r in rows]


@pytest.mark.parametrize(
    ("output", "columns"),
    [
        (OutputSettings(), ["row", "completion"]),
        (OutputSettings(prompt_text=True), ["row", "prompt_text", "completion"]),
        (OutputSettings(completion_ids=True), ["row", "completion", "completion_ids"]),
    ],
)
def test_helper_columns_are_left_out(tmp_path: Path, output: OutputSettings, columns: list[str]) -> None:
    ids = pa.list_(pa.int32())
    text = pa.string()
    schema = pa.schema([ROW, ("prompt_text", text), ("prompt_ids", ids), ("completion", text), ("completion_ids", ids)])
    op = WriteParquet(output)
    op.plan(schema)
    op.open(runtime(tmp_path))
    (shard,) = op.finish(0)
    assert isinstance(shard, Shard)
    assert pq.read_schema(shard.temporary).names == columns


def test_what_cannot_work_is_refused() -> None:
    for directory in ("/tmp", "../x"):
        with pytest.raises(ConfigError, match="a folder in data/"):
            WriteParquet(OutputSettings(), directory)
    with pytest.raises(SchemaError, match="needs a column 'row'"):
        WriteParquet(OutputSettings()).plan(pa.schema([("a", pa.string())]))
