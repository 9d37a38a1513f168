"""JSONL that Arrow reads a block at a time gives the rows, rejects and notes that reading each line by itself gives."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.formats import jsonl
from operators.formats.arrow import write
from operators.formats.input_file import InputFile
from operators.formats.jsonl import JsonlReader
from operators.formats.reader import RowBlock
from operators.formats.text_file import TextReader
from operators.rows.arrow_types import parse_schema

TYPES = {
    **{"i": "int64", "d": "double", "s": "string", "b": "bool", "n": "int32", "f": "float"},
    **{"l": "list<double>", "o": "struct<x: int64, y: list<string>>"},
}
VALUES = (
    *("0", "-0", "-0.0", "7", "2147483648", "9007199254740993", "9223372036854775808", "0.1", "1e3", "1e999", "1e-400"),
    *("NaN", "-Infinity", "Inf", "01", "1.", "+1", "true", "null", "tru", '"x"', '"1"', '"2024-01-01"', "'x'", '"}"'),
    *(
        r'"\u00e9\u0000"',
        r'"\ud83d\ude00"',
        r'"\udc00"',
        r'"\ud800"',
        r'"\ud800a"',
        r'"\ud800\u0041"',
        r'"\uD800\uD800"',
        r'"\x"',
        '"\t"',
        '"\x7f\u2028"',
        '"\udcff"',
        "[]",
        "[-0, 1.5]",
    ),
    *("[1, null]", "[[1]]", "{}", '{"x": 1}', '{"x": 1, "x": 2}', '{"y": ["a"], "x": null}', '{"z": 1}', '{"x": 1.0}'),
)
"""Values as they are written, most of them right for one column and wrong for others."""
FITTING = {"i": ("1", "-0"), "d": ("0.1", "3"), "s": ('"é}"', "null"), "b": ("true",), "l": ("[1, 2.5]", "[]")}
ODD_LINES = (
    "",
    " ",
    "{}",
    "[1]",
    '{"i": 1} {"i": 2}',
    '{"i": 1',
    "}{",
    '\ufeff{"i": 1}',
    '{"i": 1}\0',
    '{"i":\r1}',
    "\udcff",
    '{"s": "a",\n"b": true}{"s": "b"}',  # as many objects as lines
    '{"s": "a"}\0{"s": "b"}',
    '{"s": "\0"}',
    '{"s": "a"}\0\n{"s": "b"}',
)

fitting_objects = st.fixed_dictionaries({}, optional={k: st.sampled_from(v) for k, v in FITTING.items()})
odd_pairs = st.tuples(st.sampled_from([*TYPES, "new", r"\u0069"]), st.sampled_from(VALUES))


def line_of(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}"


fitting_lines = fitting_objects.map(lambda row: line_of(row.items()))
odd_lines = st.lists(odd_pairs, max_size=4).map(line_of)
any_lines = st.one_of(fitting_lines, odd_lines, st.sampled_from(ODD_LINES))


def content(blocks: Iterable[RowBlock], start: int) -> tuple[Any, ...]:
    """Return the rows from `start` on, their bytes as an Arrow file, the rejects, and the keys that no column holds."""
    found = [block.part(max(block.first, start), max(block.first + block.rows, start)) for block in blocks]
    numbers = [int(number) for _, rows, _ in found for number in rows]
    data = [part for part, rows, _ in found if part is not None and len(rows)]
    file = io.BytesIO()
    if data:
        write(pa.Table.from_batches(data).combine_chunks(), file, "none", None)
    return numbers, file.getvalue(), [each for _, _, bad in found for each in bad]


@settings(max_examples=400, deadline=None)
@given(
    lines=st.one_of(st.lists(fitting_lines, max_size=12), st.lists(any_lines, max_size=8)),
    end=st.sampled_from(["\n", "\r\n"]),
    closed=st.booleans(),
    names=st.sets(st.sampled_from([*TYPES]), min_size=1),
    block_bytes=st.integers(1, 400),
    start=st.integers(0, 6),
    only=st.booleans(),
)
def test_blocks_are_what_lines_are(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    end: str,
    closed: bool,
    names: set[str],
    block_bytes: int,
    start: int,
    only: bool,
) -> None:
    path = tmp_path_factory.getbasetemp() / "blocks.jsonl"
    path.write_bytes((end.join(lines) + end * closed).encode(errors="surrogateescape"))
    fast, careful = read_both_ways(path, names, start, block_bytes=block_bytes, only=only)
    assert fast == careful


@pytest.mark.parametrize("name", TYPES)
def test_a_block_with_any_one_odd_value_is_what_its_lines_are(tmp_path: Path, name: str) -> None:
    """Between lines that Arrow reads, so that nothing but the value makes it unsure."""
    path = tmp_path / "one.jsonl"
    for odd in (*(line_of([(name, value)]) for value in VALUES), *ODD_LINES):
        path.write_bytes(f'{{"s": "a"}}\n{odd}\n{{"s": "b"}}\n'.encode(errors="surrogateescape"))
        fast, careful = read_both_ways(path, {name, "s"})
        assert fast == careful, odd


def read_both_ways(path: Path, names: set[str], start: int = 0, block_bytes: int = 1 << 19, only: bool = False) -> Any:
    """Return what is read of a file of columns `names` block by block, and line by line."""
    types = {name: TYPES[name] for name in sorted(names)}
    schema = parse_schema(types)
    reader = JsonlReader(InputFile(str(path)), types, only=only)
    reader.block_bytes = block_bytes
    ways = list(reader.blocks(schema, 0, start)), list(TextReader.blocks(reader, schema, 0, start))
    told = ([(row, key) for block in blocks for row, key in block.unread if row >= start] for blocks in ways)
    return [
        (sum(block.rows for block in blocks), *content(blocks, start), keys)
        for blocks, keys in zip(ways, told, strict=True)
    ]


def test_plain_rows_are_read_without_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": f"é{i}", "n": i, "share": i / 7, "tags": ["a", None], "meta": {"x": i}} for i in range(5000)]
    path = tmp_path / "plain.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    reader = JsonlReader(InputFile(str(path)))
    schema = reader.schema(100)
    monkeypatch.delattr(jsonl, "parse_object")
    data = [block.data for block in reader.blocks(schema, 0, 0)]
    assert [row for part in data if part is not None for row in part.to_pylist()] == rows
