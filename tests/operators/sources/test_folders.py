"""Folders KEY=VALUE: the same rows as with the column in the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.settings import DataSettings
from operators.sources.folders import NULL
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import ConfigError, InputError, SchemaError
from tests.operators.formats.samples import ROWS, make
from tests.operators.sources.reading import drain, read

TEXTS = st.sampled_from(["de", "a b", "x/y", "50%", "a=b", "é", "%41", "+", "..", "007", "1.5", "a:b", "?", "*", "[1]"])
KEYS = st.one_of(st.none(), TEXTS, st.integers(-5, 5))


def by_polars(frame: pl.DataFrame, folder: Path) -> None:
    frame.lazy().sink_parquet(pl.PartitionBy(folder, key="k", include_key=False), mkdir=True)


def by_pyarrow(frame: pl.DataFrame, folder: Path) -> None:
    scheme = pyarrow.dataset.partitioning(pa.schema([("k", frame["k"].to_arrow().type)]), flavor="hive")
    pyarrow.dataset.write_dataset(frame.to_arrow(), folder, format="parquet", partitioning=scheme)


def in_order(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.parametrize("write", [by_polars, by_pyarrow])
@settings(max_examples=15, deadline=None)
@example(keys=["007", "12"])
@given(keys=st.one_of(st.lists(TEXTS | st.none(), min_size=1), st.lists(st.integers(-5, 5) | st.none(), min_size=1)))
def test_rows_are_those_with_the_column_in_the_files(
    tmp_path_factory: pytest.TempPathFactory, write: Callable[[pl.DataFrame, Path], None], keys: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("hive")
    frame = pl.DataFrame({"n": range(len(keys)), "k": keys}).cast({"k": pl.String} if set(keys) == {None} else {})
    write(frame, folder / "rows")
    for path in (folder / "rows", folder / "rows" / "*" / "*.parquet", folder / "rows" / "*"):
        reading = read(path, partitions=True, chunk_rows=3)
        assert in_order(reading.values) == in_order(frame.to_dicts()), path
        later = {row: values for row, values in reading.rows.items() if row >= 3}
        assert read(path, partitions=True, chunk_rows=3, seek=1).rows == later


def told_by(path: Path | str, **data: Any) -> list[str]:
    op = ReadPrompts(DataSettings(path=str(path), **data), 100)
    drain(op, 100)
    return op._warnings


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "arrow"])
def test_every_format_has_the_columns_of_its_folders(tmp_path: Path, suffix: str) -> None:
    wanted = []
    for year, lang in ((2024, "de"), (2025, "en")):
        (folder := tmp_path / f"year={year}" / f"lang={lang}").mkdir(parents=True)
        make(folder / f"a.{suffix}")
        wanted += [{**row, "y": year, "lang": lang} for row in ROWS]
    assert read(tmp_path, partitions=True, rename={"year": "y"}).values == wanted
    assert read(tmp_path / "year=2025", partitions=True).values == [{**row, "lang": "en"} for row in ROWS]
    by_glob = read(tmp_path / "year=*" / "lang=de" / "*", partitions=True, types={"year": "double"})
    assert by_glob.rows[0] == {**ROWS[0], "year": 2024.0, "lang": "de"}
    as_text = read(tmp_path, partitions=True, types={"year": "string"})
    assert as_text.rows[0] == {**ROWS[0], "year": "2024", "lang": "de"}


def test_a_store_of_objects_has_the_columns_of_its_folders(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    for lang in ("de", "a%2Fb", NULL):
        fs.pipe(f"/hive/lang={lang}/a.csv", make(tmp_path / "a.csv").read_bytes())
    for path in ("memory://hive", "memory://hive/*", "memory://hive/**/*.csv"):
        assert [row["lang"] for row in read(path, partitions=True).values] == [None] * 25 + ["a/b"] * 25 + ["de"] * 25


def test_without_the_key_nothing_changes_and_the_key_is_told(tmp_path: Path) -> None:
    (tmp_path / "lang=de").mkdir()
    make(tmp_path / "lang=de" / "a.csv")
    with pytest.raises(InputError, match=r"no file ending in .*data\.partitions=true reads folders KEY=VALUE"):
        read(tmp_path)
    path = tmp_path / "**" / "*.csv"
    assert read(path).values == ROWS
    assert ["data.partitions=true" in line for line in told_by(path)] == [True]
    assert told_by(path, partitions=True) == []
    make(tmp_path / "b.csv")
    (line,) = told_by(tmp_path)
    assert "lang=de/" in line
    assert "data.partitions=true" in line


def test_what_folders_cannot_be_columns_is_refused(tmp_path: Path) -> None:
    for name in ("k=1", "k=x", "n=3", "row=1", "z=1/z=2", "u=%ff"):
        (tmp_path / name.replace("/", "_") / name).mkdir(parents=True)
        make(tmp_path / name.replace("/", "_") / name / "a.jsonl")
    refused = {
        "n=3": "'n' is a folder's key and a column of ",
        "row=1": r"data\.rename=\{row: source_row\}",
        "z=1_z=2": "two folders z=",
        "u=%ff": "not UTF-8",
    }
    for name, why in refused.items():
        with pytest.raises((ConfigError, InputError), match=why):
            read(tmp_path / name, partitions=True)
    with pytest.raises(SchemaError, match=r"lies in no folder n=\.\.\., as others do; data\.union=true"):
        read([str(tmp_path / "k=1"), str(tmp_path / "n=3")], partitions=True, rename={"n": "m"})
    with pytest.raises(InputError, match=r"k=x is no int64; data\.types=\{k: string\} keeps it"):
        read(tmp_path / "k=x", partitions=True, types={"k": "int64"})
    with pytest.raises(ConfigError, match="no file below"):
        read(tmp_path / "k=1" / "k=1", partitions=True)


def test_folders_are_part_of_the_fingerprint_only_where_they_are_columns(tmp_path: Path) -> None:
    prints = []
    for lang in ("de", "en"):
        (folder := tmp_path / lang / f"lang={lang}").mkdir(parents=True)
        make(folder / "a.csv")
        path = str(tmp_path / lang / "**" / "*.csv")
        prints.append([ReadPrompts(DataSettings(path=path, partitions=on), 10).fingerprint() for on in (True, False)])
    assert prints[0][0] != prints[1][0]
    assert prints[0][1] == prints[1][1]
