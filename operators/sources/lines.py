"""Lines: a text file whose lines are the rows, each as it stands there. For formats that an operator reads itself."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from operators.sources.input_file import InputFile
from operators.sources.jsonl import JsonlReader
from operators.sources.reader import BadRow, Block, Types, refuse_types

TEXT, LINE = pa.field("text", pa.string()), pa.field("line", pa.int64())


class LinesReader(JsonlReader):
    """Reads a text file in UTF-8; see Reader. A row is a line that is not blank: `text`, and `line`, its number in the
    file, from 1. A line that is not UTF-8 is a bad row.

    Raises:
        ConfigError: `data.schema` is given.
    """

    def __init__(self, file: InputFile, types: Types | None = None) -> None:
        refuse_types(file, types)
        super().__init__(file)

    def schema(self, sample_rows: int) -> pa.Schema:
        """Always the same."""
        with self.file.open():
            return pa.schema([TEXT, LINE])

    def _parsed(self, lines: Sequence[tuple[int, bytes]], schema: pa.Schema) -> Block:
        good: list[tuple[int, str]] = []
        bad: list[BadRow] = []
        for offset, (number, content) in enumerate(lines):
            try:
                good.append((number, content.decode("utf-8")))
            except UnicodeDecodeError as error:
                why = f"not UTF-8: {error.reason} at byte {error.start + 1}; convert the file to UTF-8"
                bad.append(BadRow(offset, why, number, content.decode("utf-8", "backslashreplace")))
        columns = [pa.array([text for _, text in good], TEXT.type), pa.array([n for n, _ in good], LINE.type)]
        return Block(len(lines), pa.record_batch(columns, schema=schema) if good else None, tuple(bad))
