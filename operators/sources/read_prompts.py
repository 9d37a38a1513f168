"""ReadPrompts: the source of a job. Streams rows from files, numbers them and cuts them into chunks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from operators.formats.images import InputImages
from operators.formats.input_file import InputFile, Stamp
from operators.formats.reader import Reader, RowBlock
from operators.formats.registry import FORMATS
from operators.formats.result_csv import has_marks
from operators.rows.arrow_types import plain_schema
from operators.settings import DataSettings
from operators.settings.checks import check
from operators.sources.files import OR_EMPTY, find_files, some
from operators.sources.folders import FolderColumns
from operators.sources.input_columns import (
    RESERVED,
    UNREADABLE,
    InputColumns,
    asked,
    assumed_columns,
    columns_of,
    explained,
)
from operators.sources.message_keys import MessageKeys
from operators.sources.union import widened
from pipeline.api import ROW, Batch, ChunkEnd, Inbox, InputError, Item, Rejects, Runtime, Source

BATCH_ROWS = 1024
MOST_KEYS, OTHER_KEYS = 20, "(others)"
"""Keys without a column that are told by name, and the name of the others."""


class ReadPrompts(Source):
    """Reads files (Parquet, JSONL, CSV ...: `data.format`) from disks, URLs or a dataset of the Hub (`find_files`).

    Output: the columns of the input, renamed by `data.rename`, and `row` int64, the position in the source over all
    files. A row that cannot be read is a reject with file and line, and uses up its number. An input without rows is
    an error, or with `data.empty=ok` one empty chunk.

    Args:
        data: what to read (`data`).
        chunk_rows: source rows of a chunk, bad ones included.
        json_columns: columns of JSONL that are read as JSON text, besides those that `data` names for conversations,
            tools and template arguments: what such a column holds in one row must not change that of another.

    Example:
        read:
          op:
            _target_: operators.sources.read_prompts.ReadPrompts
            data: {path: prompts.jsonl, prompt_column: question}
            chunk_rows: ${chunk_rows}
    """

    reserved: ClassVar[Collection[str]] = RESERVED
    """Names that no column of the files may have."""

    def __init__(self, data: DataSettings, chunk_rows: int, json_columns: Sequence[str] = ()) -> None:
        check(chunk_rows >= 1, "chunk_rows", chunk_rows, "it is 1 or more")
        self._data = data
        self._chunk_rows = chunk_rows
        self._json_columns = json_columns
        self._unread: set[str] = set()
        self._warnings: list[str] = []
        self._warn = self._warnings.append
        self._first_chunk = 0
        self._rows_read = 0
        self._file_start = 0
        self._bytes_before = 0
        self._bytes_sent = 0.0

    def plan(self) -> pa.Schema:
        """Return the columns of the input and `row`. Raises what `find_files` and `common_schema` raise, and InputError
        for content that is not of its format, or no rows (`data.empty`)."""
        _ = self._stamps  # taken before reading, so that later changes are noticed
        schema = self._schema
        self._refuse_no_rows()
        return schema

    def open(self, runtime: Runtime) -> None:
        """Log the size of the input, and warnings, which the results keep. Raises InputError if a file is not what it
        was when the run was planned."""
        for reader in self._readers:
            self._refuse_changed(reader.file)
        files = sum(len(r.file.files) if isinstance(r.file, InputImages) else 1 for r in self._readers)
        runtime.log.info("reading %s file%s, %s bytes", f"{files:,}", "s" * (files != 1), f"{self._total_bytes:,}")
        for warning in self._warnings:
            runtime.log.warning("%s", warning)
            if self._first_chunk == 0:
                runtime.meter.tell(0, warning, rows=0)

    def seek(self, chunk: int) -> None:
        """Begin at `chunk`, as if the chunks before it had been emitted."""
        self._first_chunk = chunk
        self._rows_read = chunk * self._chunk_rows

    def run(self, inbox: Inbox) -> Iterator[Item]:
        """Yield the rows in batches of at most BATCH_ROWS, rejects, and the end of each chunk.

        Raises:
            InputError: a file has changed since the run was planned. No chunk with rows of it ends after that, so none
                is committed.
        """
        start = self._first_chunk * self._chunk_rows
        position = self._bytes_before = 0
        for reader, block in self._blocks(start):
            stop = self._limited(position + block.rows)
            before, after = self._bytes_sent, self._bytes_before + reader.bytes_read
            first = max(position, start)
            while first < stop:
                last = min(stop, first + BATCH_ROWS, (first // self._chunk_rows + 1) * self._chunk_rows)
                yield from self._items(reader.file, block, first, last)
                self._rows_read = first = last
                # A block may be the whole file, so the bytes read say nothing about the rows emitted.
                self._bytes_sent = before + (after - before) * (last - position) / block.rows
                if last % self._chunk_rows == 0:
                    self._refuse_changed(reader.file, last - self._chunk_rows, last)
                    yield ChunkEnd(last // self._chunk_rows - 1, self._chunk_rows)
            position, self._bytes_sent = stop, after
            if position == self._data.limit:
                if rest := position % self._chunk_rows:
                    self._refuse_changed(reader.file, position - rest, position)
                break
        self._bytes_sent = max(self._bytes_sent, self._bytes_before)
        chunk, rest = divmod(position, self._chunk_rows)
        if (rest and position > start) or position == start == 0:
            yield ChunkEnd(chunk, rest)

    def fraction_read(self) -> float | None:
        """Return the share of the input that was emitted: by rows if the files tell their number, else by bytes or
        `limit`."""
        if self._known_rows is not None:
            return self._rows_read / self._known_rows if self._known_rows else 1.0
        by_bytes = self._bytes_sent / self._total_bytes if self._total_bytes else 1.0
        return min(1.0, max(by_bytes, self._rows_read / self._data.limit if self._data.limit else 0.0))

    def total_rows(self) -> int | None:
        """Return the number of source rows with the bad ones; None if only reading would tell (CSV, Arrow streams)."""
        return self._known_rows

    def fingerprint(self) -> dict[str, Any]:
        """Return for each file, in order, its folders if they are columns, its name, its size and
        `Storage.content_id`."""
        return {
            f"files.{i}": ", ".join([*file.folders, file.name, f"{stamp.size_bytes} bytes", file.content_id(stamp)])
            for i, (file, stamp) in enumerate(self._stamps.items())
        }

    def _said_of(self, key: str) -> str:
        """Return what is told of a row that has a key which no column holds."""
        if len(self._unread) < MOST_KEYS:
            self._unread.add(key)
        key = key if key in self._unread else OTHER_KEYS
        how = "" if key == OTHER_KEYS else f"; data.types={{{key.partition('.')[0]}: json}} keeps it"
        return f"the key '{key}' is left out, since no row that types are inferred from has it{how}"

    @cached_property
    def _readers(self) -> list[Reader]:
        data = self._data
        types, only = (data.types, False) if data.schema is None else (data.schema, True)
        read_as = {new: old for old, new in (data.rename or {}).items()}
        free = [read_as.get(name, name) for name in (*data.free_form, *self._json_columns)]
        marked = [str(file) for file in self._files if has_marks(file.name)]
        if data.defused is None and marked:
            self._warn(f"{some(marked)}: marks of output.defuse are taken off texts; data.defused=false keeps them")
        types = self._folders.others(types)
        return [FORMATS[file.format].reader(file, types, data, only=only, as_json=free) for file in self._files]

    @cached_property
    def _files(self) -> list[InputFile]:
        return find_files(self._data, self._warn)

    @cached_property
    def _folders(self) -> FolderColumns:
        return FolderColumns(self._files, self._data)

    @cached_property
    def _stamps(self) -> dict[InputFile, Stamp]:
        """The stamp of each file when the run was planned."""
        return {reader.file: reader.file.stamp() for reader in self._readers}

    def _refuse_changed(self, file: InputFile, first: int = 0, last: int | None = None) -> None:
        """Refuse a file that is not what it was when the run was planned. Of images, those of the source's rows
        [first, last) alone are looked at; all, if there is no `last`."""
        begin = max(0, first - self._file_start)
        end = None if last is None else last - self._file_start
        if changed := file.changed(self._stamps[file], begin, end):
            which, before, now = changed
            raise InputError(
                f"{which} was written to while the run was reading it ({before:,} bytes then, {now:,} now); put it back"
                " as it was and run the same command again, or begin anew with overwrite=true"
            )

    @cached_property
    def _columns(self) -> InputColumns:
        """The columns, under their names in the files; none where no file has any."""
        folders = self._folders.schema
        columns = columns_of(self._stamps, self._readers, self._data, folders, self._warn, self.reserved)
        self._warnings += [sentence for reader in self._readers for sentence in reader.told]
        return columns

    @cached_property
    def _message_keys(self) -> MessageKeys | None:
        name = self._data.messages_column
        if name is None or not (self._data.message_keys or self._data.message_roles):
            return None
        in_files = {new: old for old, new in (self._data.rename or {}).items()}
        return MessageKeys(self._data, in_files.get(name, name))

    @cached_property
    def _schema(self) -> pa.Schema:
        rename = self._data.rename or {}
        columns = plain_schema(self._columns.all)
        if columns.names and self._message_keys is not None:
            columns = self._message_keys.plan(columns)
        fields = [field.with_name(rename.get(field.name, field.name)) for field in columns]
        return pa.schema([*(fields or assumed_columns(self._data)), ROW])

    def _refuse_no_rows(self) -> None:
        """Refuse an input without rows, or warn of it, as `data.empty` says."""
        if not any(asked(reader, reader.has_rows) for reader in self._readers):
            files = some([str(reader.file) for reader in self._readers])
            if self._data.empty == "error":
                raise InputError(f"the input has no rows (files: {files}); {OR_EMPTY}")
            self._warn(f"the input has no rows (files: {files})")

    @cached_property
    def _total_bytes(self) -> int:
        return sum(stamp.size_bytes for stamp in self._stamps.values())

    @cached_property
    def _known_rows(self) -> int | None:
        total = 0
        try:
            for reader in self._readers:
                if (rows := reader.total_rows()) is None:
                    return None
                total += rows
        except (*UNREADABLE, InputError):  # a damaged file; reading its rows will name the place
            return None
        return self._limited(total)

    def _limited(self, rows: int) -> int:
        return rows if self._data.limit is None else min(rows, self._data.limit)

    def _blocks(self, start: int) -> Iterator[tuple[Reader, RowBlock]]:
        """Yield all blocks of all files; blocks before row `start` may lack data."""
        rows, in_files = 0, self._columns.in_files
        for reader in self._readers:
            self._file_start = rows
            try:
                for block in reader.blocks(self._columns.in_file.get(reader, in_files), rows, start):
                    rows += block.rows
                    yield reader, block
            except UNREADABLE as error:
                how = f"on from row {rows} of the input"
                raise explained(reader.file, error, how, "write the file again") from error
            self._refuse_changed(reader.file, rows - rows % self._chunk_rows, rows)
            self._bytes_before += self._stamps[reader.file].size_bytes

    def _items(self, file: InputFile, block: RowBlock, first: int, last: int) -> Iterator[Item]:
        """Yield rows [first, last) of the source, which are in `file`."""
        chunk = first // self._chunk_rows
        data, rows, bad = block.part(first, last)
        if data is not None and self._columns.in_file:
            data, rows, odd = widened(data, rows, plain_schema(self._columns.in_files), file)
            bad += odd
        if data is not None and self._message_keys is not None:
            data, rows, odd = self._message_keys.renamed(data, rows, file)
            bad += odd
        if bad:
            yield Rejects(chunk, bad)
        if data is not None and len(rows):
            low, high = (bisect_left(block.unread, (row,)) for row in (first, last))
            kept = set(rows.tolist()) if low < high else ()
            told = tuple((row, self._said_of(key)) for row, key in block.unread[low:high] if row in kept)
            folders = [pa.repeat(value, len(rows)) for value in self._folders.of(file).values()]
            columns = [*data.columns, *folders, pa.array(rows)]
            yield Batch(chunk, pa.record_batch(columns, schema=self._schema), told=told)
