"""ReadPrompts: the source of a job. Streams files of rows, numbers the rows and cuts them into chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from operators.settings import DataSettings
from operators.sources.arrow import ArrowReader
from operators.sources.content import SAMPLED, Stamp, content_id
from operators.sources.csv import CsvReader
from operators.sources.files import find_files, unreadable
from operators.sources.jsonl import JsonlReader
from operators.sources.parquet import ParquetReader
from operators.sources.reader import Block, Reader, ReaderFactory
from operators.sources.schemas import common_schema
from pipeline.errors import ConfigError, InputError
from pipeline.protocols import BaseOperator, Inbox, Runtime
from pipeline.records import ROW, Batch, ChunkEnd, Item, Reject, Rejects

BATCH_ROWS = 1024
SAMPLE_ROWS = 10_000
"""Rows of the first file that types are read off, where the format has none."""
FURTHER_ROWS = 1_000
"""The same for every further file: a directory may have thousands."""
UNREADABLE = (pa.ArrowException, OSError, ValueError, OverflowError)
"""What the libraries raise for bytes that are not what they should be."""
READERS: Mapping[str, ReaderFactory] = {
    "parquet": ParquetReader,
    "jsonl": JsonlReader,
    "csv": CsvReader,
    "arrow": ArrowReader,
}


class ReadPrompts(BaseOperator):
    """Reads Parquet, JSONL, CSV or Arrow IPC: one file, a directory or a glob, in the order of the file names.

    Output: the columns of the input and `row` int64, the position in the source over all files. A row that cannot be
    read is a reject with file and line, and uses up its number. An input without rows is one empty chunk.

    Args:
        data: what to read (`data`).
        chunk_rows: source rows of a chunk, bad ones included.

    Example:
        read:
          op:
            _target_: operators.sources.read_prompts.ReadPrompts
            data: {path: prompts.jsonl, prompt_column: question}
            chunk_rows: ${chunk_rows}
    """

    def __init__(self, data: DataSettings, chunk_rows: int) -> None:
        if chunk_rows < 1:
            raise ConfigError(f"chunk_rows={chunk_rows} cannot work: it is 1 or more")
        self._data = data
        self._chunk_rows = chunk_rows
        self._first_chunk = 0
        self._rows_read = 0
        self._bytes_before = 0
        self._current: Reader | None = None

    def plan(self) -> pa.Schema:
        """The columns of the input and `row`.

        Raises:
            InputError: no such file, or not what its name says.
            SchemaError: the files differ in their columns.
            ConfigError: a column is called `row` or `lineage`.
        """
        _ = self._stamps  # before the first look inside: what changes from now on is noticed
        return self._columns.append(ROW)

    def open(self, runtime: Runtime) -> None:
        """Says what will be read.

        Raises:
            InputError: a file is not there any more, or not what it was when the run was planned.
        """
        for reader in self._readers:
            self._refuse_changed(reader.path)
        runtime.log.info("reading %d file(s), %d bytes", len(self._readers), self._total_bytes)

    def seek(self, chunk: int) -> None:
        """Begin at `chunk`, as if the ones before it had been sent."""
        self._first_chunk = chunk
        self._rows_read = chunk * self._chunk_rows

    def run(self, inbox: Inbox) -> Iterator[Item]:
        """The rows in batches of at most BATCH_ROWS, rejects, and the end of each chunk.

        Raises:
            InputError: a file has changed since the run was planned. No chunk with rows of it ends after that, so none
                is committed.
        """
        start = self._first_chunk * self._chunk_rows
        position = self._bytes_before = 0
        for reader, block in self._blocks(start):
            stop = self._limited(position + block.rows)
            for first, last in self._spans(max(position, start), stop):
                yield from self._items(reader.path, block, position, first, last)
                self._rows_read = last
                if last % self._chunk_rows == 0:
                    self._refuse_changed(reader.path)
                    yield ChunkEnd(last // self._chunk_rows - 1, self._chunk_rows)
            position = stop
            if position == self._data.limit:
                break
        chunk, rest = divmod(position, self._chunk_rows)
        if (rest and position > start) or position == start == 0:
            if self._current is not None:  # left before its end, for `limit`
                self._refuse_changed(self._current.path)
            yield ChunkEnd(chunk, rest)

    def fraction_read(self) -> float | None:
        """How much has been read: by rows where their number is in the files, else by bytes or `limit`."""
        if self._known_rows is not None:
            return self._rows_read / self._known_rows if self._known_rows else 1.0
        done = self._bytes_before + (self._current.bytes_read if self._current else 0)
        by_bytes = done / self._total_bytes if self._total_bytes else 1.0
        return min(1.0, max(by_bytes, self._rows_read / self._data.limit if self._data.limit else 0.0))

    def total_rows(self) -> int | None:
        """Source rows in all, bad ones included; None where only reading everything could tell (CSV, Arrow streams)."""
        return self._known_rows

    def fingerprint(self) -> dict[str, Any]:
        """Names the content of the input: for each file, in order, name without directory, size and content id.

        Where the content is only sampled the modification time counts too: to the sample an edit may be invisible.

        Raises:
            InputError: a file is not there any more.
        """
        found: dict[str, Any] = {}
        for i, (path, stamp) in enumerate(self._stamps.items()):
            try:
                content = content_id(path)
            except OSError as error:
                raise unreadable(path, error) from error
            changed = f", changed {_utc(stamp.changed_ns)}" if content.startswith(SAMPLED) else ""
            found[f"files.{i}"] = f"{path.name}, {stamp.size_bytes} bytes, {content}{changed}"
        return found

    @cached_property
    def _readers(self) -> list[Reader]:
        paths, kind = find_files(self._data)
        return [READERS[kind](path, self._data.schema) for path in paths]

    @cached_property
    def _stamps(self) -> dict[Path, Stamp]:
        """What each file was when the run was planned."""
        found = {}
        for reader in self._readers:
            try:
                found[reader.path] = Stamp.of(reader.path)
            except OSError as error:
                raise unreadable(reader.path, error) from error
        return found

    def _refuse_changed(self, path: Path) -> None:
        try:
            now = Stamp.of(path)
        except OSError as error:
            raise unreadable(path, error) from error
        before = self._stamps[path]
        if now != before:
            raise InputError(
                f"{path} was written to while the run was reading it ({before.size_bytes:,} bytes then,"
                f" {now.size_bytes:,} now); put it back as it was and run the same command again, or begin anew with"
                " overwrite=true"
            )

    @cached_property
    def _columns(self) -> pa.Schema:
        return common_schema(
            self._readers, [_schema_of(r, FURTHER_ROWS if i else SAMPLE_ROWS) for i, r in enumerate(self._readers)]
        )

    @cached_property
    def _total_bytes(self) -> int:
        return sum(stamp.size_bytes for stamp in self._stamps.values())

    @cached_property
    def _known_rows(self) -> int | None:
        total = 0
        for reader in self._readers:
            rows = _total_rows(reader)
            if rows is None:
                return None
            total += rows
        return self._limited(total)

    def _limited(self, rows: int) -> int:
        return rows if self._data.limit is None else min(rows, self._data.limit)

    def _blocks(self, start: int) -> Iterator[tuple[Reader, Block]]:
        """All blocks of all files; those that lie before row `start` may lack data."""
        rows = 0
        for reader in self._readers:
            self._current = reader
            try:
                for block in reader.blocks(self._columns, max(0, start - rows)):
                    rows += block.rows
                    yield reader, block
            except UNREADABLE as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise unreadable(reader.path, error) from error
                raise InputError(
                    f"{reader.path} cannot be read on from row {rows} of the input: {error}; write the file again"
                ) from error
            self._refuse_changed(reader.path)
            self._current = None
            self._bytes_before += self._stamps[reader.path].size_bytes

    def _spans(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """[start, stop) cut at the ends of chunks and after BATCH_ROWS."""
        while start < stop:
            chunk_end = (start // self._chunk_rows + 1) * self._chunk_rows
            end = min(stop, chunk_end, start + BATCH_ROWS)
            yield start, end
            start = end

    def _items(self, path: Path, block: Block, position: int, first: int, last: int) -> Iterator[Item]:
        """Rows [first, last) of the source, from the block that begins at `position`."""
        chunk = first // self._chunk_rows
        data, offsets, bad = block.part(first - position, last - position)
        if bad:
            rejects = (Reject(position + b.offset, b.reason, b.record, file=str(path), line=b.line) for b in bad)
            yield Rejects(chunk, tuple(rejects))
        if data is not None and len(offsets):
            rows = pa.array(offsets + position)
            yield Batch(chunk, pa.record_batch([*data.columns, rows], schema=self._columns.append(ROW)))


def _total_rows(reader: Reader) -> int | None:
    """None for a file that is damaged too: where, its rows will show."""
    try:
        return reader.total_rows()
    except (*UNREADABLE, InputError):
        return None


def _schema_of(reader: Reader, sample_rows: int) -> pa.Schema:
    try:
        return reader.schema(sample_rows)
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(reader.path, error) from error
        raise InputError(f"{reader.path} cannot be read: {error}") from error


def _utc(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="microseconds")
