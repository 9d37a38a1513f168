"""JSON lines of results."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import polars as pl
import pyarrow as pa

from operators.formats.result_csv import is_of_json, type_of
from operators.formats.unpack import packed

_OF_JSON = (pl.String, pl.Boolean, pl.Int32, pl.Int64, pl.UInt32, pl.UInt64, pl.Float32, pl.Float64)
"""Types that polars can be told to read in JSON lines; others make it abort."""


def write(table: pa.Table, file: BinaryIO, compression: str, level: int | None) -> None:
    """Write `table` as JSON lines; see Format."""
    text = io.BytesIO()
    pl.DataFrame(table).write_ndjson(text)
    packed(text.getbuffer(), file, compression, level)


def _inner(kind: pl.DataType) -> pl.DataType:
    return _inner(kind.inner) if isinstance(kind, pl.List) else kind  # type: ignore[arg-type]


def scan(files: list[Path], schema: Mapping[str, str]) -> pl.LazyFrame:
    """Scan JSON lines. What is known of types is said, since polars infers them from the first file alone: of a column
    that is null there, and of a type that cannot be said, those of the first file that tells more."""
    types = {name: type_of(kind) for name, kind in schema.items() if is_of_json(type_of(kind), kind)}
    frame = pl.DataFrame(pa.schema(types.items()).empty_table())
    known = {name: kind for name, kind in frame.schema.items() if _inner(kind) in _OF_JSON}
    known |= {name: pl.Int64() for name, kind in frame.schema.items() if kind.is_integer() and kind not in _OF_JSON}
    unknown = _unknown(files[0]) - known.keys()
    for file in files[1:]:
        if unknown:
            found = pl.scan_ndjson(file, infer_schema_length=None).collect_schema()
            known |= {name: found[name] for name in unknown & found.keys() if "Null" not in str(found[name])}
            unknown -= known.keys()
    return pl.scan_ndjson(files, infer_schema_length=None, schema_overrides=known)


def _unknown(file: Path) -> set[str]:
    """Return the columns of a file of JSON lines that are null, or have nothing but null in their lists."""
    found = pl.scan_ndjson(file, infer_schema_length=None).collect_schema()
    return {name for name, kind in found.items() if "Null" in str(kind)}
