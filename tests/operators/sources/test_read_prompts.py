"""ReadPrompts: which files, which formats, chunks, limits, seeking, and what is refused before a model loads."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.formats.input_file import MAGIC
from operators.formats.registry import FORMATS
from operators.settings import DataSettings
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import ConfigError, InputError, SchemaError
from pipeline.api.meter import StageMeter
from pipeline.api.records import ChunkEnd
from pipeline.dataflow.inbox import NodeInbox
from tests.operators.formats.samples import ROWS, make
from tests.operators.sources.reading import drain, read


def test_what_was_read_and_not_sent_is_not_done(tmp_path: Path) -> None:
    """The file is one block: after its first chunk a fifth of it is done, not all."""
    make(tmp_path / "a.csv")
    op = ReadPrompts(DataSettings(path=str(tmp_path)), 5)
    op.plan()
    for item in op.run(NodeInbox(StageMeter("read"))):
        if isinstance(item, ChunkEnd):
            done = op.fraction_read()
            assert done is not None
            assert 0.1 < done / (item.chunk + 1) <= 0.2


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'{"prompt": "cut', "not JSON"),
        (b"just\ntext\n", "not JSON"),
        (b"[1]\n[2]\n", "not an object"),
        (b'"a"\n', "not an object"),
        (b'{"prompt": "a"}\r{"prompt": "b"}', "not JSON"),
        (b"caf\xe9\n", "not UTF-8"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["0.jsonl", "2.jsonl"])
def test_a_useless_file_costs_its_lines_and_not_the_others(tmp_path, content, line, packed, name):
    make(tmp_path / "1.jsonl")
    useless = tmp_path / (f"{name}.gz" if packed else name)
    useless.write_bytes(gzip.compress(content) if packed else content)
    op = ReadPrompts(DataSettings(path=str(tmp_path)), 10)
    found = drain(op, 10)
    assert found.values == ROWS
    assert [(r.file, r.line) for r in found.rejects.values()] == [
        (str(useless), i + 1) for i in range(len(content.splitlines() if b"\r" not in content else [0]))
    ]
    assert all(line in reject.reason for reject in found.rejects.values())
    assert [useless.name in warning for warning in op._warnings] == [True]
    (tmp_path / "1.jsonl").unlink()
    with pytest.raises(InputError, match="is not JSONL"):
        read(tmp_path)


BINARY = [
    *(start for start in MAGIC if start not in (b"{", b"[")),
    bytes(99),
]


@pytest.mark.parametrize("start", BINARY)
def test_a_file_of_another_format_as_a_whole_is_refused_and_named(tmp_path: Path, start: bytes) -> None:
    make(tmp_path / "1.jsonl")
    (tmp_path / "2.jsonl").write_bytes(start + b"\0\0\0\0" * bool(start.strip(b"\0")))
    with pytest.raises(InputError, match=r"2\.jsonl is not JSONL.*it begins like") as refused:
        read(tmp_path)
    assert "\0" not in str(refused.value)


def test_a_directory_is_read_in_order_without_what_is_not_data(tmp_path: Path) -> None:
    for name, value in (("b.jsonl", 2), ("a.ndjson", 1), (".c.jsonl", 3), ("_d.jsonl", 3), ("e.jsonl.tmp", 3)):
        (tmp_path / name).write_text(json.dumps({"n": value}) + "\n")
    (tmp_path / "README.md").write_text("not data")
    assert [row["n"] for row in read(tmp_path).values] == [1, 2]
    assert [row["n"] for row in read(tmp_path / "[ab].*").values] == [1, 2]
    with pytest.raises(
        InputError, match=r"in .jsonl, .ndjson \(or .gz, .zst, .bz2, .xz behind it\); found e.jsonl.tmp"
    ):
        read(tmp_path / "*.tmp", format="jsonl")


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4), chunk_rows=st.integers(1, 6), seek=st.integers(0, 4))
def test_rows_are_numbered_over_all_files(tmp_path_factory, sizes: list[int], chunk_rows: int, seek: int) -> None:
    folder = tmp_path_factory.mktemp("files")
    numbers = iter(range(99))
    for i, size in enumerate(sizes):
        pq.write_table(
            pa.table({"n": pa.array([next(numbers) for _ in range(size)], pa.int64())}), folder / f"{i}.parquet"
        )
    rows = read(folder, chunk_rows, seek, empty="ok").rows
    assert rows == {i: {"n": i} for i in range(seek * chunk_rows, sum(sizes))}


def test_files_must_have_the_same_columns(tmp_path: Path) -> None:
    first = tmp_path / "a.parquet"
    pq.write_table(pa.table({"p": ["x"], "q": [1]}), first)
    for other, message in (
        ({"p": ["x"]}, r"column 'q' is in .*a.parquet but not in .*b.parquet"),
        ({"p": ["x"], "q": [1], "r": [1]}, r"column 'r' is in .*b.parquet but not in .*a.parquet"),
        ({"p": ["x"], "q": [1.5]}, r"column 'q' is double in .*b.parquet but int64"),
    ):
        pq.write_table(pa.table(other), tmp_path / "b.parquet")
        with pytest.raises(SchemaError, match=message):
            read(tmp_path)


def test_order_of_columns_nulls_and_large_types_do_not_matter(tmp_path: Path) -> None:
    pq.write_table(pa.table({"p": pa.array(["x"], pa.large_string()), "q": [None]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"q": [1], "p": pa.array(["y"]).dictionary_encode()}), tmp_path / "b.parquet")
    op = ReadPrompts(DataSettings(path=str(tmp_path)), 10)
    assert op.plan().remove_metadata().field("p").type == pa.string()
    assert drain(op, 10).values == [{"p": "x", "q": None}, {"p": "y", "q": 1}]


def test_of_renamed_results_the_next_job_can_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": [7], "lineage": [[0]], "p": ["x"]}), tmp_path / "a.parquet")
    found = read(tmp_path, rename={"row": "source_row", "lineage": "source_lineage"})
    assert found.rows == {0: {"source_row": 7, "source_lineage": [0], "p": "x"}}


AB = b'{"a": 1, "b": 2}\n'
ZIPPED = r"begins like gzip, which is unpacked where the name ends in \.gz"


@pytest.mark.parametrize(
    ("name", "content", "data", "message"),
    [
        ("a.parquet", b"hello", {}, "cannot be read as parquet: .* text: 'hello'"),
        ("a.parquet", b'{"a": 1}', {}, "begins like JSON"),
        ("a.feather", b"FEA1" * 99, {}, "begins like Feather 1, .* write it again as Feather 2, Arrow or Parquet$"),
        ("a.csv", "a,b\n1,2\n".encode("utf-16"), {"format": "arrow"}, "begins like text: 'a,b.n1,2.n', in utf-16"),
        (
            "a.csv",
            "ä,b".encode("latin-1"),
            {},
            "its header is not UTF-8: .* data.encoding=cp1252 reads",
        ),
        (
            "a.csv",
            b"a\n1\n",
            {"encoding": "utf-16"},
            r"no mark \(BOM\); write data.encoding=utf-16-le or utf-",
        ),
        (
            "a.csv",
            b"a\n1\n",
            {"encoding": "cp125"},
            "; did you mean data.encoding=cp1252",
        ),
        ("a.jsonl", b"{}", {"separator": ";"}, "data.separator is not for jsonl files, as .*a.jsonl is; leave it out"),
        ("a.jsonl", b"{}", {"header": ["a"]}, "data.header is not for jsonl files"),
        ("a.csv", b"a;b|c\n1;2|3\n", {}, "may have ';' or '.' between its fields; say which with data.separator="),
        ("a.csv", b"a,b;c,d;e\n1;2;3\n", {}, "may have ',' or ';' between its fields"),
        ("a.csv", b"1|2;3\n2|3;4\n", {"header": ["x", "y"]}, "may have ';' or '.' between its fields"),
        (
            "a.csv",
            b"1,2\n",
            {"header": ["x", "y", "z"]},
            "data.header has 3 names, and no row of .*a.csv as",
        ),
        (
            "a.csv",
            b"x,y\n1,2\n",
            {"header": ["x", "y"]},
            "has a header line with the names of data.header; leave",
        ),
        (
            "a.csv",
            b"",
            {"separator": ";;"},
            "data.separator=';;' cannot work: it is one character, a word .comma, s",
        ),
        ("a.csv", b"", {"separator": "tab", "quote": "\t"}, "data.quote='.t' cannot work"),
        ("a.csv", b"", {"separator": ";", "quote": ";"}, "data.separator=';' cannot work: data.quote is the same"),
        ("a.csv", b"", {"header": "id"}, "data.header='id' cannot work: it is true, false or a list of the names"),
        ("a.csv", b"", {"header": []}, "data.header=.. cannot work"),
        ("a.arrow", b"", {"encoding": "cp1252"}, "data.encoding is not for arrow files, as .*a.arrow is; leave"),
        ("a.jsonl", b'{"a": 1}\r{"a": 2}\r', {}, "begins like JSON, in lines that end in CR alone; make them"),
        ("a.jsonl.bz2", b"BZh91AY&SY", {}, "damaged or cut off near byte 10: .* begins like bzip2"),
        ("a.csv", b"\xfd7zXZ\0\0", {}, "begins like xz, which is unpacked where the name ends in .xz"),
        ("a.csv", gzip.compress(b"a\n1\n", mtime=0), {}, ZIPPED),
        ("a.jsonl", gzip.compress(b"{}", mtime=0), {}, ZIPPED),
        ("a.arrow", b"hello", {}, "cannot be read as arrow"),
        ("a.jsonl", b"[\n{}]", {}, "a JSON array, as data.format=json reads it"),
        ("a.jsonl", b"PAR1\0\0\0", {}, "begins like Parquet"),
        ("a.jsonl", b"{}\n", {}, "it has no keys"),
        ("a.csv", b"a,b\n\xff\xfe,\x80\n".replace(b"a", b"\xff", 1), {}, "cannot be read as CSV"),
        ("a.txt", b"hello", {}, "none of the extensions .parquet"),
        ("a.jsonl", b'{"a": 1}', {"format": "parquet"}, "begins like JSON"),
        ("a.jsonl", b"{}", {"format": "jsn"}, f"it is one of auto, {', '.join(FORMATS)}"),
        ("a.jsonl", b'{"a": 1}', {"schema": {"a": "strin"}}, "data.schema.a='strin' is not a type"),
        ("a.csv", b"a,b\n1,2\n", {"schema": {"c": "string"}}, "data.schema names 'c'; .* has a, b"),
        ("a.csv", b"a,b\n1,2\n", {"schema": {"a": "list<string>"}}, "cannot be read from CSV"),
        ("a.csv", b"a,a\n1,2\n", {}, "two columns 'a'; rename one in the file"),
        ("a.csv", b'\n"a,b\n1,2\n', {}, r"a\.csv cannot be read as CSV: its header, line 2: a quote is opened"),
        ("a.jsonl", b'{"a": ' + b"[" * 120 + b"]" * 120 + b"}", {}, "nested more than 100 deep"),
        ("a.jsonl", b'{"row": 1}', {}, "column 'row', a name .* 'data.rename={row: source_row}'"),
        ("a.jsonl", b'{"lineage": 1}', {}, "column 'lineage', a name .* 'data.rename={lineage: source_lineage}'"),
        ("a.jsonl", AB, {"rename": {"a": "b"}}, "with data.rename .* two columns 'b'; give one of them another name"),
        ("a.jsonl", AB, {"rename": {"a": "row"}}, "column 'row', a name .*'data.rename={a: source_row}'"),
        ("a.jsonl", AB, {"rename": {"c": "d"}}, "data.rename names 'c'; the columns are a, b"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, name: str, content: bytes, data: Any, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        ReadPrompts(DataSettings(path=str(tmp_path / name), **data), 10).plan()


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    (tmp_path / "b.csv").write_text("a\n1\n")
    for path, message in (
        ("c.jsonl", "does not exist; the directory .* has a.jsonl, b.csv"),
        ("sub/c.jsonl", "nor does the directory"),
        ("*.parquet", "has no file ending in .parquet.* found nothing"),
        (".", "files of several formats"),
    ):
        with pytest.raises(InputError, match=message):
            ReadPrompts(DataSettings(path=str(tmp_path / path)), 10).plan()
    with pytest.raises(ConfigError, match=r"data\.path is not set"):
        ReadPrompts(DataSettings(), 10).plan()


def test_a_misspelt_path_is_answered_with_the_file_that_is_near_it(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "in").mkdir()
    for name in ("prompts.csv", ".prompt.csv", "other.csv"):
        (tmp_path / name).write_text("prompt\nx\n")
        (tmp_path / "in" / name).write_text("prompt\nx\n")
    monkeypatch.chdir(tmp_path)
    for path in ("promts.csv", "in/promts.csv", str(tmp_path / "in/promts.csv")):
        with pytest.raises(InputError) as refused:
            ReadPrompts(DataSettings(path=path), 10).plan()
        assert ".prompt.csv" not in str(refused.value)
        meant = str(refused.value).partition("did you mean data.path=")[2].rstrip("?")
        assert meant == path.replace("promts", "prompts")
        ReadPrompts(DataSettings(path=meant), 10).plan()
