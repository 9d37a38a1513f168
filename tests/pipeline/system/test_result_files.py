"""Result files are read whatever types their columns have."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from pipeline.system.result_files import scan, shown_rows
from tests.arrow_extremes import taken


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
