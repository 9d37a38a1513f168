"""CSV of results: every value comes back, from `scan` with its type and from the source as a text or number, with the
same null and empty texts; spreadsheets run none of the texts of a defused file; Python and polars read the same."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.formats.registry import WRITTEN
from operators.formats.result_csv import SEPARATORS, marked, unmarked
from operators.formats.unpack import CODECS
from pipeline.api.errors import ConfigError
from pipeline.system.result_files import names_of, scan
from tests.operators.sources.reading import read

RUN = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
PIECES = st.sampled_from([*RUN, "'", '"', ",", ";", "|", "\r\n", " ", "a", "é", "😀", "\0", "\ufeff", "\u2028", "=1+1"])
TEXTS = st.lists(PIECES, max_size=4).map("".join)
NAMES = TEXTS.map(lambda text: text.replace("\0", "b"))
SCHEMA = pa.schema(
    {
        "row": pa.int64(),
        "=text": pa.string(),
        "x": pa.float64(),
        "f": pa.float32(),
        "b": pa.bool_(),
        "at": pa.timestamp("us", "Europe/Berlin"),
        "tags": pa.list_(pa.string()),
        "scores": pa.list_(pa.list_(pa.float32(), 2)),
    }
)
VALUES = st.tuples(
    st.none() | TEXTS,
    st.none() | st.floats(),
    st.none() | st.floats(width=32),
    st.none() | st.booleans(),
    st.none() | st.integers(-(10**15), 10**15),
    st.none() | st.lists(st.none() | TEXTS, max_size=2),
    st.none() | st.lists(st.none() | st.tuples(st.floats(width=32), st.none()), max_size=2),
)


def table_of(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = [list(range(len(rows))), *([row[i] for row in rows] for i in range(len(SCHEMA) - 1))]
    return pa.table([pa.array(c, field.type) for c, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


def write(path: Path, table: pa.Table, compression: str, **keys: Any) -> Path:
    with path.open("wb") as file:
        WRITTEN["csv"].write(table, file, compression, None, **{"separator": ",", "bom": False, "defuse": False} | keys)
    return path


@settings(max_examples=40, deadline=None)
@example(
    rows=[("", None, None, None, None, None, []), (None, -0.0, 0.1, True, -1, ["", None], None)],
    how=(",", False, False, 0),
)
@example(rows=[("'=1", float("nan"), None, None, None, [], [(0.5, None)])], how=("\t", True, True, 1))
@given(
    rows=st.lists(VALUES, max_size=6),
    how=st.tuples(st.sampled_from(SEPARATORS), st.booleans(), st.booleans(), st.integers(0, 2)),
)
def test_every_value_comes_back_and_equal_tables_give_equal_bytes(tmp_path_factory, rows, how) -> None:
    separator, bom, defuse, packed = how
    table, folder = table_of(rows), tmp_path_factory.mktemp("csv")
    compression, ending = [("none", ""), *((codec, ending) for ending, codec in CODECS.items())][packed]
    name = f"part-00000{'.defused' * defuse}.csv{ending}"
    path = write(folder / name, table, compression, separator=separator, bom=bom, defuse=defuse)
    twin = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    again = write(folder / "again", twin, compression, separator=separator, bom=bom, defuse=defuse)
    assert again.read_bytes() == path.read_bytes()
    found = scan([path], names_of(SCHEMA))
    assert found is not None
    wanted = pl.DataFrame(table)
    assert found.collect_schema() == wanted.schema
    assert found.collect().equals(wanted)
    assert found.select("x", "=text").head(2).collect().equals(wanted.select("x", "=text").head(2))


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.none() | TEXTS, min_size=1, max_size=6), defuse=st.booleans())
def test_the_source_tells_a_null_from_an_empty_text_and_takes_the_marks_off(tmp_path_factory, texts, defuse) -> None:
    path = tmp_path_factory.mktemp("csv") / f"a{'.defused' * defuse}.csv"
    table = pa.table(
        {"u": pa.array(texts[::-1], pa.string()), "n": range(len(texts)), "=t": pa.array(texts, pa.string())}
    )
    write(path, table, "none", defuse=defuse)
    found = read(path, null_texts=True, types="text")
    assert [(row["u"], row["=t"]) for row in found.values] == list(zip(texts[::-1], texts, strict=True))
    assert [row["=t"] for row in read(path, types="text").values] == [text or "" for text in texts]
    raw = read(path.rename(path.with_name("b.csv")), types="text", null_texts=True, defused=defuse or None)
    assert raw.values == found.values
    fields = list(csv.reader(io.StringIO(path.with_name("b.csv").read_bytes().decode(), newline="")))
    if defuse:
        assert not [field for row in fields for field in row if field.startswith(RUN)]
    else:
        assert [row[2] for row in fields] == ["=t", *(text or "" for text in texts)]
        if not any("\r" in text for text in texts if text):  # polars takes it for a line's end
            assert pl.read_csv(path.with_name("b.csv"), infer_schema=False)["=t"].to_list() == texts


@settings(max_examples=30, deadline=None)
@example(names=["\ufeffa", "sep=;"], separator=";", defuse=False)
@given(names=st.lists(NAMES, min_size=1, max_size=3, unique=True), separator=st.sampled_from(SEPARATORS), defuse=...)
def test_every_name_of_a_column_comes_back(tmp_path_factory, names, separator: str, defuse: bool) -> None:
    table = pa.table([pa.array(["a", "=b", None])] * len(names) + [pa.array([1, 2, 3])], [*names, "row"])
    path = tmp_path_factory.mktemp("csv") / f"a{'.defused' * defuse}.csv"
    found = scan([write(path, table, "none", separator=separator, defuse=defuse)], names_of(table.schema))
    assert found is not None
    assert [list(row.values()) for row in found.collect().to_dicts()] == [
        list(row.values()) for row in table.to_pylist()
    ]
    assert found.collect_schema().names() == table.schema.names
    if separator == ",":
        assert [list(row) for row in read(path, rename={"row": "n"}, null_texts=True).values] == [[*names, "n"]] * 3


@given(texts=st.lists(TEXTS))
def test_marks_are_taken_off_again_and_two_texts_never_become_one(texts) -> None:
    made = marked(pa.array(texts, pa.string()))
    assert unmarked(made).to_pylist() == texts
    assert not [text for text in made.to_pylist() if text.startswith(RUN)]


def test_a_file_without_the_columns_of_the_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "part-00000.csv"
    path.write_text("row,b\n0,1\n")
    with pytest.raises(ConfigError, match=r"part-00000\.csv has not the columns that were written: row, a"):
        scan([path], {"row": "int64", "a": "int64"})
