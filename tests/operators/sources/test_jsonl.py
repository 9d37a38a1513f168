"""JSONL: bad lines cost themselves and nothing else, wherever blocks are cut."""

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
from pipeline.api.errors import ConfigError, InputError
from tests.operators.sources.reading import Reading, read

SCHEMA = {"p": "string", "n": "int64", "d": "double", "m": "list<struct<role: string, content: string>>"}
GOOD = [
    b'{"p": "x", "n": 1}',
    b'  {"p": "\\u00e9\\n", "other": [{"deep": null}]}\r',
    '{"p": "é", "m": [{"role": "user", "content": "hi", "name": "a"}]}'.encode(),
    b'{"d": 9007199254740992}',
    b'{"d": -Infinity}',
    b"{}",
]
BAD = [
    b'{"p": ',
    b'{"p": "x"} {"p": "y"}',
    b"null",
    b"[1]",
    b"3",
    b'{"p": "\xff"}',
    b'{"\xff": 1}',
    b'{"p": "a\tb"}',
    b'{"p": "a\x00b"}',
    b'{"p": "\\ud800"}',
    b'{"n": 1.5}',
    b'{"n": "1"}',
    b'{"n": 1.0}',
    b'{"d": true}',
    b'{"d": 9007199254740993}',
    b'{"m": "ab"}',
    b'{"m": [[]]}',
    b'{"n": 99999999999999999999}',
    b'{"p": {"a": 1}}',
    b'{"m": [{"role": 1}]}',
    b'{"p": "x", "p": "y"}',
    b'{"n": ' + b"9" * 5000 + b"}",
    b"[" * 5000,
    b'{"p": "x"}\x00{"p": "y"}',
]
BLANK = [b"", b"  ", b"\t\r"]


def written(folder: Path, lines: list[bytes]) -> Path:
    path = folder / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


def read_blocks(path: Path, block_bytes: int, skip: int = 0) -> tuple[list[dict[str, object]], list[int | None]]:
    """Rows, and line numbers of bad rows, through the reader alone."""
    reader = JsonlReader(InputFile(str(path)), SCHEMA)
    reader.block_bytes = block_bytes
    blocks = list(reader.blocks(reader.schema(1), skip))
    assert sum(b.rows for b in blocks) == reader.total_rows()
    return (
        [row for b in blocks if b.data is not None for row in b.data.to_pylist()],
        [bad.line for b in blocks for bad in b.bad],
    )


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.sampled_from(GOOD + BAD + BLANK), max_size=30),
    block_bytes=st.integers(1, 400),
    chunk_rows=st.integers(1, 9),
    seek=st.integers(0, 4),
)
def test_any_mix_of_lines_gives_every_line_its_own_fate(
    tmp_path_factory, lines: list[bytes], block_bytes: int, chunk_rows: int, seek: int
) -> None:
    path = written(tmp_path_factory.mktemp("jsonl"), lines)
    rows, bad = read_blocks(path, block_bytes)
    assert len(rows) == sum(line in GOOD for line in lines)
    assert bad == [i for i, line in enumerate(lines, 1) if line in BAD]
    whole, tail = (read(path, chunk_rows, k, schema=SCHEMA, empty="ok") for k in (0, seek))
    assert whole.values == rows
    assert [r.line for _, r in sorted(whole.rejects.items())] == bad
    assert sum(whole.ends.values()) == sum(line not in BLANK for line in lines)
    first = seek * chunk_rows
    assert tail.rows == {i: row for i, row in whole.rows.items() if i >= first}
    assert tail.rejects == {i: row for i, row in whole.rejects.items() if i >= first}


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(9, 60), max_size=12), block_bytes=st.integers(1, 30), skip=st.integers(0, 12))
def test_a_line_that_is_too_long_costs_itself(tmp_path_factory, sizes: list[int], block_bytes: int, skip: int) -> None:
    lines = [b'{"p": "' + b"x" * (size - 9) + b'"}' for size in sizes]
    path = written(tmp_path_factory.mktemp("long"), lines)
    reader = JsonlReader(InputFile(str(path)), {"p": "string"})
    reader.block_bytes, reader.max_row_bytes = block_bytes, 10
    assert reader.total_rows() == len(lines)
    blocks = list(reader.blocks(reader.schema(1), skip))
    assert sum(block.rows for block in blocks) == len(lines)
    bad = [row.line for block in blocks for row in block.bad]
    good = [len(row["p"]) for block in blocks if block.data is not None for row in block.data.to_pylist()]
    assert set(bad) <= {i for i, size in enumerate(sizes, 1) if size > 10}
    assert set(bad) >= {i for i, size in enumerate(sizes, 1) if size > 10 and i > skip}
    if not skip:
        assert len(good) + len(bad) == len(lines)
        assert good == [size - 9 for i, size in enumerate(sizes, 1) if i not in bad]


def test_skipped_blocks_are_counted_and_not_parsed(tmp_path: Path) -> None:
    path = written(tmp_path, [b'{"n": 1}', b"", b'{"n": 2}', b"bad", b'{"n": 3}'])
    rows, bad = read_blocks(path, block_bytes=1, skip=3)
    assert [row["n"] for row in rows] == [3]
    assert bad == []


def test_a_reject_says_where_and_why(tmp_path: Path) -> None:
    path = written(tmp_path, [b"", b'{"n": 1}', b'{"n": "one"}', b"oops \xff", b"7", b'{"n": 2'])
    rejects = read(path).rejects
    assert {(r.file, i + 2, r.line) for i, r in rejects.items()} == {(str(path), k, k) for k in (3, 4, 5, 6)}
    assert [rejects[i].record for i in (1, 2, 3, 4)] == ['{"n": "one"}', "oops \\xff", "7", '{"n": 2']
    reasons = [rejects[i].reason for i in (1, 2, 3, 4)]
    for reason, part in zip(
        reasons,
        ["column 'n' is int64, the value is 'one'", "not UTF-8", "number, not an object", "not JSON"],
        strict=True,
    ):
        assert part in reason


def inferred(tmp_path: Path, *objects: object) -> tuple[dict[str, pa.DataType], Reading]:
    path = written(tmp_path, [json.dumps(o).encode() for o in objects])
    schema = JsonlReader(InputFile(str(path))).schema(10_000)
    return {f.name: f.type for f in schema}, read(path)


def test_a_number_that_nothing_holds_is_no_fault_of_another_column(tmp_path: Path) -> None:
    (reject,) = read(written(tmp_path, [b'{"p": "x", "n": 1}', b'{"p": "x", "n": 1e999}'])).rejects.values()
    assert reject.reason == "has a number beyond what a double holds (1.8e308); write it as a text"


def test_half_a_character_is_named_also_in_a_column_of_json(tmp_path: Path) -> None:
    path = written(tmp_path, [b'{"p": ["\\ud83d\\ude00"]}', b'{"p": ["\\ud83d"]}'])
    found = read(path, schema={"p": "json"})
    assert found.values == [{"p": '["\U0001f600"]'}]
    assert found.rejects[1].reason.startswith("has half a character")


def test_a_file_of_lines_that_are_nested_too_deeply_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, [b'{"a": ' + b"[" * 120 + b"]" * 120 + b"}"])
    with pytest.raises(InputError, match="nested more than 100 deep"):
        read(path)


def test_types_are_read_off_the_first_rows(tmp_path: Path) -> None:
    types, reading = inferred(
        tmp_path,
        {"date": "2020-01-01", "x": 1, "m": [{"role": "user"}], "later": None, "huge": 1 << 70, "w": (1 << 53) + 1},
        {
            "x": 1.5,
            "m": [{"role": "a", "content": "b"}],
            "later": [1],
            "nothing": None,
            "empty": {},
            "id": 1 << 63,
            "w": 0.5,
        },
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
