"""Laws of every format in the registry: what is read of a file, and what is written comes back."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.formats.csv import CsvReader
from operators.formats.input_file import InputFile
from operators.formats.lines import LinesReader
from operators.formats.reader import ReadKeys
from operators.formats.registry import ENDINGS, FORMATS, WRITTEN, FormatKeys
from operators.formats.text_file import TextReader
from operators.formats.unpack import CODECS
from operators.settings import DataSettings, OutputSettings
from operators.sources.read_prompts import ReadPrompts
from pipeline import PROJECT
from pipeline.api.errors import ConfigError
from pipeline.system.result_files import names_of, scan
from tests.operators.flow import Flow, chain
from tests.operators.formats.samples import NESTED, ROWS, SUFFIXES, TABLE, as_results, pack, usual
from tests.operators.sources.reading import drain, read
from tests.sets import often


def test_every_ending_has_one_owner_a_sample_and_a_line_on_the_page() -> None:
    endings = [ending for form in FORMATS.values() for ending in form.endings]
    assert len(endings) == len(set(endings)), "a second format with this ending would win in silence"
    assert set(WRITTEN) <= {ending[1:] for ending in endings}, "results are read back by an ending of their name"
    made = {suffix.partition(".")[0] for suffix in SUFFIXES}
    missing = {form.name for form in FORMATS.values() if not made & {ending[1:] for ending in form.endings}} - {"lines"}
    missing -= {"images"}  # rows of their own: tests/operators/sources/test_images.py
    assert not missing, "tests/operators/formats/samples.py makes no file of them"
    page = (PROJECT / "docs/data.md").read_text(encoding="utf-8")
    assert not [ending for ending in endings if f"`{ending}`" not in page]


def test_every_format_gives_the_same_rows_in_a_flow(path: Path, tmp_path: Path) -> None:
    flow = Flow(tmp_path / "out", chain(ReadPrompts(DataSettings(path=str(path)), 10)))
    assert flow.run() == [{**row, "row": i} for i, row in enumerate(ROWS)]
    assert flow.committed == [0, 1, 2]


@pytest.mark.parametrize("chunk_rows", often([1, 6, 7, 25, 26], 6, 26))
def test_seek_gives_the_tail_and_limit_the_head(path: Path, chunk_rows: int) -> None:
    whole = read(path, chunk_rows)
    assert whole.values == ROWS
    for seek in range(len(whole.ends) + 1):
        tail = read(path, chunk_rows, seek)
        assert tail.values == ROWS[seek * chunk_rows :]
        assert tail.ends == {k: n for k, n in whole.ends.items() if k >= seek}
    for limit in (1, 7, 12, 25, 99):
        assert read(path.parent, chunk_rows, limit=limit).values == ROWS[:limit]


def test_progress_is_by_rows_where_they_are_known_and_else_by_bytes(path: Path) -> None:
    packed = path.suffix in CODECS
    unknown = packed or path.suffix == ".arrows" or issubclass(FORMATS[ENDINGS[path.suffix]].reader, CsvReader)
    for limit, total in ((None, 25), (10, 10)):
        op = ReadPrompts(DataSettings(path=str(path), limit=limit), 10)
        op.plan()
        assert op.fraction_read() == 0
        assert op.total_rows() == (None if unknown else total)
        op.seek(1)
        assert unknown or op.fraction_read() == 10 / total
        drain(op, 10)
        assert op.fraction_read() == 1


def test_columns_get_the_names_that_they_are_given(path: Path) -> None:
    found = read(path, 10, seek=1, rename={"n": "m", "x": "n"})
    assert found.values == [{"prompt": row["prompt"], "m": row["n"], "n": row["x"]} for row in ROWS[10:]]


def test_each_key_is_one_of_a_format_or_of_a_reader() -> None:
    assert {key.name for key in fields(ReadKeys)} == {key for form in FORMATS.values() for key in form.reader.keys}
    assert {key.name for key in fields(FormatKeys)} == {key for form in FORMATS.values() for key in form.keys}


@pytest.mark.parametrize("key", ["data.schema", "data.types"])
@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if not form.reader.takes_types])
def test_types_of_its_own_are_not_set(name: str, key: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{key} is for files without types, as JSONL and CSV are; a has a schema of its own"
    ):
        FORMATS[name].reader(InputFile("a"), {"a": "string"}, only=key == "data.schema")


@pytest.mark.parametrize(
    ("name", "compression"),
    [(name, each) for name, form in WRITTEN.items() if form.final is None for each in form.compressions],
)
def test_what_is_written_is_read_and_scanned(tmp_path: Path, name: str, compression: str) -> None:
    table, file = TABLE, io.BytesIO()
    WRITTEN[name].write(table, file, OutputSettings(name, compression).compression, None, **usual(WRITTEN[name]))
    packed = {codec: ending for ending, codec in CODECS.items()}.get(compression, "") if FORMATS[name].packed else ""
    path = tmp_path / f"a.{name}{packed}"
    path.write_bytes(file.getvalue())
    assert ENDINGS[f".{name}"] == name
    assert read(path, 10, seek=1).values == ROWS[10:]
    rows = scan([path], names_of(TABLE.schema))
    assert rows is not None
    assert rows.collect().to_dicts() == ROWS


@pytest.mark.parametrize("name", [name for name, form in WRITTEN.items() if form.final is None])
def test_a_column_that_is_null_in_all_of_the_first_file_is_read_of_the_others(name: str, tmp_path: Path) -> None:
    kinds = {"t": pa.string(), "n": pa.int64(), "x": pa.float64(), "b": pa.bool_(), "l": pa.list_(pa.string())}
    kinds |= {"i": pa.int8(), "u": pa.uint16()}
    nested = {"s": pa.struct({"a": pa.int64()})} if name in NESTED else {}
    kinds |= nested
    values = {"t": "a", "n": 3, "i": -5, "u": 9, **({"s": {"a": 1}} if nested else {}), "x": 0.5, "b": True, "l": ["a"]}
    files = [tmp_path / f"part-{i}.{name}" for i in range(2)]
    for file, row in zip(files, (dict.fromkeys(kinds), values), strict=True):
        as_results(WRITTEN[name], file, pa.Table.from_pylist([row, {**row, "t": None}], pa.schema(kinds.items())))
    found = scan(files, names_of(pa.schema(kinds.items())))
    assert found is not None
    assert found.collect().to_dicts() == [dict.fromkeys(kinds)] * 2 + [values, {**values, "t": None}]


@dataclass(frozen=True)
class Lines:
    """Lines of a text format, with the values of the good ones."""

    header: bytes
    types: Mapping[str, str] | None
    good: Mapping[bytes, Any]
    bad: list[bytes]
    blank: list[bytes]


TYPES = {"p": "string", "n": "int64", "d": "double", "m": "list<struct<role: string, content: string>>"}
LINES = {
    "jsonl": Lines(
        b"",
        TYPES,
        {
            b'{"p": "x", "n": 1}': {"p": "x", "n": 1},
            b'  {"p": "\\u00e9\\n", "other": [{"deep": null}]}\r': {"p": "é\n"},
            '{"p": "é", "m": [{"role": "user", "content": "hi", "name": "a"}]}'.encode(): {
                "p": "é",
                "m": [{"role": "user", "content": "hi"}],
            },
            b'{"d": 9007199254740992}': {"d": 9007199254740992.0},
            b'{"d": -Infinity}': {"d": float("-inf")},
            b"{}": {},
        },
        [
            *(b'{"p": ', b'{"p": "x"} {"p": "y"}', b"null", b"[1]", b"3", b'{"p": "\xff"}', b'{"\xff": 1}'),
            *(b'{"p": "a\tb"}', b'{"p": "a\x00b"}', b'{"p": "\\ud800"}', b'{"n": 1.5}', b'{"n": "1"}', b'{"n": 1.0}'),
            *(b'{"d": true}', b'{"d": 9007199254740993}', b'{"m": "ab"}', b'{"m": [[]]}', b'{"p": {"a": 1}}'),
            *(b'{"n": 99999999999999999999}', b'{"m": [{"role": 1}]}', b'{"p": "x", "p": "y"}'),
            *(b'{"n": ' + b"9" * 5000 + b"}", b"[" * 5000, b'{"p": "x"}\x00{"p": "y"}'),
        ],
        [b"", b"  ", b"\t\r"],
    ),
    "csv": Lines(
        b"n,p\n",
        {"n": "int64", "p": "string"},
        {
            b"1,a": {"n": 1, "p": "a"},
            b",": {"n": None, "p": ""},
            b'2,"quoted ""b"", and\na line"': {"n": 2, "p": 'quoted "b", and\na line'},
            "-3,é".encode(): {"n": -3, "p": "é"},
            b"07,x": {"n": 7, "p": "x"},
        },
        [b"1", b"1,2,3", b"one,a", b"1.5,b", b"99999999999999999999,c"],
        [b""],
    ),
    "lines": Lines(
        b"",
        None,
        {b" x y \r": {"text": "x y"}, b'{"a": ': {"text": '{"a":'}, b"\xc3\xa9": {"text": "é"}},
        [b"\xff\xfd"],
        [b"", b"\t\r", b" "],
    ),
}


def test_each_format_of_lines_is_tried():
    """One of which each line is a row, and that has no lines here, would have no test of its bad ones."""
    of_lines = {name for name, each in FORMATS.items() if issubclass(each.reader, LinesReader) and not each.alone}
    assert of_lines == {*LINES} - {"csv"}


@pytest.mark.parametrize("name", LINES)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), block_bytes=st.integers(1, 400), chunk_rows=st.integers(1, 9), seek=st.integers(0, 4))
def test_any_mix_of_lines_gives_every_line_its_own_fate(tmp_path_factory, name, data, block_bytes, chunk_rows, seek):
    """Wherever blocks and chunks are cut, and wherever a run goes on; in an archive, too."""
    kind = LINES[name]
    lines = data.draw(st.lists(st.sampled_from([*kind.good, *kind.bad, *kind.blank]), max_size=30))
    path = tmp_path_factory.mktemp(name) / f"a{data.draw(st.sampled_from(['', *CODECS]))}"
    content = kind.header + b"\n".join(lines)
    pack(path, content) if path.suffix else path.write_bytes(content)
    numbers, number = [], 1 + kind.header.count(b"\n")
    for line in lines:
        numbers.append(number)
        number += 1 + line.count(b"\n")
    values = [
        {**dict.fromkeys(kind.types or {}), **kind.good[line]} | ({} if kind.types else {"line": at})
        for line, at in zip(lines, numbers, strict=True)
        if line in kind.good
    ]
    whole, tail = (read(path, chunk_rows, k, format=name, schema=kind.types, empty="ok") for k in (0, seek))
    assert whole.values == values
    bad = [at for line, at in zip(lines, numbers, strict=True) if line in kind.bad]
    assert [reject.line for _, reject in sorted(whole.rejects.items())] == bad
    assert tail.rows == {i: row for i, row in whole.rows.items() if i >= seek * chunk_rows}
    assert tail.rejects == {i: row for i, row in whole.rejects.items() if i >= seek * chunk_rows}
    reader = FORMATS[name].reader(InputFile(str(path)), kind.types)
    assert isinstance(reader, TextReader)
    reader.block_bytes = block_bytes
    blocks = list(reader.blocks(reader.schema(1), 0, 0))
    assert reader.total_rows() in (None, sum(block.rows for block in blocks))
    assert sum(block.rows for block in blocks) == len(values) + len(bad)
    assert [row for block in blocks if block.data is not None for row in block.data.to_pylist()] == values
    assert [row.line for block in blocks for row in block.bad] == bad


def test_any_file_of_a_directory_has_lines_and_a_resumed_run_begins_in_the_middle(tmp_path):
    for name in ("a.jsonl", "b.txt", "c"):
        (tmp_path / name).write_text(f"{name} 1\n{name} 2\n")
    every = [f"{name} {n}" for name in ("a.jsonl", "b.txt", "c") for n in (1, 2)]
    assert [row["text"] for row in read(tmp_path, format="lines").values] == every
    assert [row["text"] for row in read(tmp_path, chunk_rows=2, seek=1, format="lines").values] == every[2:]
