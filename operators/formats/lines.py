"""Lines of a text file, each a row: its text without the white space at both ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import pyarrow as pa

from operators.formats.encodings import UTF_8, not_of
from operators.formats.format import Format
from operators.formats.input_file import BOM, BUFFER_BYTES
from operators.formats.text_file import KEPT_BYTES, Row, TextReader

JSON_SPACE = b" \t\r\n"
TOO_LONG = "JSON over several lines is not JSONL, and Parquet takes longer rows"
TEXT, LINE = pa.field("text", pa.string()), pa.field("line", pa.int64())


class LinesReader(TextReader):
    """Reads a text file. A row is a line that is not blank: `text`, and `line`, its number from 1. A line that is not
    of the file's encoding is a bad row."""

    unit = "line"
    """What a row is in messages."""
    count_up_to_bytes = 1 << 30
    """Rows of a larger file are not counted: it would take seconds."""

    def schema(self, sample_rows: int) -> pa.Schema:
        with self.text():
            return pa.schema([TEXT, LINE])

    def total_rows(self) -> int | None:
        """Count the lines; None for a file that is large, compressed or remote."""
        path = self.file.local
        if path is None or self.file.codec or path.stat().st_size > self.count_up_to_bytes:
            return None
        with self.text() as (file, _):
            return sum(1 for _ in self.rows(file))

    def rows(self, file: IO[Any], before: int = 0) -> Iterator[Row]:
        """Yield the lines that are not blank; only the beginning of one that is too long. `before`: lines of the file
        that come before."""
        number, most = before, self.max_row_bytes
        while line := file.readline(most + 1):
            number += 1
            if len(line) > most and not line.endswith(b"\n"):
                yield number, line[:KEPT_BYTES], f"the {self.unit} has more than {most:,} bytes; {TOO_LONG}"
                while line and not line.endswith(b"\n"):
                    line = file.readline(BUFFER_BYTES)
                continue
            if number == 1:
                line = line.removeprefix(BOM)
            if text := line.strip(JSON_SPACE):
                yield number, text, None

    def values(self, row: Row) -> Mapping[str, Any] | str:
        number, text, too_long = row
        try:
            return too_long or {"text": text.decode(), "line": number}
        except UnicodeDecodeError as error:
            return not_decoded(error, self.encoding)

    def column(self, values: Sequence[Any], field: pa.Field) -> pa.Array:
        return pa.array(values, field.type)


def not_decoded(error: UnicodeDecodeError, encoding: str) -> str:
    """Return the reason to reject a line that is not of the encoding of its file."""
    return not_of(encoding, f"{error.reason} at byte {error.start + 1}" if encoding == UTF_8 else error.reason)


LINES = Format("lines", LinesReader, packed=True)
