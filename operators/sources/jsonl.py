"""JSONL: one JSON object a line.

Blocks of lines go through pyarrow.json under a fixed schema. It is lax where a file of lines must be strict: it takes
values over line ends, several values in a line and bytes that are not UTF-8, and it crashes the process on a line
that is `null`. So it is only given lines that begin with `{` and end with `}`, and must give back as many rows: a line
break in a string and `}` followed by `{` inside a value are errors to it, so each such line is one object. A block that
fails is searched for the lines at fault; a line's fate does not depend on its neighbours.

What it takes by that: keys that are not in the schema are ignored, missing ones are null; NaN and Infinity are numbers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from operators.sources.files import looks_like
from operators.sources.json_types import infer_schema
from operators.sources.reader import BadRow, Block, Types, misfits
from operators.sources.schemas import parse_schema
from pipeline.errors import InputError

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
COUNT_UP_TO_BYTES = 1 << 30
JSON_SPACE = b" \t\r"
BOM = b"\xef\xbb\xbf"


class JsonlReader:
    """Reads a JSONL file; see Reader. A row is a line that is not blank.

    Args:
        path: the file.
        types: `data.schema`; without it the types come from the first rows.
        block_bytes: how much is parsed at a time.
    """

    optional_columns = True

    def __init__(self, path: Path, types: Types | None = None, block_bytes: int = BLOCK_BYTES) -> None:
        self.path = path
        self.bytes_read = 0
        self._types = types
        self._block_bytes = block_bytes

    def schema(self, sample_rows: int) -> pa.Schema:
        """See Reader.schema."""
        with self.path.open("rb"):
            if self._types is not None:
                return parse_schema(self._types)
        numbered = (pair for block in self._numbered_blocks() for pair in split_lines(*block))
        lines = [line for _, line in itertools.islice(numbered, sample_rows)]
        objects = [found for line in lines if isinstance(found := _loads(line), dict)]
        schema = infer_schema(objects)
        if lines and not schema.names:
            why = "it has no keys" if objects else _why_not_json(lines[0])
            raise InputError(
                f"{self.path} is not JSONL: none of its first {len(lines)} lines is a JSON object with values"
                f" (the first: {why}); it begins like {looks_like(self.path)}"
            )
        return schema

    def total_rows(self) -> int | None:
        """By counting lines, about 1 GB/s; None for a file of more than COUNT_UP_TO_BYTES."""
        if self.path.stat().st_size > COUNT_UP_TO_BYTES:
            return None
        return sum(count_rows(block) for _, block in self._numbered_blocks())

    def blocks(self, schema: pa.Schema, skip: int) -> Iterator[Block]:
        """See Reader.blocks."""
        for first_line, block in self._numbered_blocks():
            rows = count_rows(block) if skip else 0
            if skip and rows <= skip:
                skip -= rows
                yield Block(rows)
            else:
                skip = 0
                yield parse_lines(split_lines(first_line, block), schema)

    def _numbered_blocks(self) -> Iterator[tuple[int, bytes]]:
        """The file cut after line ends, each block with the number of its first line (from 1)."""
        first = 1
        for block in self._blocks_of_bytes():
            yield first, block
            first += block.count(b"\n")

    def _blocks_of_bytes(self) -> Iterator[bytes]:
        self.bytes_read = 0
        with self.path.open("rb") as file:
            rest = file.read(len(BOM)).removeprefix(BOM)
            while data := file.read(self._block_bytes):
                self.bytes_read = file.tell()
                whole, newline, tail = data.rpartition(b"\n")
                if newline:
                    yield rest + whole + newline
                    rest = tail
                else:
                    rest += data
                if len(rest) > MAX_LINE_BYTES:
                    raise InputError(f"{self.path} has a line of more than {MAX_LINE_BYTES >> 20} MiB; is it JSONL?")
            if rest:
                yield rest


def split_lines(first: int, block: bytes) -> list[tuple[int, bytes]]:
    """The lines that are not blank, each with its number in the file; `first` is that of the first line."""
    stripped = enumerate((line.strip(JSON_SPACE) for line in block.split(b"\n")), first)
    return [pair for pair in stripped if pair[1]]


def count_rows(block: bytes) -> int:
    """How many lines are not blank."""
    data = np.frombuffer(block, np.uint8)
    starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(data == ord("\n")) + 1])
    starts = starts[starts < len(data)]
    surely = data[starts] > ord(" ")
    rest = (int(start) for start in starts[~surely])
    return int(surely.sum()) + sum(1 for start in rest if block[start:].split(b"\n", 1)[0].strip(JSON_SPACE))


def parse_lines(lines: Sequence[tuple[int, bytes]], schema: pa.Schema) -> Block:
    """The (number, line) pairs as a block: those that fit `schema`, and the others with the reason."""
    texts = [text for _, text in lines]
    data = _parse(texts, schema)
    if data is not None:
        return Block(len(lines), data)
    reasons = {i: why for i, text in enumerate(texts) if (why := _why_not_json(text))}
    maybe = [i for i in range(len(texts)) if i not in reasons]
    for k in misfits(len(maybe), lambda a, b: _parse([texts[i] for i in maybe[a:b]], schema) is not None):
        reasons[maybe[k]] = _why_not_schema(texts[maybe[k]], schema)
    good = [text for i, text in enumerate(texts) if i not in reasons]
    bad = tuple(
        BadRow(i, reasons[i], lines[i][0], texts[i].decode("utf-8", "backslashreplace")) for i in sorted(reasons)
    )
    return Block(len(lines), _parse(good, schema) if good else None, bad)


def _parse(lines: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch | None:
    """The lines under `schema`, or None when one of them does not fit."""
    try:
        return _parse_objects(lines, schema)
    except (pa.ArrowException, UnicodeDecodeError):
        return None


def _parse_objects(lines: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch | None:
    if not all(line[:1] == b"{" and line[-1:] == b"}" for line in lines):
        return None
    text = b"\n".join(lines)
    text.decode("utf-8")  # pyarrow.json does not look inside strings, nor at keys that it ignores
    table = pa.json.read_json(
        pa.BufferReader(text),
        pa.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        pa.json.ParseOptions(schema, newlines_in_values=False, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(lines):
        return None
    return table.combine_chunks().to_batches()[0]


def _loads(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _why_not_json(line: bytes) -> str | None:
    """Why `line` is not a JSON object; None if it is one, or is too deep to say."""
    try:
        found = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start + 1}"
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg} at character {error.pos + 1}"
    except (ValueError, RecursionError):  # a number of thousands of digits, thousands of brackets
        return None
    return None if isinstance(found, dict) else f"a JSON {_kind(found)}, not an object"


def _why_not_schema(line: bytes, schema: pa.Schema) -> str:
    """Which column the object does not fit; tried one by one, because Arrow names columns for some errors only."""
    for field in schema:
        try:
            _parse_objects([line], pa.schema([field]))
        except pa.ArrowException as error:
            return f"does not fit column '{field.name}' ({field.type}): {error}; data.schema can give another type"
    return "does not fit the columns"


def _kind(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")
