"""The rows that stand for an input, and how many there are, for each format."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from operators.settings import DataSettings
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import ConfigError
from pipeline.api.forecast import Range
from pipeline.api.protocols import Operator
from pipeline.dry_run.sample import PLACES, ROWS, InputSample, sample_of

CHUNK = 64


def rows_of(count: int) -> pa.Table:
    return pa.table({"prompt": [f"number {i} of many" for i in range(count)]})


def written(folder: Path, kind: str, count: int) -> Path:
    table, path = rows_of(count), folder / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=1000)
    elif kind == "csv":
        pa.csv.write_csv(table, path)
    elif kind in ("arrow", "arrows"):
        make = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with make(path, table.schema) as writer:
            writer.write_table(table, 500)
    else:
        path.write_text("".join(f'{{"prompt": "number {i} of many"}}\n' for i in range(count)))
    return path


def sampled(path: Path, first_chunk: int = 0, limit: int | None = None, hurry: bool = False) -> InputSample:
    source = ReadPrompts(DataSettings(path=str(path), limit=limit), CHUNK)
    source.plan()
    clock = iter(range(10**9)) if hurry else iter([0] * 10**6)
    return sample_of(source, first_chunk, first_chunk * CHUNK, CHUNK, lambda: float(next(clock)))


def test_the_rest_of_an_input_that_cannot_be_resumed_is_refused():
    with pytest.raises(ConfigError, match=r"Operator has no seek\(chunk\), so the run cannot be resumed"):
        sample_of(Operator(), 1, CHUNK, CHUNK)


def numbers(sample: InputSample) -> list[int]:
    return [row for batch in sample.batches for row in batch.data.column("row").to_pylist()]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv", "arrow", "arrows"])
def test_of_few_rows_all_are_taken(kind, tmp_path):
    found = sampled(written(tmp_path, kind, 300))
    assert found.rows == Range.exact(300)
    assert numbers(found) == list(range(300))
    assert [batch.chunk for batch in found.batches] == [0] * len(found.batches)


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv", "arrow", "arrows"])
def test_of_more_rows_some_are_taken_from_everywhere(kind, tmp_path):
    found = sampled(written(tmp_path, kind, 9000))
    assert found.rows == Range.exact(9000)
    assert ROWS <= len(numbers(found)) <= 2 * ROWS
    assert {row // 1000 for row in numbers(found)} == set(range(9))


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "arrow"])
def test_of_many_rows_those_of_some_places_are(kind, tmp_path):
    found = sampled(written(tmp_path, kind, 60_000))
    assert found.rows == Range.exact(60_000)
    assert len(numbers(found)) <= 2 * ROWS + CHUNK
    assert len({row // 7500 for row in numbers(found)}) == PLACES


@pytest.mark.parametrize(("kind", "exact"), [("parquet", True), ("jsonl", True), ("csv", False), ("arrows", False)])
def test_rows_that_there_is_no_time_to_read_are_counted_or_told_by_their_bytes(kind, exact, tmp_path):
    count = 200_000
    found = sampled(written(tmp_path, kind, count), hurry=True)
    assert found.rows.is_exact == exact
    assert found.rows.low <= count <= found.rows.high
    assert found.rows.likely == pytest.approx(count, rel=0.15)


def test_a_run_that_goes_on_is_told_of_the_rows_that_are_left(tmp_path):
    found = sampled(written(tmp_path, "jsonl", 300), first_chunk=2)
    assert found.rows == Range.exact(300 - 2 * CHUNK)
    assert numbers(found) == list(range(2 * CHUNK, 300))


def test_a_limit_holds(tmp_path):
    assert sampled(written(tmp_path, "parquet", 9000), limit=500).rows == Range.exact(500)
    assert sampled(written(tmp_path, "csv", 9000), limit=500).rows == Range.exact(500)


def test_bad_rows_are_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\nnonsense\n{"prompt": "b"}\n')
    found = sampled(path)
    assert (found.rows, found.taken, numbers(found)) == (Range.exact(3), 3, [0, 2])
    assert [reject.row for rejects in found.rejects for reject in rejects.rows] == [1]
