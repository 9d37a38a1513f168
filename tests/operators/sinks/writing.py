"""A WriteRows in a folder, and what it writes of some rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from operators.settings import OutputSettings
from operators.sinks.write_rows import WriteRows
from pipeline.api.meter import StageMeter
from pipeline.api.records import LINEAGE, ROW, Batch, Shard
from pipeline.api.runtime import Resources, RunContext, Runtime
from pipeline.run_dir.metrics_table import MetricsTables

SCHEMA = pa.schema([ROW, LINEAGE, pa.field("text", pa.string()), pa.field("ids", pa.list_(pa.int32()))])


def row(i: int) -> dict[str, Any]:
    return {"row": i // 2, "lineage": [i % 2], "text": None if i % 5 == 0 else f"t{i % 7}", "ids": [i] * (i % 4)}


def runtime(folder: Path) -> Runtime:
    return Runtime(RunContext(folder, Resources(), MetricsTables(folder).get), "write", 1, StageMeter("write"))


def opened(folder: Path, output: OutputSettings | None = None, schema: pa.Schema = SCHEMA) -> WriteRows:
    op = WriteRows(output or OutputSettings())
    op.plan(schema)
    op.open(runtime(folder))
    return op


def finished(op: WriteRows, chunk: int = 0) -> Shard:
    (shard,) = op.finish(chunk)
    assert isinstance(shard, Shard)
    return shard


def write(folder: Path, batches: list[list[dict[str, Any]]], output: OutputSettings | None = None) -> Shard:
    op = opened(folder, output)
    for rows in batches:
        assert not list(op.process(Batch(0, pa.RecordBatch.from_pylist(rows, SCHEMA))))
    return finished(op)
