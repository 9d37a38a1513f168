"""A file for each split of a chunk (`output.split_by`)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from operators.settings import OutputSettings
from pipeline.api.errors import SchemaError
from pipeline.api.records import ROW, Batch, Rejects, Shard
from pipeline.system.atomic_files import rename_shards
from tests.operators.sinks.writing import finished, opened


def test_each_split_of_a_chunk_is_a_file_and_a_row_of_none_is_a_reject(tmp_path: Path) -> None:
    schema = pa.schema([ROW, ("part", pa.string())])
    op = opened(tmp_path, OutputSettings("jsonl", split_by="part"), schema)
    values = ["b", "a", None, "x/y", "b", "all", ""]
    (rejects,) = op.process(
        Batch(2, pa.RecordBatch.from_pylist([{"row": i, "part": v} for i, v in enumerate(values)], schema))
    )
    assert isinstance(rejects, Rejects)
    assert [(reject.row, reject.kind) for reject in rejects.rows] == [(i, "error") for i in (2, 3, 5, 6)]
    assert rejects.rows[1].reason.startswith("output.split_by=part: 'x/y' is no name of a split: letters, digits")
    shards = [shard for shard in op.finish(2) if isinstance(shard, Shard)]
    rename_shards(shards)
    assert [(shard.path.name, shard.path.read_text()) for shard in shards] == [
        ("part-00002-a.jsonl", '{"row":1,"part":"a"}\n'),
        ("part-00002-b.jsonl", '{"row":0,"part":"b"}\n{"row":4,"part":"b"}\n'),
    ]
    assert finished(op, 3).path.name == "part-00003.jsonl"  # a chunk without rows


def test_splits_that_would_overwrite_each_other_or_are_too_many_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([ROW, ("part", pa.string())])
    for values, says in ((["Test", "test"], "'Test' and 'test' would be one file"), (range(101), "101 values")):
        op = opened(tmp_path, OutputSettings(split_by="part"), schema)
        rows = [{"row": i, "part": str(value)} for i, value in enumerate(values)]
        list(op.process(Batch(0, pa.RecordBatch.from_pylist(rows, schema))))
        with pytest.raises(ValueError, match=says):
            list(op.finish(0))
    with pytest.raises(SchemaError, match=r"column 'ids' has type .*; it must be string"):
        opened(tmp_path, OutputSettings(split_by="ids"))
