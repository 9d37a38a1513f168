"""The base of readers of text: yields raw rows from a file, and converts them into columns block by block."""

from __future__ import annotations

import contextlib
import io
import itertools
import reprlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, ClassVar, TypeAlias

import pyarrow as pa

from operators.formats.encodings import UTF_8, Utf8Stream, encoding_of, not_of
from operators.formats.input_file import BOM, BUFFER_BYTES, HEAD_BYTES
from operators.formats.reader import Reader, RowBlock
from operators.rows.arrow_types import plain_schema
from pipeline.api.records import Reject

KEPT_BYTES = 4096
"""Bytes of an over-long row to show in its reject."""
UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""Exceptions that `TextReader.column` raises for a value of another type."""
Row = tuple[int, Any, Any]
"""A raw row: the number of its first line; its text (bytes or str); and None, the input from which its format makes
values, or a str: the reason why it has none. A plain tuple takes a tenth of the time to make."""

Unread: TypeAlias = Callable[[Mapping[str, Any]], Iterable[str]]


class TextReader(Reader):
    """Reads a text file, which may be compressed and in any encoding."""

    keys: ClassVar[Collection[str]] = (*Reader.keys, "encoding")

    block_bytes = 1 << 19
    """Text of a block."""
    max_row_bytes = 64 << 20
    """A longer row is a bad row."""
    encoding = UTF_8
    """That of the file, once it was opened."""

    @contextlib.contextmanager
    def text(self) -> Iterator[tuple[io.BufferedReader, io.BufferedReader]]:
        """Open the text in UTF-8, and the raw file, whose `tell` gives the progress."""
        with self.file.unpacked() as (content, raw):
            self.encoding, guessed = encoding_of(content.peek(HEAD_BYTES)[:HEAD_BYTES], self.how.encoding)
            if guessed:
                self.guesses["data.encoding"] = f"read as {self.encoding}, without a mark (BOM) that says so"
            if self.encoding != UTF_8:
                content = io.BufferedReader(Utf8Stream(content, self.encoding), BUFFER_BYTES)
            yield content, raw

    def is_blank(self) -> bool:
        """Return True if the text begins with white space and nothing else."""
        with self.text() as (content, _):
            return not content.read(BUFFER_BYTES).removeprefix(BOM).strip()

    @abstractmethod
    def rows(self, file: IO[Any]) -> Iterator[Row]:
        """Yield the raw rows of `file`."""

    @abstractmethod
    def values(self, row: Row) -> Mapping[str, Any] | str:
        """Return the values of a row by column, or the reason why it has none."""

    def record(self, row: Row, values: Mapping[str, Any]) -> str:
        """Return the text of a row whose `values` do not fit their columns."""
        return as_text(row[1])

    @abstractmethod
    def column(self, values: Sequence[Any], field: pa.Field) -> pa.Array:
        """Make a column whose values are those given; raises one of UNFIT for a value of another type."""

    def unread(self, schema: pa.Schema) -> Unread | None:
        """Return what gives the keys of a row that no column holds and that nobody has asked to leave out; None: there
        are none."""
        return None

    def blocks(self, schema: pa.Schema, first: int, start: int) -> Iterator[RowBlock]:
        unread = self.unread(schema)
        for rows in self.batches():
            skipped = first + len(rows) <= start
            yield RowBlock(first, len(rows)) if skipped else self._block(first, rows, schema, unread)
            first += len(rows)

    def batches(self) -> Iterator[list[Row]]:
        """Yield the rows, about `block_bytes` at a time."""
        self.bytes_read = 0
        with self.text() as (content, raw):
            batch: list[Row] = []
            size = 0
            for row in self.rows(content):
                batch.append(row)
                size += len(row[1])
                if size >= self.block_bytes:
                    self.bytes_read = raw.tell()
                    yield batch
                    batch, size = [], 0
            self.bytes_read = raw.tell()
            if batch:
                yield batch

    def sample(self, count: int) -> list[Row]:
        """Return the first `count` rows."""
        return list(itertools.islice(itertools.chain.from_iterable(self.batches()), count))

    def _block(self, first: int, rows: Sequence[Row], schema: pa.Schema, unread: Unread | None) -> RowBlock:
        """Convert `rows` column by column. If that fails, convert row by row, and make bad rows of those that do not
        fit."""
        found = [self.values(row) for row in rows]
        bad = {i: (why, as_text(rows[i][1])) for i, why in enumerate(found) if isinstance(why, str)}
        good = {i: values for i, values in enumerate(found) if not isinstance(values, str)}
        columns = [self._column(good.values(), field) for field in schema]
        if wrong := [field for field, column in zip(schema, columns, strict=True) if column is None]:
            for i, values in tuple(good.items()):
                field = next((field for field in wrong if self._column([values], field) is None), None)
                if field is not None:
                    bad[i] = _why_not(values.get(field.name), field, self.encoding), self.record(rows[i], good.pop(i))
            columns = [self._column(good.values(), field) for field in schema]
        rejects = tuple(
            Reject(first + i, why, record, file=str(self.file), line=rows[i][0])
            for i, (why, record) in sorted(bad.items())
        )
        keys = () if unread is None else tuple((first + i, key) for i, values in good.items() for key in unread(values))
        return RowBlock(first, len(rows), pa.record_batch(columns, schema=plain_schema(schema)), rejects, keys)

    def _column(self, rows: Iterable[Mapping[str, Any]], field: pa.Field) -> pa.Array | None:
        try:
            return self.column([row.get(field.name) for row in rows], field)
        except UNFIT:
            return None


def as_text(text: str | bytes) -> str:
    """Return `text` with bytes that are not UTF-8 as Python escapes."""
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    return data.decode(errors="backslashreplace")


def _why_not(value: object, field: pa.Field, encoding: str) -> str:
    shown = reprlib.repr(as_text(value) if isinstance(value, str) else value)
    if isinstance(value, str) and field.type == pa.string():
        return f"column '{field.name}' {not_of(encoding, shown)}"
    given = f"data.types={{{field.name}: ...}}"
    return f"column '{field.name}' is {field.type}, the value is {shown}; {given} sets another type"
