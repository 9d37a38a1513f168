"""ReadPrompts: which files, which formats, chunks, limits, seeking, and what is refused before a model loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.rows.content import SAMPLE_BYTES, content_id
from operators.settings import DataSettings
from operators.sources import ReadPrompts
from pipeline.api.errors import ConfigError, InputError, SchemaError
from pipeline.api.meter import StageMeter
from pipeline.api.records import ChunkEnd
from pipeline.dataflow.inbox import Inbox
from tests.operators.flow import Flow, chain
from tests.operators.sources.reading import drain, read

ROWS = [{"prompt": f"p{i}", "n": i, "x": i + 0.5} for i in range(25)]


def write_jsonl(path: Path, table: pa.Table) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def write_ipc(path: Path, table: pa.Table, stream: bool) -> None:
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


WRITERS: dict[str, Callable[[Path, pa.Table], Any]] = {
    "parquet": lambda path, table: pq.write_table(table, path, row_group_size=7),
    "jsonl": write_jsonl,
    "csv": lambda path, table: pa.csv.write_csv(table, path),
    "arrow": lambda path, table: write_ipc(path, table, stream=False),
    "arrows": lambda path, table: write_ipc(path, table, stream=True),
}


@pytest.fixture(params=WRITERS)
def path(request, tmp_path: Path) -> Path:
    """ROWS in a file of each format."""
    file = tmp_path / f"rows.{request.param}"
    WRITERS[request.param](file, pa.Table.from_pylist(ROWS))
    return file


def test_every_format_gives_the_same_rows_in_a_flow(path: Path, tmp_path: Path) -> None:
    flow = Flow(tmp_path / "out", chain(ReadPrompts(DataSettings(path=str(path)), 10)))
    assert flow.run() == [{**row, "row": i} for i, row in enumerate(ROWS)]
    assert flow.committed == [0, 1, 2]


@pytest.mark.parametrize("chunk_rows", [1, 6, 7, 25, 26])
def test_seek_gives_the_tail_and_limit_the_head(path: Path, chunk_rows: int) -> None:
    whole = read(path, chunk_rows)
    assert whole.values == ROWS
    for seek in range(len(whole.ends) + 1):
        tail = read(path, chunk_rows, seek)
        assert tail.values == ROWS[seek * chunk_rows :]
        assert tail.ends == {k: n for k, n in whole.ends.items() if k >= seek}
    for limit in (1, 7, 12, 25, 99):
        assert read(path, chunk_rows, limit=limit).values == ROWS[:limit]


def test_progress_is_by_rows_where_they_are_known(path: Path) -> None:
    known = {".csv": None, ".arrows": None}
    for limit, total in ((None, 25), (10, 10)):
        op = ReadPrompts(DataSettings(path=str(path), limit=limit), 10)
        op.plan()
        assert op.fraction_read() == 0
        assert op.total_rows() == known.get(path.suffix, total)
        drain(op, 10)
        assert op.fraction_read() == 1


def test_what_was_read_and_not_sent_is_not_done(tmp_path: Path) -> None:
    """The file is one block: after its first chunk a fifth of it is done, not all."""
    WRITERS["csv"](tmp_path / "a.csv", pa.Table.from_pylist(ROWS))
    op = ReadPrompts(DataSettings(path=str(tmp_path)), 5)
    op.plan()
    for item in op.run(Inbox(StageMeter("read"))):
        if isinstance(item, ChunkEnd):
            done = op.fraction_read()
            assert done is not None
            assert 0.1 < done / (item.chunk + 1) <= 0.2


def test_seek_counts_as_read(tmp_path: Path) -> None:
    WRITERS["jsonl"](tmp_path / "a.jsonl", pa.Table.from_pylist(ROWS))
    op = ReadPrompts(DataSettings(path=str(tmp_path)), 5)
    op.seek(2)
    assert op.fraction_read() == 10 / 25


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow"])
def test_an_input_without_rows_is_one_empty_chunk(tmp_path: Path, name: str) -> None:
    empty = pa.schema([("prompt", pa.string())]).empty_table()
    WRITERS[name.partition(".")[2]](tmp_path / name, empty)
    assert read(tmp_path / name).ends == {0: 0}
    assert read(tmp_path / name, seek=1).ends == {}


def test_empty_csv_files(tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("")
    (tmp_path / "header.csv").write_text("prompt,n\n")
    assert read(tmp_path / "none.csv").ends == read(tmp_path / "header.csv").ends == {0: 0}


def test_a_directory_is_read_in_order_without_what_is_not_data(tmp_path: Path) -> None:
    for name, value in (("b.jsonl", 2), ("a.ndjson", 1), (".c.jsonl", 3), ("_d.jsonl", 3), ("e.jsonl.tmp", 3)):
        (tmp_path / name).write_text(json.dumps({"n": value}) + "\n")
    (tmp_path / "README.md").write_text("not data")
    assert [row["n"] for row in read(tmp_path).values] == [1, 2]
    assert [row["n"] for row in read(tmp_path / "[ab].*").values] == [1, 2]
    with pytest.raises(InputError, match=r"ending in .jsonl, .ndjson \(or .gz, .zst behind it\); found e.jsonl.tmp"):
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
    rows = read(folder, chunk_rows, seek).rows
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


@pytest.mark.parametrize("name", ["row", "lineage"])
def test_reserved_names_are_refused(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({name: [1]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=f"column '{name}', a name .* 'data.rename={{{name}: source_{name}}}'"):
        read(tmp_path)


def test_columns_get_the_names_that_they_are_given(path: Path) -> None:
    found = read(path, 10, seek=1, rename={"n": "m", "x": "n"})
    assert found.values == [{"prompt": row["prompt"], "m": row["n"], "n": row["x"]} for row in ROWS[10:]]


def test_of_renamed_results_the_next_job_can_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": [7], "lineage": [[0]], "p": ["x"]}), tmp_path / "a.parquet")
    found = read(tmp_path, rename={"row": "source_row", "lineage": "source_lineage"})
    assert found.rows == {0: {"source_row": 7, "source_lineage": [0], "p": "x"}}


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ({"a": "b"}, "two columns 'b'; rename one, in the file or with data.rename="),
        ({"a": "row"}, "column 'row', a name .*'data.rename={a: source_row}'"),
        ({"c": "d"}, "data.rename names 'c'; the columns are a, b"),
    ],
)
def test_names_that_cannot_be_given_are_refused(tmp_path: Path, rename: dict[str, str], message: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1, "b": 2}\n')
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, rename=rename)


@pytest.mark.parametrize(
    ("name", "content", "data", "message"),
    [
        ("a.parquet", b"hello", {}, "cannot be read as parquet: .* text: 'hello'"),
        ("a.parquet", b'{"a": 1}', {}, "begins like JSON"),
        ("a.parquet", b"", {}, "it is empty"),
        ("a.arrow", b"hello", {}, "cannot be read as arrow"),
        ("a.jsonl", b"[\n{}]", {}, "a JSON array"),
        ("a.jsonl", b"PAR1\0\0\0", {}, "begins like Parquet"),
        ("a.jsonl", b"{}\n", {}, "it has no keys"),
        ("a.csv", b"a,b\n\xff\xfe,\x80\n".replace(b"a", b"\xff", 1), {}, "cannot be read as CSV"),
        ("a.txt", b"hello", {}, "none of the extensions .parquet"),
        ("a.jsonl", b'{"a": 1}', {"format": "parquet"}, "begins like JSON"),
        ("a.jsonl", b"{}", {"format": "json"}, "it is one of auto, parquet, jsonl, csv, arrow, lines"),
        ("a.jsonl", b'{"a": 1}', {"schema": {"a": "strin"}}, "data.schema.a='strin' is not a type"),
        ("a.csv", b"a,b\n1,2\n", {"schema": {"c": "string"}}, "data.schema names 'c'; .* has a, b"),
        ("a.csv", b"a,b\n1,2\n", {"schema": {"a": "list<string>"}}, "cannot be read from CSV"),
        ("a.csv", b"a,a\n1,2\n", {}, "two columns 'a'"),
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


def test_fingerprint_follows_the_content_alone(tmp_path: Path) -> None:
    def prints(folder: str, text: str) -> dict[str, Any]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text(text)
        return ReadPrompts(DataSettings(path=str(tmp_path / folder)), 10).fingerprint()

    assert prints("x", '{"a": 1}') == prints("y", '{"a": 1}') != prints("z", '{"a": 2}')


def test_content_of_a_large_file_is_sampled(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * (3 * SAMPLE_BYTES))
    before = content_id(path, whole_up_to_bytes=SAMPLE_BYTES)
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"y")
    assert before.startswith(f"sampled:{3 * SAMPLE_BYTES}:")
    assert content_id(path, whole_up_to_bytes=SAMPLE_BYTES) != before
