"""Values of Arrow that Python and polars cannot all hold: as Python has them, in result files, and in a run over
columns of all types at their extremes, of which every row comes out."""

from __future__ import annotations

import json

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.api.errors import ExitCode
from pipeline.api.records import ROW, Batch, python_rows, python_values
from pipeline.cli.main import main
from pipeline.system.result_files import scan, shown_rows
from tests.arrow_extremes import columns, taken
from tests.sets import often

pytestmark = [pytest.mark.usefixtures("reports"), pytest.mark.slow("draws reports over columns of all types")]


def test_a_run_prints_compares_and_writes_columns_of_all_types(tmp_path, capfd):
    names = {
        f"c{i}": column for i, (kind, column) in enumerate(taken().items()) if kind not in ("struct of nothing", "null")
    }
    prompts = pa.array(["a", "b", "c", "d"])
    with pa.ipc.new_file(str(tmp_path / "in.arrow"), pa.table({"prompt": prompts, **names}).schema) as file:
        file.write_table(pa.table({"prompt": prompts, **names}))
    given = [
        f"data.path={tmp_path}/in.arrow",
        "data.id_column=c0",
        f'data.prompt_template="{{{{ [{", ".join(names)}] }}}}"',
    ]
    out = [
        "output=arrow",
        f"output_dir={tmp_path}/out",
        "progress=none",
        "sampling.max_tokens=2",
        "runtime.max_sequence_tokens=8192",
        "output.preview=2",
    ]
    assert main(["job=generate", "model=fake", *given, *out]) == ExitCode.DONE
    shown = capfd.readouterr()
    assert "panicked" not in shown.err + shown.out
    with pa.ipc.open_file(tmp_path / "out/data/part-00000.arrow") as file:
        found = file.read_all()
    assert all(found[name].combine_chunks().equals(column) or "nan" in str(column) for name, column in names.items())
    assert "could not be made" not in (tmp_path / "out/report.html").read_text()


def test_a_column_of_which_arrow_cannot_take_rows_is_refused_before_the_run(tmp_path, capsys):
    table = pa.table({"prompt": ["a", "b", "c", "d"], "r": columns()["run ends"]})
    with pa.ipc.new_file(str(tmp_path / "in.arrow"), table.schema) as file:
        file.write_table(table)
    given = [f"data.path={tmp_path}/in.arrow", f"output_dir={tmp_path}/out", "output=arrow", "progress=none"]
    assert main(["job=generate", "model=fake", *given]) == ExitCode.CONFIG
    assert "column 'r'" in capsys.readouterr().err


@pytest.mark.parametrize("way", often(["keep", "where", "columns"], "keep"))
def test_a_row_with_a_time_that_sql_cannot_hold_costs_itself(tmp_path, way):
    times = pa.array([0, 1 << 62, None, 7], pa.timestamp("s"))
    with pa.ipc.new_file(
        str(tmp_path / "in.arrow"), pa.table({"prompt": ["a", "b", "c", "d"], "t": times}).schema
    ) as file:
        file.write_table(pa.table({"prompt": ["a", "b", "c", "d"], "t": times}))
    steps = {
        "keep": {"a": {"prompt": "{{ prompt }}", "keep": "t IS NULL OR t < DATE('2000-01-01')"}},
        "where": {"a": {"prompt": "{{ prompt }}", "where": "t IS NULL OR t < DATE('2000-01-01')"}},
        "columns": {"a": {"op": {"_target_": "operators.map.Map", "columns": {"y": "YEAR(t)"}}}},
    }[way]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"name": "job", "steps": steps}))
    out = [f"output_dir={tmp_path}/out", "progress=none", "output=arrow", "sampling.max_tokens=1", "max_error_rate=1"]
    assert main([f"job={tmp_path}/job.yaml", "model=fake", f"data.path={tmp_path}/in.arrow", *out]) == ExitCode.DONE
    (reject,) = pq.read_table(tmp_path / "out/rejects").to_pylist()
    assert reject["row"] == 1
    assert "column 't' has 4611686018427387904 s since 1970-01-01, which is too far for SQL" in reject["reason"]
    with pa.ipc.open_file(tmp_path / "out/data/part-00000.arrow") as file:
        assert sorted(file.read_all()["row"].to_pylist()) == [0, 2, 3]


COLUMNS = columns()
USUAL = "1970-01-01 00:00:00.000000Z"


@pytest.mark.parametrize("name", COLUMNS)
def test_a_value_is_that_of_arrow_or_a_text_and_can_be_written_as_a_reject(name):
    column = COLUMNS[name]
    found = python_values(column)
    for value, given in zip(found, column, strict=True):
        if pa.types.is_temporal(column.type) and not isinstance(value, str):
            assert pa.scalar(value, column.type).equals(given)
    if column.null_count:
        assert found[2] is None
    data = pa.record_batch([pa.array(range(4), ROW.type), column], ["row", "x"])
    if not pa.types.is_run_end_encoded(column.type) and "view" not in str(column.type):  # Arrow cannot take their rows
        rejects = Batch(0, data).reject(range(4), "why").rows
        assert [json.loads(reject.record or "").keys() for reject in rejects] == [{"x"}] * 4


@pytest.mark.parametrize(
    ("name", "texts"),
    {
        "timestamp[s, tz=Asia/Tokyo] near": ["0000-12-31 23:59:59Z", "9999-12-31 23:59:59Z"],
        "timestamp[us, tz=PST] near": ["0000-12-31 23:59:59.000000Z", "9999-12-31 23:59:59.000000Z", USUAL],
        "timestamp[s] after": ["0000-12-31 23:59:58", "10000-01-01 00:00:00"],
        "timestamp[us]": ["-9223372036854775808 us since 1970-01-01", "9223372036854775807 us since 1970-01-01"],
        "duration s": ["-9223372036854775808 s", "4611686018427387904 s"],
        "duration ns": ["-9223372036854775808 ns"],  # NaT for pandas
        "date32": ["-2147483648 days since 1970-01-01", "2147483647 days since 1970-01-01"],
        "date64": ["0000-12-31", "10000-01-01"],
        "time ns": ["23:59:59.999999999", "00:00:00.000000001"],  # Python has microseconds
    }.items(),
)
def test_what_python_cannot_hold_is_a_text_with_all_of_the_value(name, texts):
    assert [value for value in python_values(COLUMNS[name]) if isinstance(value, str)] == texts


def test_only_what_cannot_be_held_is_a_text_inside_of_lists_maps_structs_and_dictionaries():
    least = "-9223372036854775808 us since 1970-01-01"
    rows = python_rows(pa.record_batch({name: COLUMNS[name] for name in ("struct", "list of times", "map of times")}))
    assert rows[0] == {"struct": {"t": least, "n": 1}, "list of times": [least], "map of times": [("a", least)]}
    assert rows[3]["struct"]["t"].year == 1970
    assert python_values(COLUMNS["dictionary of times"])[0] == least


def test_rows_beside_and_in_a_column_of_any_type_are_read_lazily(tmp_path, capfd):
    for column in taken().values():
        table = pa.table({"n": [1, 2, 3, 4], "x": column})
        for part in ("a", "b"):
            with pa.ipc.new_file(str(tmp_path / f"{part}.arrow"), table.schema) as file:
                file.write_table(table)
        found = scan(sorted(tmp_path.iterdir()))
        assert found is not None
        assert found.select(pl.col("n").sum()).collect().item() == 20
        assert found.filter(pl.col("n") > 2).collect().height == 4
        assert [row["n"] for row in shown_rows(found.slice(3, 2).collect())] == [4, 1]
    assert "panicked" not in capfd.readouterr().err


def test_a_column_that_polars_does_not_know_is_one_of_texts(tmp_path):
    table = pa.table({"x": taken()["timestamp[us, tz=+05:30] near"]})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as file:
        file.write_table(table)
    found = scan([tmp_path / "a.arrow"])
    assert found is not None
    texts = ["0000-12-31 23:59:59.000000Z", "9999-12-31 23:59:59.000000Z", None, "1970-01-01 05:30:00+05:30"]
    assert found.collect()["x"].to_list() == texts
