"""Rows of a Python program: each value is in the file as it was given, or the rows are refused by name."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow.parquet as pq
import pytest

from pipeline.api.errors import ConfigError
from pipeline.python import rows as rows_of
from pipeline.python.rows import write_rows

BATCH = 4
DATE, TIME = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5)
AWARE = dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5)))
KEPT: dict[str, tuple[Any, Any]] = {
    "null, text": (None, "x"),
    "int, float": (1, 2.75),
    "lists": ([1], [1.9]),
    "new nested key": ({"a": 1}, {"a": 2.5, "b": 9}),
    "decimals": (Decimal("2.5"), Decimal("12.345")),
    "zones": (AWARE, AWARE.astimezone(dt.UTC)),
    "beyond int64": (1 << 63, (1 << 64) - 1),
    "empty objects": ({}, {}),
    "nested nulls": ({"y": [None, None]}, {"y": [1]}),
    "not a number": (1.5, float("nan")),
    "NumPy": (np.array([1, 2]), np.array([1.5])),
}
REFUSED: dict[str, tuple[Any, Any]] = {
    "date, datetime": (DATE, TIME),
    "naive, aware": (TIME, AWARE),
    "decimal, float": (Decimal("0.1"), 0.1),
    "bytes, text": (b"a", "a"),
    "text, bytes": ("a", b"a"),
    "text, int": ("a", 1),
    "bool, int": (True, 1),
    "int, bool": (1, True),
    "inexact": ((1 << 53) + 1, 2.5),
    "negative, beyond int64": (-1, (1 << 64) - 1),
    "object, list": ({"a": 1}, [1]),
    "objects of Python": (object(), object()),
}
FORMS: dict[str, Callable[[list[dict[str, Any]]], Iterable[Any]]] = {
    "list": list,
    "generator": iter,
    "pandas": lambda rows: pd.DataFrame({k: pd.Series([row.get(k) for row in rows], dtype=object) for k in "px"}),
}


def written(tmp_path: Path, rows: Any) -> list[dict[str, Any]]:
    write_rows(rows, tmp_path / "rows.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]
    return pq.read_table(tmp_path / "rows.parquet").to_pylist()


def rows_with(values: tuple[Any, Any], at: int) -> list[dict[str, Any]]:
    rows = [{"p": "a", "x": values[0]} for _ in range(at)]
    return [*rows, {"p": "a", "x": values[1]}, {"p": "b"}]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch) -> None:
    monkeypatch.setattr(rows_of, "BATCH_ROWS", BATCH)


@pytest.mark.parametrize("at", [1, BATCH, 2 * BATCH + 1], ids=["inside", "next", "behind"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", KEPT)
def test_a_value_comes_out_as_it_was(tmp_path: Path, change: str, form: str, at: int) -> None:
    given = rows_with(KEPT[change], at)
    found = written(tmp_path, FORMS[form](given))
    for row, kept in zip(given, found, strict=True):
        x = {} if kept["x"] == "{}" else kept["x"]
        missing = form == "pandas" and pd.isna(row.get("x")) is True  # a frame has NaN for what is missing
        assert x is None if missing else rows_of._same(x, row.get("x"))


@pytest.mark.parametrize("at", [1, BATCH, 2 * BATCH + 1], ids=["inside", "next", "behind"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", REFUSED)
def test_a_value_that_would_become_another_is_refused(tmp_path: Path, change: str, form: str, at: int) -> None:
    with pytest.raises(ConfigError, match=r"'x'|Field x"):
        written(tmp_path, FORMS[form](rows_with(REFUSED[change], at)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("at", [1, BATCH, 2 * BATCH + 1])
def test_a_key_is_a_column_wherever_it_comes_first(tmp_path: Path, at: int) -> None:
    found = written(tmp_path, [*({"p": "a"} for _ in range(at)), {"p": "b", "y": 7}])
    assert [row["y"] for row in found] == [None] * at + [7]


def test_columns_that_differ_by_nature_are_json_text(tmp_path: Path) -> None:
    rows = [{"p": "a", "m": [{"role": "a", "args": {}}]}, {"p": "b", "m": [{"role": "b"}]}, {"p": "c", "m": "[]"}]
    write_rows(rows, tmp_path / "rows.parquet", as_json=["m"])
    found = pq.read_table(tmp_path / "rows.parquet")["m"].to_pylist()
    assert found == ['[{"role": "a", "args": {}}]', '[{"role": "b"}]', "[]"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([1, 2], r"rows\[0\] is a int"),
        ("prompts.jsonl", "rows is str"),
        (7, "rows is int"),
        ([{"prompt": "a"}, {"prompt": 3}], "row 1 has 3, and one before it 'a'"),
        (pl.Series("prompt", ["a"]), "a polars Series"),
        (datasets.DatasetDict({"train": datasets.Dataset.from_list([{"prompt": "a"}])}), "several splits"),
        (["a", None], r"rows\[1\] is a NoneType"),
        ([{"p": "a", 7: 1}], r"rows\[0\] has a key that is no text"),
        ([{"p": "\ud800"}], "'p' in rows do not become one column"),
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), "two columns 'x'"),
        (pd.DataFrame({"i": [1], "x": [2]}).set_index("i"), r"the index i, which is no column; give rows.reset_index"),
        (
            pd.DataFrame({"x": pd.period_range("2024-01", periods=1, freq="M")}),
            r"'x' has type extension<pandas.period.*as int64; make texts",
        ),
        ([{"p": "a", "x": uuid.uuid4()}], r"'x' has type extension<arrow.uuid>, .*make texts of it"),
        (pl.DataFrame({"x": pl.Series([object()], dtype=pl.Object)}), "'x' has type Object"),
        (pl.DataFrame({"x": pl.Series([1 << 100], dtype=pl.Int128)}), "'x' has type Int128"),
        (pl.DataFrame({"x": pl.Series([[1]], dtype=pl.List(pl.Int128))}), r"'x' has type List\(Int128\)"),
    ],
)
def test_what_is_no_row_is_named(tmp_path: Path, rows: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        written(tmp_path, rows)
    assert not list(tmp_path.iterdir())
