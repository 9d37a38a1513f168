"""WriteRows: which files in which format, which columns, and equal bytes for equal rows."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.filter import Filter
from operators.formats import registry
from operators.images.columns import IMAGE
from operators.openai.write_batch import WriteBatch
from operators.settings import OutputSettings
from operators.sinks.write_rows import WriteRows
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import ROW, Batch, Rejects
from pipeline.dataflow.graph import Node
from pipeline.system.atomic_files import part_name, rename_shards, write_parquet_shard
from pipeline.system.result_files import names_of, scan_folder
from tests.arrow_extremes import taken
from tests.operators.flow import Flow, Rows, chain
from tests.operators.formats.samples import NESTED, read_back
from tests.operators.sinks.writing import SCHEMA, finished, opened, row, write

PARTS = {name: form for name, form in registry.WRITTEN.items() if form.final is None}
"""Formats of files in data/; test_xlsx.py has the others."""
FORMATS = [OutputSettings(name, each) for name, form in PARTS.items() for each in form.compressions]
LEVELS = [OutputSettings(compression="gzip", compression_level=2), OutputSettings("jsonl", "zstd", 7)]


def named(output: OutputSettings) -> str:
    return f"{output.format}-{output.compression}"


@pytest.mark.parametrize("output", [*FORMATS, *LEVELS], ids=named)
@settings(max_examples=12, deadline=None)
@given(count=st.sampled_from([0, 40]), cut=st.integers(1, 40), seed=st.integers(0, 9))
def test_order_and_batches_do_not_show_in_the_bytes(tmp_path_factory, output, count: int, cut: int, seed: int) -> None:
    """A chunk without rows is a file, too. A dry run expects a file of that size."""
    rows = [row(i) for i in range(count)]
    shuffled = random.Random(seed).sample(rows, len(rows))
    folder = tmp_path_factory.mktemp("out")
    first = write(folder / "a", [rows], output)
    second = write(folder / "b", [shuffled[i : i + cut] for i in range(0, count, cut)], output)
    assert (first.sha256, first.rows) == (second.sha256, count)
    rename_shards([second])
    found = scan_folder(second.path.parent, names_of(SCHEMA)).collect().to_dicts()
    assert found == read_back(rows, output.format)
    batch = Batch(0, pa.RecordBatch.from_pylist(rows, SCHEMA))
    assert opened(folder, output).encoded_bytes([batch]) == second.path.stat().st_size


@pytest.mark.parametrize("output", FORMATS, ids=named)
def test_nested_types_and_values_come_back_and_what_is_below_a_null_does_not_show(tmp_path, output) -> None:
    kind = pa.struct({"n": pa.int64(), "tags": pa.list_(pa.struct({"t": pa.string(), "p": pa.float64()}))})
    value = {"n": 1, "tags": [{"t": 'é\n"', "p": 0.1}, {"t": None, "p": -1e300}]}
    floats = pa.list_(pa.float32())
    schema = pa.schema([ROW, pa.field("s", kind), pa.field("v", floats), pa.field("i", pa.int64())])
    shards = []
    for below in (7, 8):  # the same rows; only the memory under the null differs
        column = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.array([3, below]).buffers()[1]])
        op = opened(tmp_path / str(below), output, schema)
        columns = [pa.array([0, 1]), pa.array([value, None], kind), pa.array([[0.5], []], floats), column]
        list(op.process(Batch(0, pa.record_batch(columns, schema=schema))))
        shards.append(finished(op))
    rename_shards(shards)
    assert shards[0].sha256 == shards[1].sha256
    found = scan_folder(shards[0].path.parent, names_of(schema)).collect().to_dicts()
    rows: list[dict[str, Any]] = [{"row": 0, "s": value, "v": [0.5], "i": 3}, {"row": 1, "s": None, "v": [], "i": None}]
    assert found == read_back(rows, output.format)


ON_HUB = [OutputSettings(name) for name, form in PARTS.items() if form.hub]


@pytest.mark.parametrize("output", [*ON_HUB, OutputSettings("jsonl", "gzip")], ids=named)
def test_datasets_reads_a_folder_in_which_a_chunk_has_no_rows(tmp_path, output) -> None:
    """An empty row group of a Parquet file is an error there, also where another file has rows. From CSV it takes the
    types of the first file, which must have rows (docs/output.md)."""
    empty, full = write(tmp_path / "empty", [], output), write(tmp_path, [[row(0), row(1)]], output)
    rename_shards([empty, full])
    for chunk in (1, 2):
        (full.path.parent / full.path.name.replace("00000", f"{chunk:05d}")).write_bytes(empty.path.read_bytes())
    for streaming in (False, True):
        files = sorted(map(str, full.path.parent.iterdir()), reverse=output.format != "csv")
        given: dict[str, Any] = {"data_files": files, "cache_dir": tmp_path, "split": "train", "streaming": streaming}
        loaded = datasets.load_dataset(registry.FORMATS[output.format].hub, **given)
        assert [found["ids"] for found in loaded] == ([[], [1]] if output.format in NESTED else ["[]", "[1]"])


def test_no_parquet_shard_has_a_row_group_without_rows(tmp_path) -> None:
    none = SCHEMA.empty_table()
    shards = [write(tmp_path, [], output) for output in (OutputSettings(), LEVELS[0])]
    shards += [write(tmp_path, [[]]), write_parquet_shard(none, tmp_path / "rejects" / part_name(0), 0)]
    for shard in shards:
        found = pq.ParquetFile(shard.temporary)
        assert (found.num_row_groups, found.schema_arrow) == (0, SCHEMA)


def test_no_time_stands_in_a_gzip_header(tmp_path) -> None:
    shard = write(tmp_path, [[row(1)]], OutputSettings("jsonl", "gzip"))
    content = shard.temporary.read_bytes()
    assert content[3:8] == bytes(5)  # no name, and a time of 0
    assert json.loads(gzip.decompress(content)) == row(1)


def deep(depth: int) -> pa.DataType:
    return pa.list_(deep(depth - 1)) if depth else pa.int64()


DEEP = "is nested deeper than .* write output=jsonl"
BYTES = "has type .*JSON lines cannot hold bytes; write output=parquet or output=arrow"
UNKNOWN = "has type .* cannot be written into .*; write output=arrow"


@pytest.mark.parametrize(
    ("kind", "output", "says"),
    [
        (deep(60), "parquet", DEEP),
        (deep(80), "arrow", DEEP),
        (pa.binary(), "jsonl", BYTES),
        (pa.list_(pa.large_binary()), "jsonl", BYTES),
        (pa.struct({"a": pa.binary(4)}), "jsonl", BYTES),
        (pa.month_day_nano_interval(), "parquet", UNKNOWN),
        (pa.sparse_union([pa.field("a", pa.int64())]), "parquet", UNKNOWN),
        (pa.struct({"a": pa.decimal256(50, 2)}), "jsonl", UNKNOWN),
        (pa.list_view(pa.int64()), "jsonl", UNKNOWN),
    ],
)
def test_a_type_that_no_file_of_the_format_can_have_is_refused_with_one_that_can(kind, output: str, says: str) -> None:
    schema = pa.schema([ROW, pa.field("odd", kind)])
    with pytest.raises(SchemaError, match=f"column 'odd' {says}"):
        WriteRows(OutputSettings(output)).plan(schema)
    WriteRows(OutputSettings(says.rpartition("=")[2])).plan(schema)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"format": "lines"}, "output.format='lines' cannot work: it is one of parquet, jsonl, csv, arrow"),
        ({"format": "csv", "separator": "x"}, "output.separator='x' cannot work: it is one of ,, ;, \t, |"),
        ({"separator": ";"}, "output.separator=';' cannot work: it is for output=csv"),
        ({"format": "jsonl", "compression": "snappy"}, "with output.format=jsonl it is one of none, gzip, zstd"),
        ({"format": "xlsx", "split_by": "split"}, "output.split_by='split' cannot work: output=xlsx is one file"),
        ({"compression_level": 23}, "zstd has levels 1 to 22"),
        ({"compression": "snappy", "compression_level": 1}, "snappy has no levels"),
        ({"publish": "bucket/prefix"}, "it is a URL: s3://bucket/prefix"),
        ({"publish": "ftp://me:hunter2@host/x"}, "output.publish has a password in it"),
    ],
)
def test_settings_that_cannot_work_are_refused(values, says) -> None:
    with pytest.raises(ConfigError, match=says):
        OutputSettings(**values)


def test_metadata_of_the_schema_is_left_out(tmp_path: Path) -> None:
    shard = finished(opened(tmp_path, schema=SCHEMA.with_metadata({"when": "now"})), 3)
    assert shard.path == tmp_path / "data" / "part-00003.parquet"
    assert pq.read_schema(shard.temporary).equals(SCHEMA)
    assert pq.read_schema(shard.temporary).metadata is None
    assert not shard.path.exists()


def test_one_file_a_chunk_in_a_flow_also_for_a_second_sink(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i}"} for i in range(40)]
    nodes = chain(Rows(rows, pa.schema([("prompt", pa.string())]), chunk_rows=16))
    nodes |= {
        "main": Node(WriteRows(OutputSettings()), ("source",)),
        "second": Node(WriteRows(OutputSettings(), "second"), ("source",)),
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
    shard = finished(opened(tmp_path, output, schema))
    assert pq.read_schema(shard.temporary).names == columns


def test_what_cannot_work_is_refused() -> None:
    for directory in ("/tmp", "../x"):
        with pytest.raises(ConfigError, match="a folder in data/"):
            WriteRows(OutputSettings(), directory)
    with pytest.raises(ConfigError, match=r"output\.split_by='split' cannot work: output\.jsonl has all lines"):
        WriteBatch(OutputSettings(split_by="split"))
    with pytest.raises(SchemaError, match="needs a column 'row'"):
        WriteRows(OutputSettings()).plan(pa.schema([("a", pa.string())]))


def test_a_preview_rounds_numbers_and_shows_nested_values_as_json(tmp_path):
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    columns = {"perplexity": pa.float64(), "messages": pa.list_(message), "text": pa.string(), "image": IMAGE}
    schema = pa.schema([ROW, *columns.items()])
    op = WriteRows(OutputSettings(preview=1, preview_columns=[*columns, "perplexity"]))
    op.plan(schema)
    (tmp_path / "data").mkdir()
    messages = [{"role": "user", "content": "é"}]
    image = {"bytes": b"\x89PNG 1 2", "path": "a.png"}
    values = {"row": 0, "perplexity": 1.0003905573437335, "messages": messages, "text": "a\nb", "image": image}
    pq.write_table(pa.Table.from_pylist([values], schema), tmp_path / "data/part-00000.parquet")
    assert list(op.report(tmp_path, "write")) == [
        "perplexity  1.00039",
        'messages    [{"role": "user", "content": "é"}]',
        "text        a b",
        'image       {"bytes": "(8 bytes)", "path": "a.png"}',
        "",
    ]


COLUMNS = taken()


@pytest.mark.parametrize("format", registry.WRITTEN)
def test_a_column_of_any_type_is_refused_before_the_run_or_written_but_for_rows_that_the_format_cannot_hold(
    tmp_path, format, capfd
):
    refused, without = set(), {}
    for number, (name, column) in enumerate(COLUMNS.items()):
        schema = pa.schema([ROW, pa.field("x", column.type)])
        try:
            op = opened(tmp_path / str(number), OutputSettings(format, preview=4), schema)
        except SchemaError:
            refused.add(name)
            continue
        batch = Batch(0, pa.record_batch([pa.array(range(4)), column], schema=schema))
        out = [reject.row for item in op.process(batch) if isinstance(item, Rejects) for reject in item.rows]
        shard = finished(op)
        rename_shards([shard])
        assert shard.rows == 4 - len(out), name
        assert op.encoded_bytes([batch])
        assert (
            len([line for line in op.report(tmp_path / str(number), "write") if line.startswith("row")]) == shard.rows
        )
        if out:
            without[name] = out
    if format == "arrow":
        assert (refused, without) == (set(), {})
    if format == "parquet":  # which has no seconds
        assert set(without) == {
            n for n, c in COLUMNS.items() if pa.types.is_timestamp(c.type) and n == str(c.type) and c.type.unit == "s"
        }
    if format == "jsonl":
        assert {name for name in COLUMNS if any(zone in name for zone in ("+", "PST", "=Z", "no/where"))} <= refused
        assert without["timestamp[us]"] == without["struct"] == without["list of times"] == [0, 1]
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize("lineage", [True, False])
def test_rows_that_nobody_can_tell_apart_are_refused(tmp_path, lineage):
    rows = [row(i) if lineage else {**row(i), "row": i, "lineage": None} for i in range(8)]
    write(tmp_path, [rows])
    with pytest.raises(ValueError, match="two rows are row 3, with the same lineage"):
        write(tmp_path, [rows, [next(each for each in rows if each["row"] == 3)]])
