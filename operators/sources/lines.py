"""Lines: a text file whose lines are the rows, each as it stands there. For formats that an operator reads itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        """Always the same."""
        with self.file.open():
            return pa.schema([TEXT, LINE])

    def values(self, row: Row) -> Mapping[str, Any] | str:
        """See TextReader.values."""
        try:
            return row.found or {"text": row.text.decode(), "line": row.line}
        except UnicodeDecodeError as error:
            return f"not UTF-8: {error.reason} at byte {error.start + 1}; convert the file to UTF-8"

    def column(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """See TextReader.column."""
        return pa.array(values, kind)
