"""Read result files, in every format that sinks write. The formats belong to the operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import polars as pl
import pyarrow as pa

from pipeline.api.records import python_rows

FORMATS = "operators.formats.registry"
"""The module that has them, by name in `WRITTEN`."""
Schema = Mapping[str, str]
"""Arrow's names of the types of columns, as manifest.json has them."""
NO_TYPES: Schema = {}


class ResultFormat(Protocol):
    """What is asked of a format of results, beside what writes it."""

    @property
    def scan(self) -> Callable[[list[Path], Schema], pl.LazyFrame] | None:
        """Scans files with columns of these types; None: there are none in data/."""

    @property
    def parts(self) -> str:
        """The format of the files in data/: its own, or that of which one file is made in the end."""

    @property
    def on_card(self) -> bool:
        """Readers of such files can use the types of the dataset card."""


@cache
def formats() -> Mapping[str, ResultFormat]:
    """Return the formats of results by name."""
    written: Mapping[str, ResultFormat] = import_module(FORMATS).WRITTEN
    return written


def format_of(name: str) -> ResultFormat | None:
    """Return the format of a result file by its name."""
    return formats().get(name.removesuffix(".gz").removesuffix(".zst").rpartition(".")[2])


def scan(files: list[Path], schema: Schema = NO_TYPES) -> pl.LazyFrame | None:
    """Scan `files`, all of one format; None if there are none or the format is unknown. A column of a type that polars
    does not know is one of texts. `schema`: of the files; only formats without types need it."""
    found = [format_of(path.name) for path in files]
    form = found[0] if found and all(each is found[0] for each in found) else None
    return None if form is None or form.scan is None else form.scan(files, schema)


def newest(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return the rows of a run with `append_changed=again`, without those that others supersede."""
    superseded = rows.select(pl.col("supersedes").alias("row")).drop_nulls()
    return rows.join(superseded, on="row", how="anti", maintain_order="left")


def scan_folder(folder: Path, schema: Schema = NO_TYPES) -> pl.LazyFrame:
    """Return the rows of all files of one sink, in the order of the files, without empty files (JSON lines of no rows).
    `schema`: as for `scan`. Raises FileNotFoundError if there is no file in `folder`."""
    files = sorted(folder.glob("part-*"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no part-* file")
    rows = scan([file for file in files if not _is_empty(file)], schema)
    return pl.LazyFrame() if rows is None else rows


def _is_empty(file: Path) -> bool:
    with pa.input_stream(str(file), compression="detect") as stream:
        return not stream.read(1)


def shown_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of `frame` as `python_rows`: polars panics at times that Python cannot hold."""
    wide = pl.col(pl.Int128, pl.UInt128).cast(pl.String)  # whole numbers of JSON lines, which Arrow has not
    return [row for batch in frame.with_columns(wide).to_arrow().to_batches() for row in python_rows(batch)]


def names_of(schema: pa.Schema) -> Schema:
    """Return Arrow's names of the types of columns."""
    return {field.name: str(field.type) for field in schema}
