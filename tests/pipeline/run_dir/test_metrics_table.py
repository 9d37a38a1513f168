"""Metrics survive the death of the process and end as one file."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.api.meter import StageMeter
from pipeline.run_dir.metrics_table import STAGES_SCHEMA, MetricsTable, StageRecorder
from tests.pipeline.api.test_meter import FakeClock

SCHEMA = pa.schema([pa.field("n", pa.int64())])


def values(path) -> list[tuple[int, int]]:
    return [(r["attempt"], r["n"]) for r in pq.read_table(path).to_pylist()]


def test_parts_are_merged_in_order_and_removed(tmp_path):
    table = MetricsTable(tmp_path, "steps", SCHEMA, 1)
    for n in range(5):
        table.append(n)
        table.flush()
    table.append(5)
    assert len(list((tmp_path / "steps").iterdir())) == 5
    table.merge()
    assert values(tmp_path / "steps.parquet") == [(1, n) for n in range(6)]
    assert [p.name for p in tmp_path.iterdir()] == ["steps.parquet"]


def test_parts_that_outlived_their_merge_are_not_merged_again(tmp_path):
    table = MetricsTable(tmp_path, "steps", SCHEMA, 1)
    table.append(1)
    table.flush()
    (part,) = (tmp_path / "steps").iterdir()
    kept = part.read_bytes()
    table.merge()
    part.parent.mkdir()
    part.write_bytes(kept)  # the process died after the rename
    later = MetricsTable(tmp_path, "steps", SCHEMA, 2)
    later.append(2)
    later.merge()
    assert pq.read_table(tmp_path / "steps.parquet").column("attempt").to_pylist() == [1, 2]
    assert not part.exists()


def test_the_parts_of_a_killed_attempt_are_merged_by_the_next(tmp_path):
    done = MetricsTable(tmp_path, "steps", SCHEMA, 1)
    done.append(1)
    done.merge()
    killed = MetricsTable(tmp_path, "steps", SCHEMA, 2)
    killed.append(2)
    killed.flush()
    killed.append(999)  # was in memory when the process died
    (tmp_path / "steps/part-0002-000001.parquet.tmp").write_bytes(b"half a file")
    last = MetricsTable(tmp_path, "steps", SCHEMA, 3)
    last.append(3)
    last.merge()
    assert values(tmp_path / "steps.parquet") == [(1, 1), (2, 2), (3, 3)]
    assert [p.name for p in tmp_path.iterdir()] == ["steps.parquet"]


@pytest.mark.parametrize("left", [[], ["part-0001-000000.parquet.tmp"]])
def test_what_a_killed_merge_left_goes_also_where_nothing_was_appended_since(tmp_path, left):
    (tmp_path / "steps").mkdir()
    for name in left:
        (tmp_path / "steps" / name).touch()
    MetricsTable(tmp_path, "steps", SCHEMA, 2).merge()
    assert list(tmp_path.iterdir()) == []


def test_a_column_that_an_older_attempt_did_not_have_is_null_there(tmp_path):
    MetricsTable(tmp_path, "steps", pa.schema([]), 1).merge()
    old = MetricsTable(tmp_path, "steps", SCHEMA, 1)
    old.append(1)
    old.merge()
    new = MetricsTable(tmp_path, "steps", pa.schema([*SCHEMA, pa.field("m", pa.string())]), 2)
    new.append(2, "two")
    new.merge()
    assert pq.read_table(tmp_path / "steps.parquet")["m"].to_pylist() == [None, "two"]


def test_nothing_appended_is_no_file(tmp_path):
    MetricsTable(tmp_path, "steps", SCHEMA, 1).merge()
    assert list(tmp_path.iterdir()) == []


def test_a_stage_has_one_row_an_interval_with_what_it_gained(tmp_path):
    clock = FakeClock()
    meter = StageMeter("node", clock)
    table = MetricsTable(tmp_path, "stages", STAGES_SCHEMA, 1)
    recorder = StageRecorder(table)
    meter.clock.start()
    for now, gained in ((1.0, 10), (3.0, 5)):
        meter.rows_in += gained
        clock.now = 100 + now
        recorder.record(now, [meter])
    table.merge()
    first, second = pq.read_table(tmp_path / "stages.parquet").to_pylist()
    assert (first["rows_in"], first["interval_s"], first["busy_s"], first["wall_s"]) == (10, 1, 1, 1)
    assert (second["rows_in"], second["interval_s"], second["busy_s"], second["wall_s"]) == (5, 2, 2, 2)
