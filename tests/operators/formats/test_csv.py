"""CSV: types, and rows that do not fit the header or the types."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.formats.csv import CsvReader
from operators.formats.input_file import InputFile
from operators.sources import input_columns
from pipeline.api.errors import ConfigError
from tests.operators.sources.reading import read


def to_bytes(rows: list[tuple[str, ...]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


NUMERALS = st.one_of(
    st.from_regex(r"[-+]?0*[0-9]{1,22}(\.[0-9]{0,20})?([eE][-+]?[0-9]{1,3})?", fullmatch=True),
    st.integers(-(1 << 65), 1 << 65).map(str),
    st.floats().map(repr),
    st.sampled_from(
        ["", "TRUE", "true", "False", "NA", "nan", "inf", "-0", "1_000", "\u0663", " 1", "1 ", "0x1F", "1e5"]
    ),
)


@settings(max_examples=60, deadline=None)
@example(values=["1", "2"], later=["007", "+5", "-0", "3", "", "1.0"], sampled=False)
@example(values=["1.5"], later=["1.50", "2", "1e5", "-0.0", "", "inf"], sampled=False)
@given(values=st.lists(NUMERALS, min_size=1, max_size=6), later=st.lists(NUMERALS, max_size=6), sampled=st.booleans())
def test_a_text_is_a_number_only_if_it_comes_back(tmp_path_factory, values, later, sampled) -> None:
    """As a number its Python text is what the file has; a later one that does not come back is a reject."""
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    fields = values + later
    path.write_bytes(to_bytes([("n", "p"), *((value, "x") for value in fields)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_columns, "SAMPLE_ROWS", len(fields) if sampled else len(values))
        found = read(path)
    for i, field in enumerate(fields):
        if i in found.rejects:
            assert i >= len(values)
            assert not sampled
            assert "data.types={n: ...}" in found.rejects[i].reason
        else:
            value = found.rows[i]["n"]
            assert field == ("" if value is None else str(value))


def test_types_that_are_given_decide(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("i,d,b,zip,none\n1,1,true,01234,\n,2.5,FALSE,99999,\n")
    schema = CsvReader(InputFile(str(path))).schema(2)
    assert [str(f.type) for f in schema] == ["int64", "string", "string", "string", "null"]
    found = read(path, types={"d": "double", "b": "bool"}).values
    assert found[1] == {"i": None, "d": 2.5, "b": False, "zip": "99999", "none": ""}
    assert read(path, types="text").values[1] == {"i": "", "d": "2.5", "b": "FALSE", "zip": "99999", "none": ""}
    with pytest.raises(ConfigError, match=r"data\.types names 'x'; .*a\.csv has i, d, b, zip, none"):
        read(path, types={"x": "string"})


def test_a_column_that_is_a_number_in_one_file_only_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    (tmp_path / "b.csv").write_text("n\n02\n")
    assert read(tmp_path).values == [{"n": "1"}, {"n": "02"}]


def test_rejects_say_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"n,p\n1,a\n2\nx,b\n3,\xff\n4\xff\n")
    rejects = read(path, schema={"n": "int64", "p": "string"}).rejects
    assert [(r.line, r.record) for r in rejects.values()] == [
        (3, "2"),
        (4, '{"n": "x", "p": "b"}'),
        (5, '{"n": "3", "p": "\\\\xff"}'),
        (6, "4\\xff"),
    ]
    assert rejects[1].reason == "has 1 fields, the header has 2; a field with a delimiter or a line break needs quotes"
    assert rejects[2].reason == "column 'n' is int64, the value is 'x'; data.types={n: ...} sets another type"


OPEN = 'a quote is opened and not closed; close it, and write "" for a quote inside quotes'
BEHIND = 'there is text behind a closing quote; write "" for a quote inside quotes'
LONG = "the row has more than 40 characters; Parquet takes longer rows"
BAD = {
    "open to the end": ('1,"a\n2,b\n3,c', [2, 3], {2: OPEN}),
    "open to the next quote": ('1,"a\n2,b\n3,"c, d"\n4,e\n', [2, 3, 4], {2: OPEN}),
    "open in the last line": ('1,a\n2,"b', [1], {3: OPEN}),
    "open in every line": ('1,"a\n2,"b\n3,"c\n', [], {2: OPEN, 3: OPEN, 4: OPEN}),
    "text behind": ('1,"a" b\n2,c\n', [2], {2: BEHIND}),
    "a long line": (f"1,{'a' * 99}\n2,b\n", [2], {2: LONG}),
    "a long line without end": (f"1,a\n2,{'b' * 99}", [1], {3: LONG}),
    "a long line of old": (f"1,{'a' * 99}\r2,b\r", [2], {2: LONG}),
    "long over lines": ('1,"' + "a" * 30 + "\n" + "a" * 30 + '"\n2,b\n', [2], None),
}


@pytest.mark.parametrize("block_chars", [1, 7, 1000])
@pytest.mark.parametrize("name", BAD)
def test_a_row_that_cannot_be_parsed_costs_itself(tmp_path: Path, name: str, block_chars: int) -> None:
    text, good, bad = BAD[name]
    path = tmp_path / "a.csv"
    path.write_bytes(b"n,p\n" + text.encode())
    reader = CsvReader(InputFile(str(path)))
    reader.block_bytes, reader.max_row_bytes = block_chars, 40
    blocks = list(reader.blocks(pa.schema([("n", pa.int64())]), 0, 0))
    assert [n for block in blocks if block.data is not None for n in block.data["n"].to_pylist()] == good
    if bad is not None:
        assert {row.line: row.reason for block in blocks for row in block.bad} == bad


def test_a_row_of_ten_megabytes_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,p\n1," + "a" * 10_000_000 + '\n2,"' + "b\n" * 5_000_000 + '"\n3,c\n')
    assert [len(row["p"]) for row in read(path).values] == [10_000_000, 10_000_000, 1]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_end_and_blank_lines(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(end.join(["n,p", "", "1,a", "", "x,b", '2,"c', 'd"', "3", ""]).encode())
    reading = read(path, schema={"n": "int64", "p": "string"})
    assert reading.values == [{"n": 1, "p": "a"}, {"n": 2, "p": f"c{end}d"}]
    assert [reject.line for reject in reading.rejects.values()] == [5, 8]


def test_quotes_and_commas_are_text_in_tabs_unless_they_are_said_to_be_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('\ufeffp\tq\n"Yes", he said\t1\n"open\t2\n"b"\t3\n')
    assert [row["p"] for row in read(tmp_path / "a.tsv").values] == ['"Yes", he said', '"open', '"b"']
    (tmp_path / "b.tsv").write_text('p\tq\n"a\tb"\t1\n')
    assert read(tmp_path / "b.tsv", quote='"').values == [{"p": "a\tb", "q": 1}]
    (tmp_path / "c.csv").write_text("p,q\n'a,b',1\n")
    assert read(tmp_path / "c.csv", quote="'").values == [{"p": "a,b", "q": 1}]
    (tmp_path / "d.csv").write_text('p,q\n"a",1\n')
    assert read(tmp_path / "d.csv", quote=None).values == [{"p": '"a"', "q": 1}]


def test_a_number_that_no_double_has_is_not_one_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1e400\n-1e400\n1e-400\n0.0\n0e5\n-0\ninf\n1e-300\n")
    found = read(path, types={"x": "double"})
    assert sorted(found.rejects) == [0, 1, 2]
    assert [row["x"] for row in found.values] == [0.0, 0.0, 0.0, float("inf"), 1e-300]
