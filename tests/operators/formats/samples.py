"""The same rows in a file of each format that a file name can tell, plain and packed."""

from __future__ import annotations

import bz2
import json
import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq

from operators.formats.format import Format
from operators.formats.registry import ENDINGS, FORMATS, WRITTEN
from operators.formats.unpack import CODECS
from operators.formats.xlsx_writer import write_book
from operators.settings import OutputSettings
from pipeline.api.records import record_json

ROWS = [{"prompt": f"p{i}", "n": i, "x": i + 0.5} for i in range(25)]
TABLE = pa.Table.from_pylist(ROWS)


def usual(form: Format) -> dict[str, Any]:
    """Return the values of the keys of `output` that only this format has."""
    return {key: getattr(OutputSettings(form.name), key) for key in form.keys}


def as_results(form: Format, path: Path, table: pa.Table) -> None:
    with path.open("wb") as file:
        form.write(table, file, "none", None, **usual(form))


def write_ipc(path: Path, table: pa.Table, *, stream: bool) -> None:
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


NESTED = {"parquet", "jsonl", "arrow"}
"""Formats that have lists and objects; others have the text of their JSON."""


def read_back(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return rows as results of a format give them back: of CSV and the like lists are lists again, since the run knows
    its columns."""
    texts = () if name in NESTED else dict if WRITTEN[name].final is None else (dict, list)
    return [{key: record_json(v) if isinstance(v, texts) else v for key, v in row.items()} for row in rows]


MAKERS: dict[str, Callable[[Path, pa.Table], Any]] = {
    **{name: partial(as_results, form) for name, form in WRITTEN.items()},
    "parquet": lambda path, table: pq.write_table(table, path, row_group_size=7),
    "xlsx": lambda path, table: write_book(path, {"a": (table.schema, len(table), table.to_batches())}, defuse=False),
    "json": lambda path, table: path.write_text(json.dumps(table.to_pylist(), indent=2)),
    "tsv": lambda path, table: pl.DataFrame(table).write_csv(path, separator="\t"),
    "arrow": partial(write_ipc, stream=False),
    "arrows": partial(write_ipc, stream=True),
}
"""What makes a file, by the ending of its name: as the format's writer does, or in several pieces."""
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda content: pa.Codec("gzip").compress(content, asbytes=True),
    "zstd": lambda content: pa.Codec("zstd").compress(content, asbytes=True),
    "bzip2": bz2.compress,
    "xz": partial(lzma.compress, preset=0),
}
SUFFIXES = [
    *(name + ending for name in MAKERS for ending in ("", ".gz") if not ending or FORMATS[ENDINGS[f".{name}"]].packed),
    *(f"jsonl{ending}" for ending in CODECS if ending != ".gz"),
]


def make(path: Path, table: pa.Table = TABLE) -> Path:
    """Write `table` into a file of the format and the compression that the name says."""
    codec = CODECS.get(path.suffix)
    plain = path.with_suffix("") if codec else path
    MAKERS[plain.suffix[1:]](plain, table)
    if codec:
        pack(path, plain.read_bytes())
        plain.unlink()
    return path


def pack(path: Path, content: bytes) -> bytes:
    """Write `content` into the archive `path`, and return its bytes."""
    archive = PACKERS[CODECS[path.suffix]](content)
    path.write_bytes(archive)
    return archive
