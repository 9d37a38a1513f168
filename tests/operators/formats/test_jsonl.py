"""JSONL: types, rejects and lines that are too long. test_formats.py has the fate of every kind of line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.formats.input_file import InputFile
from operators.formats.jsonl import JsonlReader
from operators.rows.arrow_types import JSON_TEXT, parse_type
from pipeline.api.errors import ConfigError
from tests.operators.sources.reading import Reading, read


def written(folder: Path, lines: list[bytes]) -> Path:
    path = folder / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(9, 60), max_size=12), block_bytes=st.integers(1, 30), skip=st.integers(0, 12))
def test_a_line_that_is_too_long_costs_itself(tmp_path_factory, sizes: list[int], block_bytes: int, skip: int) -> None:
    lines = [b'{"p": "' + b"x" * (size - 9) + b'"}' for size in sizes]
    path = written(tmp_path_factory.mktemp("long"), lines)
    reader = JsonlReader(InputFile(str(path)), {"p": "string"})
    reader.block_bytes, reader.max_row_bytes = block_bytes, 10
    assert reader.total_rows() == len(lines)
    blocks = list(reader.blocks(reader.schema(1), 0, skip))
    assert sum(block.rows for block in blocks) == len(lines)
    bad = [row.line for block in blocks for row in block.bad]
    good = [len(row["p"]) for block in blocks if block.data is not None for row in block.data.to_pylist()]
    assert set(bad) <= {i for i, size in enumerate(sizes, 1) if size > 10}
    assert set(bad) >= {i for i, size in enumerate(sizes, 1) if size > 10 and i > skip}
    if not skip:
        assert len(good) + len(bad) == len(lines)
        assert good == [size - 9 for i, size in enumerate(sizes, 1) if i not in bad]


def test_skipped_blocks_are_counted_and_not_parsed(tmp_path: Path) -> None:
    reader = JsonlReader(InputFile(str(written(tmp_path, [b'{"n": 1}', b"", b'{"n": 2}', b"bad", b'{"n": 3}']))))
    reader.block_bytes = 1
    blocks = list(reader.blocks(pa.schema([("n", pa.int64())]), 0, 3))
    assert [block.rows for block in blocks] == [1] * 4
    assert [block.data and block.data.to_pylist() for block in blocks] == [None, None, None, [{"n": 3}]]
    assert not any(block.bad for block in blocks)


def test_a_reject_says_where_and_why(tmp_path: Path) -> None:
    says = {
        b'{"n": "one"}': "column 'n' is int64, the value is 'one'; data.types={n: ...} sets another type",
        b"oops \xff": "is not UTF-8: invalid start byte at byte 6; data.encoding=cp1252 reads texts of Windows and"
        " Latin-1, or convert the file to UTF-8",
        b"7": 'number, not an object; write it as {"prompt": ...}',
        b'{"n": 2': "not JSON: Expecting ',' delimiter at character 8; each line must be one JSON object",
        b'{"p": "x", "n": 1e999}': "has a number beyond what a double holds (1.8e308), or too near to 0; write it",
        b'{"p": ["\\ud83d"]}': "has half a character",
    }
    path = written(tmp_path, [b"", b'{"n": 1, "p": ["\\ud83d\\ude00"]}', *says])
    found = read(path, types={"p": "json"})
    assert found.values == [{"n": 1, "p": '["\U0001f600"]'}]
    for i, (line, why) in enumerate(says.items(), 1):
        reject = found.rejects[i]
        assert (reject.file, reject.line, reject.record) == (str(path), i + 2, line.decode(errors="backslashreplace"))
        assert why in reject.reason


def inferred(tmp_path: Path, *objects: object) -> tuple[dict[str, pa.DataType], Reading]:
    path = written(tmp_path, [json.dumps(o).encode() for o in objects])
    schema = JsonlReader(InputFile(str(path))).schema(10_000)
    return {f.name: f.type for f in schema}, read(path)


def test_types_are_read_off_the_first_rows(tmp_path: Path) -> None:
    types, reading = inferred(
        tmp_path,
        {"date": "2020-01-01", "x": 1, "m": [{"role": "user"}], "later": None, "huge": 1 << 70, "w": (1 << 53) + 1},
        {"x": 1.5, "m": [{"role": "a", "content": "b"}], "later": [1], "nothing": None, "empty": {}}
        | {"id": 1 << 63, "w": 0.5},
    )
    assert types["date"] == pa.string()
    assert types["x"] == pa.float64()
    assert types["huge"] == types["empty"] == types["w"] == JSON_TEXT
    assert types["id"] == pa.uint64()
    assert types["m"] == parse_type("list<struct<role: string, content: string>>", "k")
    assert types["later"] == pa.list_(pa.int64())
    assert reading.values[0]["x"] == 1.0
    assert reading.values[1]["nothing"] is None
    assert (reading.values[0]["huge"], reading.values[1]["empty"]) == (str(1 << 70), "{}")


@pytest.mark.parametrize(
    "line", [b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}", b'{"\\ud800": 1}', b'{"a": {"\\udfff": 1}}']
)
def test_no_types_are_read_off_what_no_column_can_hold(tmp_path: Path, line: bytes) -> None:
    path = written(tmp_path, [line, b'{"a": "x"}'])
    assert JsonlReader(InputFile(str(path))).schema(10) == pa.schema([("a", pa.string())])
    assert list(read(path).rejects) == [0]


def test_where_rows_disagree_the_first_decides(tmp_path: Path) -> None:
    types, reading = inferred(tmp_path, {"a": "x"}, {"a": 1}, {"a": "y"})
    assert types == {"a": pa.string()}
    assert (list(reading.rows), list(reading.rejects)) == ([0, 2], [1])


def test_files_together_have_the_columns_of_all(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('\ufeff{"a": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"a": 1.5, "b": "x"}\n')
    assert read(tmp_path).values == [{"a": 1.0, "b": None}, {"a": 1.5, "b": "x"}]


@pytest.mark.parametrize("text", ["", "int", "list<>", "list<string", "struct<>", "struct<a>", "string>", "list<a b>"])
def test_types_are_spelt_strictly(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^k='.*' is not a type: (unknown type|name: type expected)"):
        parse_type(text, "k")


@pytest.mark.parametrize("name", ["n", "m"])
def test_a_number_too_near_to_0_is_no_0(tmp_path, name):
    """By Arrow, which reads the first lines as a block, and line by line, as a key that no column holds is."""
    lines = [
        b'{"n": 0.5}',
        b'{"n": 0.0}',
        b'{"%s": 1e-400, "n": 1.5}' % name.encode().replace(b"n", b"x"),
        b'{"n": -2.5e-400}',
    ]
    found = read(written(tmp_path, [*lines, b'{"n": 4.9e-324}']), schema={"n": "double"})
    assert sorted(found.rejects) == [2, 3]
    assert found.values == [{"n": 0.5}, {"n": 0.0}, {"n": 5e-324}]
