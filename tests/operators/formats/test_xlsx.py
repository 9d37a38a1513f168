"""Excel files: every value of results.xlsx comes back, as openpyxl and our reader read it; what a sheet holds that is
no plain table of one kind a column is told; and what no sheet can hold is refused with a remedy."""

from __future__ import annotations

import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import openpyxl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.formats.xlsx import XLSX
from operators.formats.xlsx_writer import MOST_ROWS, UNFIT, write_book
from operators.settings import DataSettings, OutputSettings
from operators.sinks.write_rows import WriteRows
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import ConfigError, InputError, PipelineError, SchemaError
from pipeline.api.records import ROW
from tests.operators.formats.samples import read_back
from tests.operators.sources.reading import drain, read

PIECES = [
    "=1+1",
    "-",
    "@",
    "'",
    "\t",
    "\r",
    "\n",
    "_x0041_",
    "_x000B_",
    " ",
    "a",
    "<r>",
    "</r>",
    "&",
    "é😀",
    "\x7f",
    "\x85",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
SCHEMA = pa.schema(
    {
        "row": pa.int64(),
        "t": pa.string(),
        "x": pa.float64(),
        "b": pa.bool_(),
        "d": pa.date32(),
        "l": pa.list_(pa.string()),
    }
    | {"at": pa.timestamp("ms")}
)
DAYS = st.dates(date(1900, 3, 1), date(9999, 12, 31))
MOMENTS = st.datetimes(datetime(1900, 3, 1), datetime(2200, 1, 1)).map(
    lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)


def book(path: Path, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA, *, defuse: bool = False) -> Path:
    table = pa.Table.from_pylist(rows, schema)
    write_book(path, {"results": (schema, len(table), table.to_batches(3))}, defuse=defuse)
    return path


def sheet(path: Path, *rows: list[Any], title: str = "Sheet") -> Path:
    made = openpyxl.load_workbook(path) if path.exists() else openpyxl.Workbook()
    place = made.create_sheet(title) if path.exists() else made.worksheets[0]
    place.title = title
    for row in rows:
        place.append(row)
    made.save(path)
    return path


FIRST = (1.5, True, date(2024, 2, 29), ["=a", None], datetime(2024, 1, 2, 3, 4, 5, 678000))
"""Values by which each column is known to be what it is: with a fraction, with a time."""
CELLS = (NUMBERS, st.booleans(), DAYS, st.lists(st.none() | TEXTS, max_size=2), MOMENTS)


@settings(max_examples=25, deadline=None)
@example(values=[(0.1 + 0.2, None, None, [], None)], texts=["a", "<r>=</r>"], defuse=True)
@given(
    values=st.lists(st.tuples(*(st.none() | each for each in CELLS)), max_size=4),
    texts=st.lists(st.none() | TEXTS, min_size=5, max_size=5),
    defuse=st.booleans(),
)
def test_every_value_comes_back_and_equal_rows_give_equal_bytes(tmp_path_factory, values, texts, defuse) -> None:
    folder = tmp_path_factory.mktemp("xlsx")
    made = list(zip([FIRST, *values], ["a", *texts[1:]], strict=False))
    rows = [
        {"row": i, "t": t, "x": x, "b": b, "d": d, "l": tags, "at": at}
        for i, ((x, b, d, tags, at), t) in enumerate(made)
    ]
    path = book(folder / f"a{'.defused' * defuse}.xlsx", rows, defuse=defuse)
    assert book(folder / "b.xlsx", rows, defuse=defuse).read_bytes() == path.read_bytes()
    assert sorted(p.name for p in folder.iterdir()) == sorted([path.name, "b.xlsx"])
    with ZipFile(path) as packed:
        assert {each.date_time for each in packed.infolist()} == {(1980, 1, 31, 0, 0, 0)}
        assert b"2000-01-01T00:00:00Z" in packed.read("docProps/core.xml")
    found = read(path, rename={"row": "n"})
    assert [{"row": row.pop("n")} | row for row in found.values] == read_back(rows, "xlsx")
    cells = openpyxl.load_workbook(path)["results"]
    assert not [cell for row in cells.iter_rows() for cell in row if cell.data_type == "f" or cell.hyperlink]
    assert [row[2].value for row in cells.iter_rows(min_row=2)] == [row["x"] for row in rows]


def test_what_a_cell_would_change_is_a_text_and_types_are_those_of_the_columns(tmp_path) -> None:
    odd = {"n": [1, 1 << 53, (1 << 53) + 1, -(1 << 63)], "x": [float("nan"), float("-inf"), 5e-324, 1e300]}
    odd |= {"at": [datetime(1900, 2, 28), datetime(2024, 1, 1, microsecond=1), datetime(2024, 1, 1, 1), None]}
    odd |= {"price": list(map(Decimal, ("0.1", "1.50", "-3", "2"))), "t": [time(1, 2, 3), None, None, None]}
    table = pa.table(odd)
    write_book(tmp_path / "a.xlsx", {"results": (table.schema, 4, table.to_batches())}, defuse=False)
    rows = [[cell.value for cell in row] for row in openpyxl.load_workbook(tmp_path / "a.xlsx")["results"].iter_rows()]
    assert [row[0] for row in rows] == ["n", 1, 1 << 53, "9007199254740993", "-9223372036854775808"]
    assert [row[1] for row in rows] == ["x", "nan", "-inf", "5e-324", 1e300]
    assert [row[2] for row in rows][1:] == [
        "1900-02-28 00:00:00.000000",
        "2024-01-01 00:00:00.000001",
        datetime(2024, 1, 1, 1),
        None,
    ]
    assert [row[3] for row in rows][1:] == ["0.10", "1.50", "-3.00", "2.00"]
    assert rows[1][4] == "01:02:03.000000"


def test_a_text_that_no_cell_holds_and_too_many_rows_are_refused_with_a_remedy(tmp_path) -> None:
    schema = pa.schema([ROW, ("t", pa.string())])
    fits = [{"row": 0, "t": "a" * 32_767}, {"row": 1, "t": "😀" * 16_383}]
    assert read(book(tmp_path / "a.xlsx", fits, schema), rename={"row": "n"}).values[1]["t"] == "😀" * 16_383
    says = r"a\.xlsx cannot be written: in row 7 the text of column 't' is 32,768 long .*output=csv"
    with pytest.raises(PipelineError, match=says):
        book(tmp_path / "a.xlsx", [*fits, {"row": 7, "t": "😀" * 16_384}], schema)
    for code in {*range(0x20), 0xFFFE, 0xFFFF} - set(b"\t\n\r"):
        says = (
            f"in row 3 the text of column 't' has the character U\\+{code:04X} .number 2.*output=csv, jsonl or parquet"
        )
        with pytest.raises(PipelineError, match=says):
            book(tmp_path / "a.xlsx", [{"row": 3, "t": f"a{chr(code)}"}], schema)
    with pytest.raises(SchemaError, match=r"name of column 'a\\x0b' has the character U\+000B"):
        XLSX.check(pa.field("a\x0b", pa.string()))
    with pytest.raises(PipelineError, match=r"1,048,576 rows, and a sheet holds 1,048,575 .*output=csv"):
        write_book(tmp_path / "a.xlsx", {"results": (schema, MOST_ROWS, [])}, defuse=False)
    rejects = pa.table({"row": [0, 1], "t": ["x" * 40_000, "\x0b"]})
    sheets = {"results": (schema, 0, []), "rejects": (rejects.schema, 2, rejects.to_batches())}
    write_book(tmp_path / "a.xlsx", sheets, defuse=False)
    assert [row[1].value for row in openpyxl.load_workbook(tmp_path / "a.xlsx")["rejects"]] == ["t", UNFIT, UNFIT]
    wide = pa.schema([ROW, *((f"c{i}", pa.int64()) for i in range(16_384))])
    with pytest.raises(SchemaError, match="16,385 columns, and output=xlsx holds 16,384; write output=csv"):
        WriteRows(OutputSettings("xlsx")).plan(wide)
    assert [p.name for p in tmp_path.iterdir()] == ["a.xlsx"]


def told(path: Path, **data: Any) -> tuple[list[dict[str, Any]], list[str]]:
    op = ReadPrompts(DataSettings(path=str(path), **data), 100)
    return drain(op, 100).values, op._warnings


def test_cells_keep_their_types_and_what_is_no_plain_column_is_told(tmp_path, caplog) -> None:
    head = ["id", "zip", "n", "x", "mixed", "day", "at", "t", "ok", "err", None, "none"]
    first = ["a", "007", 1, 1, 1, date(2024, 1, 2), datetime(2024, 1, 2, 3, 4), time(1, 2), True, "#N/A", "c", None]
    other = ["b", "-1", 2, 2.5, "x", date(2024, 1, 3), datetime(2024, 1, 2), None, False, 3, None, None]
    path = sheet(tmp_path / "a.xlsx", head, first, [None] * 12, other, ["=1+1"])
    sheet(path, ["q"], ["second"], title="Other")
    rows, warnings = told(path)
    assert rows[0] | {"err": 0} == dict(zip([*head[:10], "column_11", "none"], first, strict=True)) | {
        "mixed": "1",
        "err": 0,
    }
    assert rows[1]["err"] == 3
    assert rows[0]["err"] is None
    assert rows[1]["mixed"] == "x"
    assert (rows[0]["none"], rows[1]["t"], type(rows[0]["n"]), type(rows[0]["x"])) == (None, None, int, float)
    assert len(rows) == 2  # openpyxl keeps no value with a formula, and the row has nothing else
    assert warnings == [
        f"of {path} the first sheet, 'Sheet', is read; data.sheet= takes others: 'Other'",
        f"{path} has no heading over column 11; it is called column_11",
        f"column 'mixed' of {path} has numbers and texts; it is read as text",
        f"{path} has cells with errors, 1 in all, which are null: the first is #NA in row 2 (the headings are row"
        " 1), column 'err'",
        f"{path} has formulas without a value, 1 in all, which are null: the first is A5; open the file in a"
        " spreadsheet and save it",
    ]
    assert not caplog.records
    for name in ("Other", 2):
        assert told(path, sheet=name) == ([{"q": "second"}], [])
    assert told(path, types={"n": "string"})[0][0]["n"] == "1"
    assert told(path, types="text")[0][0]["x"] == "1"


def test_what_cannot_be_read_is_refused_with_a_remedy(tmp_path, monkeypatch) -> None:
    path = sheet(tmp_path / "a.xlsx", ["a", "a"], [1, 2])
    with pytest.raises(ConfigError, match="two columns 'a'"):
        told(path)
    with pytest.raises(ConfigError, match=r"data\.sheet=Shet: .* has the sheets Sheet; did you mean data\.sheet=Sheet"):
        told(path, sheet="Shet")
    with pytest.raises(ConfigError, match=r"data\.sheet=0 cannot work"):
        DataSettings(sheet=0)
    (tmp_path / "b.csv").write_text("a,b\n1,2\n")
    for key, value in {"sheet": 1, "null_texts": True}.items():
        name = "b.csv" if key == "sheet" else "a.xlsx"
        with pytest.raises(
            ConfigError, match=rf"data\.{key} is not for {name[2:]} files, as .*{name} is; leave it out"
        ):
            told(tmp_path / name, **{key: value})
    (tmp_path / "b.csv").rename(tmp_path / "b.xlsx")
    with pytest.raises(InputError, match=r"b\.xlsx cannot be read as an Excel file: .*begins like text"):
        told(tmp_path / "b.xlsx")
    path.rename(tmp_path / "a.dat")
    with pytest.raises(InputError, match=r"if it is an Excel file, name it \.xlsx"):
        told(tmp_path / "a.dat")
    (tmp_path / "a.dat").rename(path)
    monkeypatch.setitem(sys.modules, "fastexcel", None)
    with pytest.raises(ConfigError, match=r"needs fastexcel: .*\[excel\]"):
        told(path)
    monkeypatch.setattr("operators.formats.xlsx.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"output=xlsx needs xlsxwriter: .*\[excel\]"):
        WriteRows(OutputSettings("xlsx"))


@pytest.mark.parametrize(
    "others", [[1, 2, None], [1.5, 2, None], [True, False, None], [datetime(2024, 1, 2), None, None]]
)
def test_texts_that_libraries_take_for_nulls_or_numbers_are_texts(tmp_path, others):
    for word in ("NA", "N/A", "null", "None", "NaN", "inf", "007", "-", " 5"):
        book = openpyxl.Workbook()
        sheet = book.create_sheet("a", 0)
        for values in (["prompt", "note"], *(["p", value] for value in [*others, word])):
            sheet.append(values)
        sheet.cell(5, 2).data_type = "s"
        book.save(tmp_path / "a.xlsx")
        notes = [values["note"] for values in read(tmp_path / "a.xlsx").values]
        assert (notes[-1], notes[-2], type(notes[0])) == (word, None, str)


CELL = (
    st.floats(allow_nan=False, allow_infinity=False)
    .map(lambda x: float(f"{x:.16g}"))
    .filter(isfinite)  # as openpyxl writes
    | st.integers(-(1 << 53), 1 << 53)
    | st.sampled_from(["1.10", "007", "0.30", "1e5", "-0", "inf", " 5", "12345678901234567890", "0.000012346"])
)


@settings(max_examples=25, deadline=None)
@example(cells=[0.1234567890123456, 1.2345e-12, 1e-300, 123456789.1234568])
@given(cells=st.lists(CELL, min_size=1, max_size=6))
def test_a_cell_of_a_column_of_texts_has_all_its_digits(tmp_path_factory, cells) -> None:
    path = tmp_path_factory.mktemp("xlsx") / "a.xlsx"
    sheet(path, ["t"], *([cell] for cell in [*cells, "n/a"]))
    texts = [row["t"] for row in told(path)[0]]
    for cell, text in zip(cells, texts, strict=False):
        assert text == cell if isinstance(cell, str) else float(text) == cell, cell
    assert [row["t"] for row in told(path, types={"t": "string"})[0]] == texts


def test_times_of_a_day_and_durations_are_told_from_dates(tmp_path) -> None:
    hours = [timedelta(hours=26, minutes=30), timedelta(seconds=1.5), timedelta(days=40)]
    head = ["times", "some", "mixed", "text"]
    rows = [[time(10, 0), hours[0], hours[0], hours[0]], [datetime(2024, 5, 1), hours[1], datetime(2024, 5, 1, 3), "x"]]
    found, warnings = told(sheet(tmp_path / "a.xlsx", head, *rows, [time(23, 59, 59), hours[2], hours[2], hours[2]]))
    assert [row["times"] for row in found] == ["10:00:00", "2024-05-01 00:00:00", "23:59:59"]
    assert [row["some"] for row in found] == hours
    assert [row["mixed"] for row in found] == ["26:30:00", "2024-05-01 03:00:00", "960:00:00"]
    assert [row["text"] for row in found] == ["26:30:00", "x", "960:00:00"]
    kinds = ["dates and durations", "durations and texts", "dates and times of a day"]
    assert [warning.partition(" has ")[2].partition(";")[0] for warning in warnings] == kinds


def test_a_row_of_errors_alone_is_a_row_and_one_that_is_no_number_costs_itself(tmp_path) -> None:
    path = sheet(tmp_path / "a.xlsx", ["a", "b"], [1, "x"], ["#N/A", None], [None, None], ["n/a", "y"], [2.5, "z"])
    rows = drain(ReadPrompts(DataSettings(path=str(path), types={"a": "double"}), 100), 100)
    assert [row["a"] for row in rows.values] == [1.0, None, 2.5]
    (reject,) = rows.rejects.values()
    assert (reject.row, reject.reason) == (2, "column 'a' has 'n/a', which is no double")
    assert reject.record == '{"a": "n/a", "b": "y"}'
