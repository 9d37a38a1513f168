"""CSV as others write it: every delimiter, quoting, line end and encoding, with a header line, without one, or with
names in the settings."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.formats.csv import CsvReader
from operators.formats.input_file import InputFile
from operators.settings import DataSettings
from operators.sources.read_prompts import ReadPrompts
from tests.operators.sources.reading import drain, read

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
NAMES = ["id", "question", "answer"]
TEXTS = st.text("a0 ,;|\t'\"\n\r€ö=", max_size=6)
ROWS = st.lists(st.tuples(TEXTS, TEXTS, st.just("end")), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    rows=ROWS,
    separator=st.sampled_from([*SEPARATORS]),
    quote=st.sampled_from(['"', "'", None]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    encoding=st.sampled_from([None, "cp1252", "utf-16", "utf-8-sig"]),
    header=st.sampled_from([True, False, NAMES]),
    said=st.booleans(),
    seek=st.integers(0, 2),
)
def test_each_table_that_csv_writes_comes_back(
    tmp_path_factory, rows, separator, quote, quoting, end, encoding, header, said, seek
) -> None:
    """What is between the fields is found, or said; rows are the same from the middle on."""
    if quote is None:  # then no field can hold what ends it
        quoting, rows = csv.QUOTE_NONE, [[*("".join(c for c in t if c.isalnum()) for t in row)] for row in rows]
    if quoting == csv.QUOTE_MINIMAL:  # csv writes other line ends without quotes
        rows = [[field.translate({ord(c): end for c in "\r\n"}) for field in row] for row in rows]
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quotechar=quote, quoting=quoting, lineterminator=end)
    writer.writerows([NAMES, *rows] if header is True else rows)
    path = tmp_path_factory.mktemp("csv") / ("a.tsv" if separator == "\t" and not said else "a.csv")
    path.write_bytes(text.getvalue().encode(encoding or "utf-8"))
    keys: dict[str, Any] = {"quote": quote, "header": header, "types": "text"}
    keys |= {"separator": SEPARATORS[separator]} if said or header is not True else {}
    keys |= {"encoding": encoding} if encoding == "cp1252" else {}
    names = NAMES if header is not False else ["column_1", "column_2", "column_3"]
    assert read(path, 2, seek, **keys).values == [dict(zip(names, row, strict=True)) for row in rows[2 * seek :]]


FOUND: dict[str, tuple[str, str, int]] = {
    "a semicolon": ("a;b\n1;2\n", ";", 1),
    "with decimal commas": ("name;price\nx;3,50\ny;4,20\n", ";", 1),
    "a tab": ("a\tb\n1\t2\n", "\t", 1),
    "no rows": ("a;b\n", ";", 1),
    "a bad row among others": ("a|b\n1|2\n3\n4|5\n", "|", 1),
    "quoted": ('"a, b";"c"\n"1";"2"\n', ";", 1),
    "one column": ("question\nWhat; and why?\n", ",", 0),
    "one column with a semicolon in its name": ("question; long\nWhat?\n", ",", 0),
    "commas": ("a,b\n1,2;3\n", ",", 0),
    "commas, and a name with a semicolon": ("id,question; long\n1,What?\n", ",", 0),
    "commas, and semicolons might be it": ("id,q; a\n1,What; why\n", ",", 1),
    "commas in a bad file": ("a,b\n1\n2\n", ",", 0),
    "a line of Excel": ("sep=|\na,b|c;d\n1|2\n", "|", 0),
    "a quoted line of Excel": ('"sep=;"\r\na;b\r\n1;2\r\n', ";", 0),
    "nothing": ("", ",", 0),
}
"""A file; what is between its fields, and how many warnings there are."""


@pytest.mark.parametrize("name", FOUND)
def test_what_is_between_fields_is_what_the_header_has(tmp_path: Path, name: str) -> None:
    """Where it has a comma nothing else is: such files are read as ever. What is guessed is told."""
    content, separator, warnings = FOUND[name]
    (tmp_path / "a.csv").write_text(content, newline="")
    reader = CsvReader(InputFile(str(tmp_path / "a.csv")))
    reader.schema(10)
    assert (reader._separator, len(reader.guesses)) == (separator, warnings)


def test_what_was_guessed_is_told_once_for_all_files(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"{i}.csv").write_text("id;question\n1;x\n")
    op = ReadPrompts(DataSettings(path=str(tmp_path)), 10)
    assert drain(op, 10).values == [{"id": 1, "question": "x"}] * 3
    assert op._warnings == [
        f"{tmp_path}/0.csv, {tmp_path}/1.csv, {tmp_path}/2.csv: read with ';' between fields; data.separator sets it"
    ]
    op = ReadPrompts(DataSettings(path=str(tmp_path), separator=";", header=False), 10)
    assert drain(op, 10).values[0] == {"column_1": "id", "column_2": "question"}
    assert [warning.partition(": ")[2] for warning in op._warnings] == [
        "columns are named column_1 to column_2; data.header sets it"
    ]


def test_rejects_have_their_lines_and_say_where_names_are(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sep=;\na;b\n1;2\n3\n")
    assert [(r.line, r.reason[:34]) for r in read(path).rejects.values()] == [(4, "has 1 fields, the header has 2; a ")]
    path.write_text("1;2\n3\n")
    found = read(path, header=["a", "b"])
    assert [(r.line, r.reason[:34]) for r in found.rejects.values()] == [(2, "has 1 fields, data.header has 2; a")]
    assert found.values == [{"a": 1, "b": 2}]


def test_a_file_is_longer_than_what_is_looked_at(tmp_path: Path) -> None:
    names = [f"column {i:0100}" for i in range(700)]
    (tmp_path / "a.csv").write_text(";".join(names) + "\n" + ";".join(["x"] * len(names)) + "\n")
    assert list(read(tmp_path / "a.csv").values[0]) == names
    (tmp_path / "b.csv").write_text("a;b\n" + "".join(f'{i};"x\ny"\n' for i in range(6000)))
    assert len(read(tmp_path / "b.csv").values) == 6000
