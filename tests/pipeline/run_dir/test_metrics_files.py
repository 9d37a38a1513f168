"""Metrics that another version has written, and damaged ones: what can be read of them stays, and damage is found."""

from __future__ import annotations

import json
import random
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.run_dir import metrics_files
from pipeline.run_dir.metrics_table import MetricsTable
from tests.pipeline.run_dir.test_metrics_table import (
    OF_AN_EARLIER_VERSION,
    SCHEMA,
    merged,
    read,
    scanned,
    stream,
    table_of,
)
from tests.sets import often


def of_an_earlier_version(path: Path, rows: dict[int, int], metadata: dict[bytes, bytes] | None = None) -> None:
    """Write a file of `rows`, attempt by n, as versions did that had no streams."""
    path.parent.mkdir(exist_ok=True)
    columns = [list(rows.values()), [None] * len(rows), list(rows)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, OF_AN_EARLIER_VERSION, strict=True)]
    pq.write_table(pa.table(arrays, schema=OF_AN_EARLIER_VERSION.with_metadata(metadata)), path)


def test_a_run_of_an_earlier_version_goes_on(tmp_path):
    """Its second attempt died in a merge, when the first part was in the Parquet file; its third while it worked."""
    names = json.dumps(["part-0001-000000.parquet", "part-0002-000000.parquet"]).encode()
    of_an_earlier_version(tmp_path / "steps.parquet", {1: 1, 2: 2}, {b"merged_parts": names})
    of_an_earlier_version(tmp_path / "steps/part-0002-000000.parquet", {2: 2})
    of_an_earlier_version(tmp_path / "steps/part-0003-000000.parquet", {3: 3})
    of_an_earlier_version(tmp_path / "steps/part-0003-000001.parquet", {4: 3, 5: 3})
    (tmp_path / "steps/part-0003-000002.parquet.tmp").write_bytes(b"half a file")
    old = [(1, 1), (2, 2), (3, 3), (3, 4), (3, 5)]
    assert read(tmp_path) == old
    table = table_of(tmp_path, 4, 6)
    assert read(tmp_path) == [*old, (4, 6)]
    table.merge()
    assert read(tmp_path) == merged(tmp_path) == [*old, (4, 6)]


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "killed"])
def test_columns_of_other_versions_are_kept(tmp_path, ended):
    old = MetricsTable(tmp_path, "steps", pa.schema([("gone", pa.string()), ("n", pa.int64())]), 1)
    old.append("one", 1)
    old.merge() if ended else old.flush()
    new = MetricsTable(tmp_path, "steps", pa.schema([("n", pa.int64()), ("new", pa.string())]), 2)
    new.append(2, "two")
    new.flush()
    expected = [(1, 1, None, "one"), (2, 2, "two", None)]
    assert scanned(tmp_path).select("attempt", "n", "new", "gone").collect().rows() == expected
    new.merge()
    whole = pl.read_parquet(tmp_path / "steps.parquet")
    assert whole.columns == ["attempt", "worker", "n", "new", "gone"]
    assert whole.select("attempt", "n", "new", "gone").rows() == expected


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "killed"])
@pytest.mark.parametrize(
    ("was", "value", "becomes", "new", "found"),
    [
        (pa.int32(), 1, pa.float64(), 2.5, 1.0),
        (pa.int64(), 1, pa.string(), "2", "1"),
        (pa.string(), "one", pa.int64(), 2, None),
        (pa.list_(pa.int64()), [1], pa.bool_(), True, None),
    ],
    ids=str,
)
def test_a_column_may_change_its_type(tmp_path, ended, was, value, becomes, new, found):
    old = MetricsTable(tmp_path, "steps", pa.schema([("n", was)]), 1)
    old.append(value)
    old.merge() if ended else old.flush()
    table = MetricsTable(tmp_path, "steps", pa.schema([("n", becomes)]), 2)
    table.append(new)
    table.flush()
    assert read(tmp_path) == [(1, found), (2, new)]
    table.merge()
    assert merged(tmp_path) == [(1, found), (2, new)]


def test_a_damaged_file_is_moved_aside_and_what_can_be_read_of_it_stays(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(metrics_files, "GROUP_ROWS", 100)
    table = table_of(tmp_path, 1)
    for n in range(3):
        table.extend([range(100 * n, 100 * n + 100)])
        table.flush()
    table.merge()
    content = bytearray((tmp_path / "steps.parquet").read_bytes())
    column = pq.read_metadata(tmp_path / "steps.parquet").row_group(2).column(2)
    begin = column.dictionary_page_offset or column.data_page_offset
    content[begin : begin + column.total_compressed_size] = bytes(column.total_compressed_size)
    (tmp_path / "steps.parquet").write_bytes(content)
    table_of(tmp_path, 2, 999).merge()
    assert [row["n"] for row in pq.read_table(tmp_path / "steps.parquet").to_pylist()] == [*range(200), 999]
    assert (tmp_path / "steps.parquet.damaged").read_bytes() == content
    assert "steps.parquet is cut or damaged (" in caplog.text
    (tmp_path / "steps.parquet").write_bytes(content[:-9])
    assert metrics_files.scan(tmp_path, "steps") is None
    table_of(tmp_path, 3, 3).merge()
    assert [row["n"] for row in pq.read_table(tmp_path / "steps.parquet").to_pylist()] == [3]


@pytest.mark.parametrize("written", [b'["part-0001-b\x12cfca5f.arrows"]', b'["part"]', b"5", b"[5]", b"{"])
def test_a_damaged_list_of_the_streams_in_a_file_is_found(tmp_path, written):
    path = tmp_path / "steps.parquet"
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({metrics_files.MERGED: written}), path)
    with pytest.raises(metrics_files.ChangedError, match="names no streams"):
        metrics_files.check(path)
    with pytest.raises(metrics_files.ChangedError, match="names no streams"):
        metrics_files.without_repeats(tmp_path, "steps")


@pytest.mark.parametrize("flips", often([30, 600], 30))
@pytest.mark.parametrize("is_merged", [False, True])
def test_no_bit_can_change_a_row_unseen(tmp_path, is_merged, flips):
    """Found by `check`, or it is in a place that no reader looks at."""
    table = MetricsTable(tmp_path, "steps", pa.schema([*SCHEMA, ("node", pa.string()), ("t_s", pa.float64())]), 1)
    for first in (0, 40):
        table.extend([range(first, first + 40), ["generate", None] * 20, [n / 7 for n in range(40)]])
        table.flush()
    if is_merged:
        table.merge()
    path = tmp_path / "steps.parquet" if is_merged else stream(tmp_path)

    def rows() -> pa.Table:
        files = metrics_files.without_repeats(tmp_path, "steps")
        return pa.concat_tables(metrics_files.read(files, metrics_files.union(files)))

    before, content, rng = rows(), path.read_bytes(), random.Random(flips)
    assert metrics_files.check(path)
    for bit in rng.sample(range(8 * len(content)), flips):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            if metrics_files.check(path):
                assert rows().equals(before), bit
        except metrics_files.UNREADABLE:
            pass
