"""WriteRows: columns of images, and images of prompts, in the files of each format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from operators.images.columns import IMAGE, IMAGE_MARK, MOST_PIXELS, PROMPT_IMAGES, limited
from operators.settings import OutputSettings
from pipeline.api.errors import SchemaError
from pipeline.api.records import ROW, Batch
from tests.operators.sinks.writing import finished, opened

TEXT = pa.field("prompt_text", pa.string())
OF_PROMPTS = limited(PROMPT_IMAGES, MOST_PIXELS, of_columns=True)
SCHEMA = pa.schema([ROW, ("image", IMAGE), ("pages", pa.list_(IMAGE)), TEXT, OF_PROMPTS])
CAT, DOG = {"bytes": b"\xff", "path": "cat.jpg"}, {"bytes": None, "path": "dog.jpg"}
ROWS: list[dict[str, Any]] = [
    {"row": 0, "image": CAT, "pages": [CAT, None, DOG], "prompt_text": f"{IMAGE_MARK}a", "prompt_images": [CAT]},
    {"row": 1, "image": {"bytes": b"\xff", "path": None}, "pages": None, "prompt_text": None, "prompt_images": None},
    {"row": 2, "image": None, "pages": [], "prompt_text": "<image>", "prompt_images": None},
]
PATHS = {"image": ["cat.jpg", None, None], "pages": [["cat.jpg", None, "dog.jpg"], None, []]}
TEXTS = ["<image>a", None, "<image>"]


def written(folder: Path, output: str) -> Path:
    op = opened(folder, OutputSettings(output, prompt_text=True), SCHEMA)
    data = pa.RecordBatch.from_pylist([{"row": 9, "pages": [DOG]}, *ROWS], SCHEMA).slice(1)
    assert not list(op.process(Batch(0, data)))
    return finished(op).temporary


def test_images_are_whole_in_files_that_hold_bytes(tmp_path: Path) -> None:
    table = pq.read_table(written(tmp_path, "parquet"))
    assert table.column_names == ["row", "image", "pages", "prompt_text"]
    for name in ("image", "pages"):
        assert table[name].to_pylist() == [row[name] for row in ROWS]
    assert table["prompt_text"].to_pylist() == TEXTS


def test_images_are_their_paths_in_files_of_text(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in written(tmp_path / "a", "jsonl").read_text().splitlines()]
    assert {name: [row[name] for row in rows] for name in PATHS} == PATHS
    assert [row["prompt_text"] for row in rows] == TEXTS
    table = pyarrow.csv.read_csv(
        written(tmp_path / "b", "csv"), convert_options=pa.csv.ConvertOptions(strings_can_be_null=True)
    )
    assert table["image"].to_pylist() == PATHS["image"]
    assert pq.read_table(written(tmp_path / "c", "xlsx"))["image"].to_pylist() == PATHS["image"]


def test_columns_of_the_user_by_such_names_are_written(tmp_path: Path) -> None:
    images = [("prompt_images", pa.int64()), ("my_prompt_images", pa.list_(IMAGE))]
    own = pa.schema([ROW, *images, ("my_prompt_text", pa.string())])
    schema = pa.schema([*own, OF_PROMPTS.with_name("a_prompt_images"), pa.field("a_prompt_text", pa.string())])
    op = opened(tmp_path, OutputSettings(), schema)
    row = {"row": 0, "prompt_images": 3, "my_prompt_images": [CAT], "my_prompt_text": IMAGE_MARK}
    row |= {"a_prompt_images": [CAT], "a_prompt_text": IMAGE_MARK}
    assert not list(op.process(Batch(0, pa.RecordBatch.from_pylist([row], schema))))
    del row["a_prompt_images"]
    assert pq.read_table(finished(op).temporary).to_pylist() == [row | {"a_prompt_text": "<image>"}]


def test_other_bytes_are_refused_as_ever(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="JSON lines cannot hold bytes; write output=parquet"):
        opened(tmp_path, OutputSettings("jsonl"), pa.schema([ROW, ("image", pa.binary())]))


def test_parquet_has_few_large_images_in_a_row_group(tmp_path: Path) -> None:
    schema = pa.schema([ROW, ("image", IMAGE)])
    op = opened(tmp_path, OutputSettings(), schema)
    for row in reversed(range(5)):
        rows = [{"row": row, "image": {"bytes": bytes([row]) * (12 << 20), "path": None}}]
        assert not list(op.process(Batch(0, pa.RecordBatch.from_pylist(rows, schema))))
    file = pq.ParquetFile(finished(op).temporary)
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [2, 2, 1]
    assert [image["bytes"][0] for image in file.read()["image"].to_pylist()] == list(range(5))


def test_more_bytes_than_a_column_of_a_chunk_holds_are_an_error_with_its_remedy(tmp_path: Path) -> None:
    schema = pa.schema([ROW, ("image", IMAGE)])
    op = opened(tmp_path, OutputSettings(), schema)
    one = pa.RecordBatch.from_pylist([{"row": 0, "image": {"bytes": bytes(64 << 20), "path": None}}], schema)
    for row in range(33):
        assert not list(op.process(Batch(0, one.set_column(0, ROW, pa.array([row], ROW.type)))))
    with pytest.raises(ValueError, match=r"more than 2 GiB in one column; make chunks smaller \(chunk_rows=\)"):
        finished(op)
