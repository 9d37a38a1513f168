"""Files that differ, read together: no value changes, and what a file lacks is null."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.settings import DataSettings
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import ConfigError, SchemaError
from tests.operators.formats.samples import make
from tests.operators.sources.reading import drain, read

WHOLE = st.none() | st.integers(0, 100)
NUMBERS = dict.fromkeys([pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()], WHOLE)
FRACTIONS = dict.fromkeys([pa.float32(), pa.float64()], st.none() | st.floats(width=32))
FAMILIES: list[dict[pa.DataType, st.SearchStrategy[Any]]] = [
    {**NUMBERS, **FRACTIONS, pa.null(): st.none()},
    {pa.string(): st.none() | st.sampled_from(["", "1", "é"]), pa.null(): st.none()},
    {pa.list_(pa.int32()): st.none() | st.lists(WHOLE, max_size=2), pa.list_(pa.float64()): st.none()},
    {pa.struct([("x", pa.int8())]): st.none() | st.just({"x": 3}), pa.struct([("x", pa.int64())]): st.none()},
]
"""Types that files may have for one column."""


@st.composite
def tables(draw: st.DrawFn) -> list[pa.Table]:
    families = {name: draw(st.sampled_from(FAMILIES)) for name in "abc"}
    made = []
    for _ in range(draw(st.integers(2, 4))):
        rows, columns = draw(st.integers(1, 4)), {}
        for name in draw(st.lists(st.sampled_from("abc"), min_size=1, unique=True)):
            kind = draw(st.sampled_from(list(families[name])))
            values = draw(st.lists(families[name][kind], min_size=rows, max_size=rows))
            columns[name] = pa.array(values, kind)
        made.append(pa.table(columns))
    return made


@settings(max_examples=80, deadline=None)
@given(files=tables(), kinds=st.lists(st.sampled_from(["parquet", "arrow", "arrows"]), min_size=4, max_size=4))
def test_rows_are_those_that_polars_puts_together(
    tmp_path_factory: pytest.TempPathFactory, files: list[pa.Table], kinds: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("union")
    paths = [
        str(make(folder / f"{i}.{kind}", table)) for i, (table, kind) in enumerate(zip(files, kinds, strict=False))
    ]
    wanted = pl.concat([pl.DataFrame(table) for table in files], how="diagonal_relaxed")
    op = ReadPrompts(DataSettings(path=paths, union=True), 3)
    reading = drain(op, 3)
    assert repr(reading.values) == repr(wanted.to_dicts())
    assert op.plan().names == [*wanted.columns, "row"]
    types = pl.DataFrame(op.plan().empty_table()).schema
    assert all(types[name] == kind for name, kind in wanted.schema.items() if kind != pl.Null)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl", "csv", "tsv", "csv.gz"])
def test_a_column_that_a_file_lacks_is_null_in_every_format(tmp_path: Path, suffix: str) -> None:
    make(tmp_path / f"a.{suffix}", pa.table({"p": ["x", "y"], "n": [1, 2]}))
    make(tmp_path / f"b.{suffix}", pa.table({"z": [0.5], "p": ["w"]}))
    assert read(tmp_path, union=True).values == [
        {"p": "x", "n": 1, "z": None},
        {"p": "y", "n": 2, "z": None},
        {"p": "w", "n": None, "z": 0.5},
    ]
    if suffix != "jsonl":
        with pytest.raises(SchemaError, match=r"column 'n' is in .*a\..* but not in .*b\..*data\.union=true"):
            read(tmp_path)


def test_files_of_several_formats_are_read_together(tmp_path: Path) -> None:
    whole, fractions = pa.table({"n": [1, 20]}), pa.table({"n": [0.5], "k": ["x"]})
    for first, second in (("csv", "parquet"), ("parquet", "csv"), ("jsonl", "arrow"), ("csv", "jsonl")):
        files = [make(tmp_path / f"a.{first}", whole), make(tmp_path / f"b.{second}", fractions)]
        values = [{"n": 1.0, "k": None}, {"n": 20.0, "k": None}, {"n": 0.5, "k": "x"}]
        assert repr(read([str(file) for file in files], union=True).values) == repr(values)


def test_what_would_change_is_a_reject(tmp_path: Path) -> None:
    big = (1 << 53) + 1
    make(tmp_path / "a.parquet", pa.table({"n": [1, big, None, 1 << 53], "m": [[big], [1], [], None]}))
    make(tmp_path / "b.parquet", pa.table({"n": [0.5], "m": [[0.5]]}))
    reading = read(tmp_path, union=True)
    assert {row: values["n"] for row, values in reading.rows.items()} == {2: None, 3: float(1 << 53), 4: 0.5}
    assert {row: reject.file for row, reject in reading.rejects.items()} == dict.fromkeys(
        [0, 1], f"{tmp_path}/a.parquet"
    )
    assert (
        "column 'n' is double over all files, which is not every int64: 9007199254740993" in reading.rejects[1].reason
    )
    assert "column 'm' is list" in reading.rejects[0].reason


def test_texts_and_numbers_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "a.jsonl", pa.table({"n": [1]}))
    make(tmp_path / "b.jsonl", pa.table({"n": ["x"]}))
    with pytest.raises(SchemaError, match=r"is string in .*b\.jsonl but int64 .*data\.types=\{n: \.\.\.\} names one"):
        read(tmp_path, union=True)
    make(tmp_path / "a.parquet", pa.table({"n": [1]}))
    for other, union, why in (
        ([0.5], False, "data.union=true reads them as"),
        (["x"], True, "write one of them again"),
    ):
        make(tmp_path / "b.parquet", pa.table({"n": other}))
        with pytest.raises(SchemaError, match=why):
            read(tmp_path / "*.parquet", union=union)
    make(tmp_path / "a.csv", pa.table({"n": [1]}))
    make(tmp_path / "b.csv", pa.table({"p": [1]}))
    assert read(tmp_path / "*.csv", union=True, types={"p": "string"}).values[1] == {"n": None, "p": "1"}
    with pytest.raises(ConfigError, match=r"data\.types names 'q'; the columns are n, p"):
        read(tmp_path / "*.csv", union=True, types={"q": "string"})


def test_keys_of_folders_may_differ(tmp_path: Path) -> None:
    for folder in ("k=1", "k=2/z=x"):
        (tmp_path / folder).mkdir(parents=True)
        make(tmp_path / folder / "a.csv", pa.table({"n": [1]}))
    values = read(tmp_path, union=True, partitions=True).values
    assert values == [{"n": 1, "k": 1, "z": None}, {"n": 1, "k": 2, "z": "x"}]
