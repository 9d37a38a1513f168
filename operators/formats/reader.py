"""The base of the readers of file formats: a reader yields one file as blocks of consecutive rows, good and bad."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from operators.formats.encodings import NAMES, is_encoding, near
from operators.formats.input_file import InputFile
from operators.formats.result_csv import has_marks
from operators.formats.separator import NAMED
from pipeline.api.errors import ConfigError, InputError
from pipeline.api.keys import Rule, check, check_values, default_of, in_data, when_given
from pipeline.api.records import Reject

AUTO = "auto"
"""The value of `data.quote` with which `"` is around fields, but nothing in .tsv."""
TEXT = "text"
"""The value of `data.types` with which all columns of a CSV file are text."""


_QUOTE: Rule = (
    "it is auto, one character or null",
    lambda v: v in (None, "auto") or (len(v) == 1 and v not in ",\t\r\n"),
)
_SEPARATOR: Rule = (
    f"it is one character, a word ({', '.join(word for word in NAMED if word.isalpha())}) or null",
    lambda v: v is None or v in NAMED or (len(v) == 1 and v not in '"\r\n'),
)
_HEADER: Rule = (
    "it is true, false or a list of the names of all columns, in their order",
    lambda v: isinstance(v, bool) or (isinstance(v, list) and bool(v) and all(v) and set(map(type, v)) == {str}),
)


def _is_sheet(value: Any) -> bool:
    return value >= 1 if type(value) is int else isinstance(value, str)


@dataclass(kw_only=True)
class ReadKeys:
    """Keys of `data` that say how files are read. Those that a reader has not among its `keys` it refuses.

    Args:
        quote: the character around fields of CSV that have a delimiter or a line break; null: quotes are part of the
            text; auto: `"`, but null for .tsv.
        null_texts: an empty field of a text column of CSV is null unless it has quotes, as `output=csv` writes it; with
            false it is an empty text.
        sheet: of Excel files, by name or number from 1; null: the first.
        defused: take off the marks that `output.defuse` has put before texts; null: if a file's name has .defused.
        separator: the character between fields of CSV; null: a comma, or what the file's first lines say (a header with
            `;`, tabs or `|` and no comma, or a line `sep=;`), and a tab for .tsv.
        header: whether the first line of CSV has the names of the columns; or a list of names, where it has not.
        encoding: of text files (CSV, JSONL, lines), as Python names it: cp1252, latin-1, utf-16 ...; null: UTF-8, or
            what the file's first bytes say (a mark, or a zero in every other byte).
        union: files that differ by a column or by the width of a number are read together: what a file lacks is null.
    """

    quote: str | None = in_data("auto", *_QUOTE, reads=True)
    null_texts: bool = when_given(False, reads=True)
    sheet: Any = when_given(
        None, "it is a name, a number from 1, or null", lambda v: v is None or _is_sheet(v), reads=True
    )
    defused: bool | None = when_given(None, reads=True)
    separator: str | None = when_given(None, *_SEPARATOR, reads=True)
    header: Any = when_given(True, *_HEADER, reads=True)
    encoding: str | None = when_given(None, reads=True)
    union: bool = when_given(False, reads=True)

    def __post_init__(self) -> None:
        check_values(self, "data")
        self.separator = NAMED.get(self.separator or "", self.separator)
        both = self.separator is not None and self.separator == self.quote
        check(not both, "data.separator", self.separator, "data.quote is the same character")
        name = self.encoding
        check(name is None or is_encoding(name), "data.encoding", name, NAMES + ("" if name is None else near(name)))


USUAL = ReadKeys()
"""None of these keys is given."""


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
        how: keys of `data`.
        only: read only the columns that `types` names (`data.schema`).
        as_json: columns that are read as JSON text, unless `types` has them.

    Raises:
        ConfigError: `data.schema`, `data.types` or one of ReadKeys is given, and the format does not take it.
    """

    takes_types: ClassVar[bool] = False
    """True if `data.schema` and `data.types` may set the types of the columns."""
    optional_columns: ClassVar[bool] = False
    """True if a column that a file lacks is null in its rows; else it is an error."""
    keys: ClassVar[Collection[str]] = ("quote", "union")
    """Those of ReadKeys that may be given for such a file; they say nothing of formats that do not read them."""
    texts: ClassVar[bool] = False
    """True if all values are texts in the file, so that a column whose types differ from file to file is text."""

    def __init__(
        self,
        file: InputFile,
        types: Mapping[str, str] | str | None = None,
        how: ReadKeys = USUAL,
        *,
        only: bool = True,
        as_json: Collection[str] = (),
    ) -> None:
        given = [key.name for key in fields(ReadKeys) if getattr(how, key.name) != default_of(key)]
        if wrong := [key for key in given if key not in self.keys]:
            raise ConfigError(f"data.{wrong[0]} is not for {file.format} files, as {file} is; leave it out")
        self.key = "data.schema" if only else "data.types"
        if types is not None and not self.takes_types:
            raise ConfigError(
                f"{self.key} is for files without types, as JSONL and CSV are; {file} has a schema of its own"
            )
        if types == TEXT and not self.texts:
            raise ConfigError(
                f"data.types={TEXT} is for files of texts, as CSV; name the columns of {file}: data.types={{zip: json}}"
            )
        self.file = file
        self.all_text = types == TEXT
        self.types: Mapping[str, str] = types if isinstance(types, Mapping) else {}
        self.only = isinstance(types, Mapping) and only
        self.how = how
        self.defused = has_marks(file.name) if how.defused is None else how.defused
        self.as_json = [name for name in as_json if name not in self.types]
        self.as_json += [name for name, kind in self.types.items() if kind.strip() == "json"]
        self.told: list[str] = []
        """What the user must know of how the file is read; complete after `schema`."""
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
