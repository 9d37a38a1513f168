"""A run over columns of all types at their extremes, which Python and polars cannot all hold: every row comes out."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
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
