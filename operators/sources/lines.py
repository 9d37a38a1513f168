"""Lines: a text file whose lines are the rows, unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from operators.sources.jsonl import JsonlReader
from operators.sources.text import Row

TEXT, LINE = pa.field("text", pa.string()), pa.field("line", pa.int64())


class LinesReader(JsonlReader):
    """Reads a text file in UTF-8; see TextReader. A row is a line that is not blank: `text`, and `line`, its number in
    the file, from 1. A line that is not UTF-8 is a bad row.
    """

    format = "lines"
    extensions = ()
    takes_types = False

    def schema(self, sample_rows: int) -> pa.Schema:
        with self.file.open():
            return pa.schema([TEXT, LINE])

    def values(self, row: Row) -> Mapping[str, Any] | str:
        number, text, too_long = row
        try:
            return too_long or {"text": text.decode(), "line": number}
        except UnicodeDecodeError as error:
            return f"not UTF-8: {error.reason} at byte {error.start + 1}; convert the file to UTF-8"
