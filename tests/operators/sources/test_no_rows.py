"""An input without rows, or files of it: refused, told, or one empty chunk, as the settings say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from operators.settings import DataSettings
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import InputError
from tests.operators.formats.samples import ROWS, SUFFIXES, TABLE, make, pack
from tests.operators.sources.reading import drain, read

NOTHING: dict[str, Callable[[Path], Any]] = {
    **{f"a.{suffix}": partial(make, table=TABLE.slice(0, 0)) for suffix in SUFFIXES},
    **dict.fromkeys(["bytes.csv", "bytes.jsonl", "bytes.tsv"], Path.touch),
    "blank.csv": lambda path: path.write_bytes(b"\xef\xbb\xbf\n\n"),
    "blank.jsonl": lambda path: path.write_bytes(b" \n\r\n"),
    "packed.csv.gz": partial(pack, content=b""),
    "packed.jsonl.gz": partial(pack, content=b"\n"),
    "columns.parquet": lambda path: pq.write_table(pa.table({}), path),
}
"""Files without rows."""


@pytest.mark.parametrize("name", NOTHING)
def test_an_input_without_rows_is_refused_or_one_empty_chunk(tmp_path: Path, name: str) -> None:
    NOTHING[name](tmp_path / name)
    for path in (tmp_path / name, tmp_path, tmp_path / f"*{name}"):
        with pytest.raises(InputError, match=rf"no rows \(files: .*{name}\); .* write data\.empty=ok"):
            read(path)
        assert read(path, empty="ok").ends == {0: 0}
        assert read(path, seek=1, empty="ok").ends == {}


@pytest.mark.parametrize("name", [name for name in NOTHING if name != "columns.parquet"])
def test_beside_others_a_file_without_rows_has_none(tmp_path: Path, name: str) -> None:
    suffix = "csv" if name.endswith("tsv") else name.split(".")[1]
    NOTHING[name](tmp_path / name)
    for first in ("a", "z"):
        make(tmp_path / f"{first}0.{suffix}")
        op = ReadPrompts(DataSettings(path=str(tmp_path)), 10)
        assert drain(op, 10).values == ROWS * (1 if first == "a" else 2)
        is_told = [f"{tmp_path / name}: empty, 1 of"] if not name.startswith("a.") or "json" in suffix else []
        assert [warning[: len(said)] for warning, said in zip(op._warnings, is_told, strict=True)] == is_told


@pytest.mark.parametrize("name", ["e.parquet", "e.arrow", "e.arrows", "e.jsonl.gz", "e.csv.gz", "e.jsonl.zst"])
def test_a_file_that_needs_a_header_and_is_empty_is_damaged(tmp_path: Path, name: str) -> None:
    kind = name.split(".")[1]
    make(tmp_path / f"a.{kind}")
    (tmp_path / name).write_bytes(b"")
    typed: list[dict[str, Any]] = [{"schema": {"prompt": "string"}}] if kind in ("jsonl", "csv") else []
    for data in ({}, {"empty": "ok"}, *typed):
        for path in (tmp_path, tmp_path / name):
            with pytest.raises(InputError, match=rf"{name} is empty, which no .* is; make or fetch it again"):
                ReadPrompts(DataSettings(path=str(path), **data), 10).plan()


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        ({}, ["prompt"]),
        ({"prompt_column": "q", "id_column": "i", "rename": {"x": "q"}}, ["i", "q"]),
        ({"messages_column": "m", "tools_column": "t", "template_kwargs_column": "k"}, ["k", "m", "t"]),
        ({"prompt_template": "{{ a }} {{ b }}"}, ["a", "b"]),
        ({"schema": {"a": "int64", "b": "string"}, "rename": {"a": "c"}}, ["c", "b"]),
        ({"format": "lines"}, ["text", "line"]),
    ],
)
@pytest.mark.parametrize("at", [".", "*.jsonl", "a.txt/*"])
def test_an_input_without_files_has_the_columns_that_the_settings_name(tmp_path: Path, data, columns, at: str) -> None:
    with pytest.raises(InputError, match=r"found nothing; .* write data\.empty=ok"):
        read(tmp_path / at, **data)
    op = ReadPrompts(DataSettings(path=str(tmp_path / at), empty="ok", **data), 10)
    assert op.plan().names == [*columns, "row"]
    assert drain(op, 10).ends == {0: 0}
    assert op.fraction_read() == 1
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "a.jsonl", empty="ok", **data)
