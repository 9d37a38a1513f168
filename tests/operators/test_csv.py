"""CSV: types, and rows that do not fit the header or the types."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.sources.csv import CsvReader
from operators.sources.input_file import InputFile
from pipeline.errors import InputError
from tests.operators.reading import read

GOOD = [("1", "a"), ("", ""), ("2", 'quoted "b", and\na line'), ("-3", "é"), ("07", "x")]
MALFORMED = [("1",), ("1", "2", "3")]
MISFIT = [("one", "a"), ("1.5", "b"), ("99999999999999999999", "c")]


def to_bytes(rows: list[tuple[str, ...]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.sampled_from(GOOD + MALFORMED + MISFIT), max_size=25),
    block_bytes=st.integers(40, 200),
    chunk_rows=st.integers(1, 9),
    seek=st.integers(0, 3),
)
def test_any_mix_of_rows_gives_every_row_its_own_fate(
    tmp_path_factory, rows: list[tuple[str, ...]], block_bytes: int, chunk_rows: int, seek: int
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(to_bytes([("n", "p"), *rows]))
    types = {"n": "int64", "p": "string"}
    whole = read(path, chunk_rows, schema=types)
    assert [(row["n"], row["p"]) for row in whole.values] == [
        (int(n) if n else None, p) for n, p in (row for row in rows if row in GOOD)
    ]
    assert sorted(whole.rejects) == [i for i, row in enumerate(rows) if row not in GOOD]
    assert all(reject.line == i + 2 for i, reject in whole.rejects.items())
    tail = read(path, chunk_rows, seek, schema=types)
    assert tail.rows == {i: row for i, row in whole.rows.items() if i >= seek * chunk_rows}
    assert tail.rejects == {i: row for i, row in whole.rejects.items() if i >= seek * chunk_rows}
    reader = CsvReader(InputFile(str(path)), types, block_bytes)
    blocks = list(reader.blocks(reader.schema(1), 0))
    assert sum(b.rows for b in blocks) == len(rows)
    assert [row for b in blocks if b.data is not None for row in b.data.to_pylist()] == whole.values


def test_types_are_as_narrow_as_the_values(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "i,d,b,zip,date,long,none\n1,1,true,01234,2020-01-01,123456789012345678901,\n,2.5,FALSE,99999,2021-01-01,1,\n"
    )
    schema = CsvReader(InputFile(str(path))).schema(1)
    assert {f.name: str(f.type) for f in schema} == {
        "i": "int64", "d": "double", "b": "bool", "zip": "string", "date": "string", "long": "string", "none": "null",
    }  # fmt: skip
    assert read(path).values[1] == {
        "i": None, "d": 2.5, "b": False, "zip": "99999", "date": "2021-01-01", "long": "1", "none": "",
    }  # fmt: skip


def test_rejects_say_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"n,p\n1,a\n2\nx,b\n3,\xff\n")
    rejects = read(path, schema={"n": "int64", "p": "string"}).rejects
    assert [(r.line, r.record) for r in rejects.values()] == [
        (3, "2"),
        (4, '{"n": "x", "p": "b"}'),
        (5, '{"n": "3", "p": "\\\\xff"}'),
    ]
    assert rejects[1].reason == "has 1 fields, the header has 2; a field with a delimiter or a line break needs quotes"
    assert rejects[2].reason == "column 'n' is int64, the value is 'x'; data.schema can give another type"


def test_a_row_that_is_wrong_in_both_ways_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"n,p\n1,a\n2\xff\n3,\xc3\xa9\n")
    reading = read(path)
    assert [(r.line, r.record) for r in reading.rejects.values()] == [(3, "2\\xff")]
    assert reading.values == [{"n": 1, "p": "a"}, {"n": 3, "p": "é"}]


def test_tabs_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("\ufeffp\tq\na,b\t2\n")
    assert read(path).values == [{"p": "a,b", "q": 2}]


def test_an_unclosed_quote_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b\n1,2\n"3,' + "4,5\n" * 100)
    reader = CsvReader(InputFile(str(path)), None, block_bytes=64)
    with pytest.raises(InputError, match="quote that is not closed"):
        list(reader.blocks(pa.schema([("a", pa.int64())]), 0))
