"""Format: a format of files, with the endings of their names, its reader, and the writer of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
import pyarrow as pa

from operators.formats.reader import Reader
from operators.rows.polars_frames import known_to_polars
from operators.rows.times import Times
from pipeline.api.errors import SchemaError
from pipeline.system.atomic_files import holds_bytes


def _only_read(table: pa.Table, file: BinaryIO, compression: str, level: int | None, **keys: Any) -> None:
    raise NotImplementedError


@dataclass(frozen=True)
class FinalFile:
    """The one file that results of a format are in the end.

    Args:
        parts: the ending of the files in data/, which it is made of.
        write: takes the path to write, the files of data/ and those of rejects/, `newest` (leave out rows that others
            supersede), and the keys of the format.
        require: raises ConfigError if a package is missing.
        most_columns: that it can hold.
    """

    parts: str
    write: Callable[..., None]
    require: Callable[[], None]
    most_columns: int


@dataclass(frozen=True)
class Format:
    """A format of files.

    Args:
        name: in `data.format` and `output.format`; the names of result files end in it.
        reader: reads such a file.
        endings: of the names of files that are read so without `data.format`.
        packed: a file is compressed as a whole, if at all.
        alone: where files of other formats lie beside such files in a directory, these are rarely rows, and not read.
        hub: its name in `datasets`; empty: none.
        compressions: values of `output.compression`, the default first; none: results are not written in it.
        write: takes a table, an open file, a compression and its level, and `keys`. Equal tables give equal bytes.
        own: the dataclass of the keys of `output` that not every format has; `write` takes them by name.
        rejects: files in rejects/ are of this format too; else they are Parquet, as they were of runs before.
        check: raises SchemaError for a column that such a file cannot hold.
        scan: has polars read files of results, given the types of their columns; None: there are none in data/.
        on_card: readers of such files can use the types of the dataset card.
        final: the one file that results are in the end; None: they are files in data/.
        times: those that such a file can hold; None: all.
        bytes: such files hold bytes, so images are whole in them; else an image {bytes, path} is its path.
    """

    name: str
    reader: type[Reader]
    endings: tuple[str, ...] = ()
    packed: bool = False
    alone: bool = False
    hub: str = ""
    compressions: tuple[str, ...] = ()
    write: Callable[..., None] = _only_read
    own: type[Any] | None = None
    rejects: bool = False
    check: Callable[[pa.Field], None] = lambda field: None
    scan: Callable[[list[Path], Mapping[str, str]], pl.LazyFrame] | None = None
    on_card: bool = True
    final: FinalFile | None = None
    times: Times | None = None
    bytes: bool = False

    @property
    def keys(self) -> list[str]:
        """The names of the keys of `own`."""
        return [] if self.own is None else [key.name for key in fields(self.own)]

    @property
    def parts(self) -> str:
        """The format of the files in data/."""
        return self.name if self.final is None else self.final.parts


def unknown_type(field: pa.Field, files: str) -> SchemaError:
    """Return the error for a column whose type `files` have not."""
    return SchemaError(
        f"column '{field.name}' has type {field.type}, which cannot be written into {files}; write output=arrow, or"
        " take the column out"
    )


def too_deep(field: pa.Field, files: str) -> SchemaError:
    """Return the error for a column that is nested deeper than `files` can be."""
    return SchemaError(
        f"column '{field.name}' is nested deeper than {files} files can be; read it as a text with"
        f" data.types={{{field.name}: json}}, write output=jsonl, or take the column out"
    )


def check_text(field: pa.Field, files: str) -> None:
    """Raise SchemaError for a column that `files`, which polars reads and are texts, cannot hold: one of bytes, also
    inside of lists and structs, or of a type that polars does not know."""
    if not known_to_polars(field.type):
        raise unknown_type(field, files)
    if holds_bytes(field.type):
        raise SchemaError(
            f"column '{field.name}' has type {field.type}, and {files} cannot hold bytes; write output=parquet or"
            " output=arrow, or take the column out"
        )
