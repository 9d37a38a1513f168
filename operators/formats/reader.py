"""The base of the readers of file formats: a reader yields one file as blocks of consecutive rows, good and bad."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from operators.formats.input_file import InputFile
from pipeline.api.errors import ConfigError, InputError
from pipeline.api.records import Reject
from pipeline.system.result_csv import has_marks

AUTO = "auto"
"""The value of `data.quote` with which `"` is around fields, but nothing in .tsv."""
TEXT = "text"
"""The value of `data.types` with which all columns of a CSV file are text."""


class NoRowFitsError(InputError):
    """A file none of whose lines is a row of its format. Among other files it costs its lines."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Consecutive rows of one file.

    Args:
        first: the number of the first one in the source, over all files.
        rows: how many they are, with the bad ones.
        data: the good ones, in order; None for a block that was skipped.
        bad: the bad ones, in order.
        unread: the number of a row and a key of it that no column holds, in order.
    """

    first: int
    rows: int
    data: pa.RecordBatch | None = None
    bad: tuple[Reject, ...] = ()
    unread: tuple[tuple[int, str], ...] = ()

    def part(self, start: int, stop: int) -> tuple[pa.RecordBatch | None, np.ndarray, tuple[Reject, ...]]:
        """Return rows [start, stop) of the source: the good ones, their numbers (int64) and the bad ones."""
        places = [reject.row for reject in self.bad]
        first, last = bisect_left(places, start), bisect_left(places, stop)
        good = np.delete(np.arange(start, stop, dtype=np.int64), np.array(places[first:last], np.int64) - start)
        data = None if self.data is None else self.data.slice(start - self.first - first, len(good))
        return data, good, self.bad[first:last]


class Reader(ABC):
    """Reads one file. `ReadPrompts` makes one for each file, asks for its schema, and later for its blocks.

    Args:
        types: the types of columns, the others are inferred; or TEXT: all are text.
        only: read only the columns that `types` names (`data.schema`).
        as_json: columns that are read as JSON text, unless `types` has them.
        quote: what is around fields of CSV (`data.quote`); None: nothing is.
        null_texts: a text field of CSV that is empty, without quotes, is null (`data.null_texts`).
        sheet: of an Excel file, by name or number from 1 (`data.sheet`).
        defused: texts have the marks of `output.defuse`, which are taken off; None: as the file's name says.
        encoding: of a text file (`data.encoding`); None: UTF-8, or what its first bytes say.
        separator: what is between fields of CSV (`data.separator`); None: what its first lines say.
        header: the first line of CSV has the names of the columns (`data.header`); False: there is no such line; or the
            names, where there is none.
        union: other files may have columns that `types` names, and this one lacks.

    Raises:
        ConfigError: `data.schema` or `data.types` is given, and the format does not take it.
    """

    takes_types: ClassVar[bool] = False
    """True if `data.schema` and `data.types` may set the types of the columns."""
    optional_columns: ClassVar[bool] = False
    """True if a column that a file lacks is null in its rows; else it is an error."""
    keys: ClassVar[Collection[str]] = ()
    """Those of `data` that not every format has, and this one has."""
    texts: ClassVar[bool] = False
    """True if all values are texts in the file, so that a column whose types differ from file to file is text."""

    def __init__(
        self,
        file: InputFile,
        types: Mapping[str, str] | str | None = None,
        *,
        only: bool = True,
        as_json: Collection[str] = (),
        quote: str | None = AUTO,
        null_texts: bool = False,
        defused: bool | None = None,
        sheet: str | int | None = None,
        encoding: str | None = None,
        separator: str | None = None,
        header: bool | Sequence[str] = True,
        union: bool = False,
    ) -> None:
        given = {"encoding": encoding is not None, "separator": separator is not None, "header": header is not True}
        given |= {"null_texts": null_texts, "defused": defused is not None, "sheet": sheet is not None}
        if wrong := [key for key, is_given in given.items() if is_given and key not in self.keys]:
            raise ConfigError(f"data.{wrong[0]} is not for {file.format} files, as {file} is; leave it out")
        self.key = "data.schema" if only else "data.types"
        if types is not None and not self.takes_types:
            raise ConfigError(
                f"{self.key} is for files without types, as JSONL and CSV are; {file} has a schema of its own"
            )
        if types == TEXT and not self.texts:
            raise ConfigError(f"data.types={TEXT} is for CSV; name the columns of {file}: data.types={{zip: json}}")
        self.file = file
        self.all_text = types == TEXT
        self.types: Mapping[str, str] = types if isinstance(types, Mapping) else {}
        self.only = isinstance(types, Mapping) and only
        self.quote = quote
        self.null_texts = null_texts
        self.defused = has_marks(file.name) if defused is None else defused
        self.as_json = [name for name in as_json if name not in self.types]
        self.as_json += [name for name, kind in self.types.items() if kind.strip() == "json"]
        self.sheet = sheet
        self.told: list[str] = []
        """What the user must know of how the file is read; complete after `schema`."""
        self.file_encoding = encoding
        self.separator = separator
        self.header = header
        self.union = union
        self.guesses: dict[str, str] = {}
        """How the file is read, by the key that sets it otherwise, where it was guessed."""
        self.bytes_read = 0
        """The position in the file up to which blocks were read; may be ahead by the reader's buffer."""

    @abstractmethod
    def schema(self, sample_rows: int) -> pa.Schema:
        """Return the names and types of the columns; `null` for a column without values in the sample.

        `sample_rows`: rows from which types are inferred, where the file does not give them.

        Raises:
            InputError: the content is not of the format.
        """

    def total_rows(self) -> int | None:
        """Return the number of rows in the file, if that is cheap to know."""
        return None

    def has_rows(self) -> bool:
        """Return True if the file has a row, good or bad."""
        return any(block.rows for block in self.blocks(pa.schema([]), 0, sys.maxsize))

    @abstractmethod
    def blocks(self, schema: pa.Schema, first: int, start: int) -> Iterator[RowBlock]:
        """Yield all rows, in order, under `schema`, numbered from `first` on. Blocks before row `start` may have no
        data."""
