"""What a format of files is: the endings of their names, what reads them, and what writes results as such files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from operators.formats.reader import Reader
from operators.rows.times import Most
from pipeline.api.errors import SchemaError

NO_COMPRESSION = "none"


def _only_read(table: pa.Table, file: BinaryIO, compression: str, level: int | None) -> None:
    raise NotImplementedError


@dataclass(frozen=True)
class Format:
    """A format of files.

    Args:
        name: in `data.format` and `output.format`; the names of result files end in it.
        reader: reads such a file.
        endings: of the names of files that are read so without `data.format`.
        packed: a file is compressed as a whole, if at all.
        hub: its name in `datasets`; empty: none.
        compressions: values of `output.compression`, the default first; none: results are not written in it.
        write: takes a table, an open file, a compression and its level. Equal tables give equal bytes.
        check: raises SchemaError for a column that such a file cannot hold.
        most: the times that such a file can hold; None: all.
    """

    name: str
    reader: type[Reader]
    endings: tuple[str, ...] = ()
    packed: bool = False
    hub: str = ""
    compressions: tuple[str, ...] = ()
    write: Callable[[pa.Table, BinaryIO, str, int | None], None] = _only_read
    check: Callable[[pa.Field], None] = lambda field: None
    most: Most | None = None


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
