"""The life of a metrics table: no kill, cut, full disk or other version loses or doubles a row that was written."""

from __future__ import annotations

import random
import resource
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.api.errors import StorageError
from pipeline.api.meter import StageMeter
from pipeline.run_dir import metrics_files, metrics_table
from pipeline.run_dir.metrics_table import MeterRecorder, MetricsTable, MetricsTables
from tests.pipeline.api.test_meter import FakeClock

SCHEMA = pa.schema([pa.field("n", pa.int64())])
OF_AN_EARLIER_VERSION = pa.schema(
    [pa.field("attempt", pa.int32(), nullable=False), pa.field("worker", pa.string()), *SCHEMA]
)


def table_of(directory: Path, attempt: int, *rows: int, schema: pa.Schema = SCHEMA) -> MetricsTable:
    """The table `steps` of an attempt that has written `rows`, each in a batch of its own."""
    table = MetricsTable(directory, "steps", schema, attempt)
    for row in rows:
        table.append(row)
        table.flush()
    return table


def merged(directory: Path) -> list[tuple[int, int]]:
    """The rows of the Parquet file, which is the only file."""
    assert [path.name for path in directory.iterdir()] == ["steps.parquet"]
    return [(row["attempt"], row["n"]) for row in pq.read_table(directory / "steps.parquet").to_pylist()]


def scanned(directory: Path) -> pl.LazyFrame:
    found = metrics_files.scan(directory, "steps")
    return pl.LazyFrame({"attempt": [], "n": []}) if found is None else found


def read(directory: Path) -> list[tuple[int, int]]:
    """The rows that a reader finds."""
    return scanned(directory).select("attempt", "n").collect().rows()


def stream(directory: Path) -> Path:
    (path,) = (directory / "steps").iterdir()
    return path


def test_rows_go_to_one_stream_and_become_one_file(tmp_path):
    table = table_of(tmp_path, 1, 0, 1, 2)
    table.extend([[3, 4]])
    table.extend([pa.array([5])], "worker")
    table.append(6, worker="worker")
    assert read(tmp_path) == [(1, 0), (1, 1), (1, 2)]
    assert stream(tmp_path).suffix == ".arrows"
    table.merge()
    assert sorted(merged(tmp_path)) == [(1, n) for n in range(7)]
    workers = pl.read_parquet(tmp_path / "steps.parquet").filter(pl.col("worker") == "worker")
    assert sorted(workers["n"]) == [5, 6]


def test_a_table_goes_on_after_a_merge(tmp_path):
    table = table_of(tmp_path, 1)
    for n in range(3):
        table.append(n)
        table.merge()
    assert merged(tmp_path) == [(1, 0), (1, 1), (1, 2)]


def test_a_reader_finds_each_row_once_at_any_time(tmp_path):
    table, expected = table_of(tmp_path, 1), []
    for n in range(4):
        table.append(n)
        table.flush()
        expected.append((1, n))
        assert read(tmp_path) == expected
    late = scanned(tmp_path)
    table.merge()
    assert late.select("attempt", "n").collect().rows() == read(tmp_path) == expected


@pytest.mark.parametrize("rows", [0, 1, 3, None])
def test_a_reader_can_choose_columns_and_rows(tmp_path, rows):
    table_of(tmp_path, 1, 1).merge()
    table_of(tmp_path, 2, 2, 3, 4)
    found = scanned(tmp_path)
    assert found.select("n").head(9 if rows is None else rows).collect()["n"].to_list() == [1, 2, 3, 4][:rows]
    assert found.filter(pl.col("attempt") == 2, n=3).select("n").collect()["n"].to_list() == [3]


def test_a_stream_that_is_cut_anywhere_has_its_whole_batches(tmp_path):
    schema = pa.schema([("n", pa.int64()), ("text", pa.string()), ("kind", pa.dictionary(pa.int32(), pa.string()))])
    table, ends = MetricsTable(tmp_path / "whole", "steps", schema, 1), {0: 0}
    for n in range(5):
        table.extend([range(10 * n, 10 * n + 10), [f"text {n}"] * 10, [f"kind {k % (n + 1)}" for k in range(10)]])
        table.flush()
        ends[stream(tmp_path / "whole").stat().st_size] = 10 * (n + 1)
    content = stream(tmp_path / "whole").read_bytes()
    cuts = {cut + by for cut in ends for by in (-1, 0, 1)} | set(random.Random(7).sample(range(len(content)), 60))
    for cut in sorted(cut for cut in cuts if 0 <= cut <= len(content)):
        expected = [(1, n) for n in range(max(rows for end, rows in ends.items() if end <= cut))]
        (tmp_path / f"{cut}/steps").mkdir(parents=True)
        (tmp_path / f"{cut}/steps/part-0001-0a1b2c3d.arrows").write_bytes(content[:cut])
        assert read(tmp_path / f"{cut}") == expected
        table_of(tmp_path / f"{cut}", 2, 99).merge()
        assert merged(tmp_path / f"{cut}") == [*expected, (2, 99)]


def test_what_was_lost_of_a_cut_stream_is_said(tmp_path, caplog):
    table_of(tmp_path, 1, 1, 2)
    with stream(tmp_path).open("r+b") as file:
        file.truncate(stream(tmp_path).stat().st_size - 1)
    name = stream(tmp_path).name
    table_of(tmp_path, 2).merge()
    assert merged(tmp_path) == [(1, 1)]
    assert f"{name} is cut or damaged (" in caplog.text


@pytest.mark.parametrize("rows", [(), (3,)])
def test_streams_that_outlived_their_merge_are_neither_read_nor_merged_again(tmp_path, monkeypatch, rows):
    """Killed between the rename and the removal; the attempt before had been killed, too."""
    table_of(tmp_path, 1, 1)
    killed = table_of(tmp_path, 2, 2)
    monkeypatch.setattr(metrics_table, "reached", die)
    with pytest.raises(KeyboardInterrupt):
        killed.merge()
    monkeypatch.undo()
    assert len(list((tmp_path / "steps").iterdir())) == 2
    assert read(tmp_path) == [(1, 1), (2, 2)]
    table_of(tmp_path, 3, *rows).merge()
    assert merged(tmp_path) == [(1, 1), (2, 2), *((3, n) for n in rows)]


def die(point: object) -> None:
    raise KeyboardInterrupt(point)


def test_streams_stay_until_the_file_that_has_their_rows_is_durable(tmp_path, monkeypatch):
    table = table_of(tmp_path, 1, 1)
    monkeypatch.setattr(metrics_table, "sync_directory", lambda _: (tmp_path / "missing").stat())
    with pytest.raises(StorageError):
        table.merge()
    assert stream(tmp_path).exists()
    monkeypatch.undo()
    table_of(tmp_path, 2, 2).merge()
    assert merged(tmp_path) == [(1, 1), (2, 2)]


def test_an_attempt_with_the_number_of_an_earlier_one_loses_nothing(tmp_path):
    """state.sqlite was lost, so attempts count from 1 again."""
    table_of(tmp_path, 1, 1).merge()
    table_of(tmp_path, 1, 2)
    table_of(tmp_path, 1, 3)
    assert read(tmp_path)[0] == (1, 1)
    assert sorted(read(tmp_path)) == [(1, 1), (1, 2), (1, 3)]
    table_of(tmp_path, 2).merge()
    assert sorted(merged(tmp_path)) == [(1, 1), (1, 2), (1, 3)]


def test_a_table_that_only_a_killed_attempt_wrote_is_merged_too(tmp_path):
    killed = MetricsTables(tmp_path, 1)
    killed.get("steps", SCHEMA).append(1)
    killed.get("steps", SCHEMA).flush()
    for table in MetricsTables(tmp_path, 2).to_merge():
        table.merge()
    assert merged(tmp_path / "metrics") == [(1, 1)]


@pytest.mark.parametrize("left", [[], ["part-0001-000000.parquet.tmp"]])
def test_what_a_killed_merge_left_goes_also_where_nothing_was_appended_since(tmp_path, left):
    (tmp_path / "steps").mkdir()
    for name in left:
        (tmp_path / "steps" / name).touch()
    table_of(tmp_path, 2).merge()
    assert list(tmp_path.iterdir()) == []


def test_a_type_that_the_parquet_file_could_not_have_is_refused_at_once(tmp_path):
    with pytest.raises(NotImplementedError, match="month_day_nano"):
        MetricsTable(tmp_path, "steps", pa.schema([("n", pa.month_day_nano_interval())]), 1)


@contextmanager
def no_file_longer_than(size: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_rows_that_do_not_fit_on_the_disk_are_written_when_there_is_room(tmp_path):
    """A limit on the size of files stops a write in its middle, as a full disk does."""
    table = table_of(tmp_path, 1, 1)
    before = stream(tmp_path).read_bytes()
    for n in (2, 3):
        table.append(n)
        with no_file_longer_than(len(before) + 50), pytest.raises(StorageError, match=r"\.arrows cannot be written: "):
            table.flush()
        assert stream(tmp_path).read_bytes() == before
        assert read(tmp_path) == [(1, 1)]
    with no_file_longer_than(len(before) + 50), pytest.raises(StorageError):
        table.merge()
    table.append(4)
    table.flush()
    assert read(tmp_path) == [(1, n) for n in (1, 2, 3, 4)]
    with no_file_longer_than(100), pytest.raises(StorageError, match=r"steps\.parquet cannot be written: "):
        table.merge()
    assert [path.name for path in tmp_path.iterdir()] == ["steps"]
    table.merge()
    assert merged(tmp_path) == [(1, n) for n in (1, 2, 3, 4)]


def test_memory_does_not_grow_with_rows_and_small_batches_become_large_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_files, "GROUP_ROWS", 1000)

    def most_held(directory: Path, batches: int) -> int:
        table = table_of(directory, 1)
        for _ in range(batches):
            table.extend([range(100)])
            table.flush()
        before = pa.total_allocated_bytes()
        files = metrics_files.without_repeats(directory, "steps")
        held = [pa.total_allocated_bytes() for _ in metrics_files.read(files, metrics_files.union(files))]
        table.merge()
        rows = pq.read_metadata(directory / "steps.parquet")
        groups = [rows.row_group(k).num_rows for k in range(rows.num_row_groups)]
        assert groups == [1000] * (batches // 10)
        return max(held) - before

    few, many = most_held(tmp_path / "few", 20), most_held(tmp_path / "many", 400)
    assert many < 2 * few


def test_a_stage_has_one_row_an_interval_with_what_it_gained(tmp_path):
    clock = FakeClock()
    meter = StageMeter("node", clock)
    tables = MetricsTables(tmp_path)
    recorder = MeterRecorder(tables)
    meter.clock.start()
    for now, gained in ((1.0, 10), (3.0, 5)):
        meter.rows_in += gained
        clock.now = 100 + now
        recorder.stages(now, [meter])
    (table,) = tables
    table.merge()
    first, second = pq.read_table(tmp_path / "metrics/stages.parquet").to_pylist()
    assert (first["rows_in"], first["interval_s"], first["busy_s"], first["wall_s"]) == (10, 1, 1, 1)
    assert (second["rows_in"], second["interval_s"], second["busy_s"], second["wall_s"]) == (5, 2, 2, 2)
