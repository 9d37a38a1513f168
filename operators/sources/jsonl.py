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
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from operators.rows.arrow_types import MAX_NESTING, depth, infer_schema, parse_schema
from operators.sources.input_file import Content, InputFile
from operators.sources.reader import BadRow, Block, Types, misfits
from pipeline.api.errors import InputError
from pipeline.api.records import HALF_A_CHARACTER

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
KEPT_BYTES = 4096
"""Of a line that is longer than that: what the reject shows."""
MOST_SHOWN = 200
"""Characters of an error of Arrow, which quotes values whole."""
COUNT_UP_TO_BYTES = 1 << 30
JSON_SPACE = b" \t\r"
BOM = b"\xef\xbb\xbf"


class LongLine(bytes):
    """The beginning of a line that is too long to be read."""


class JsonlReader:
    """Reads a JSONL file; see Reader. A row is a line that is not blank.

    Args:
        file: the file; may be compressed.
        types: `data.schema`; without it the types come from the first rows.
        block_bytes: how much is parsed at a time.
        max_line_bytes: a line that is longer by two blocks and more is a bad row.
    """

    optional_columns = True

    def __init__(
        self,
        file: InputFile,
        types: Types | None = None,
        block_bytes: int = BLOCK_BYTES,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        self.file = file
        self._max_line_bytes = max_line_bytes
        self.bytes_read = 0
        self._types = types
        self._as_json = [name for name, kind in (types or {}).items() if kind.strip() == "json"]
        self._block_bytes = block_bytes

    def schema(self, sample_rows: int) -> pa.Schema:
        """See Reader.schema."""
        with self.file.open():
            if self._types is not None:
                return parse_schema(self._types)
        numbered = (pair for block in self._numbered_blocks() for pair in split_lines(*block))
        lines = [line for _, line in itertools.islice(numbered, sample_rows)]
        objects = [found for line in lines if isinstance(found := _loads(line), dict)]
        schema = infer_schema(objects)
        if lines and not schema.names:
            why = (
                "it has no keys" if objects else _why_not_json(lines[0]) or f"it is nested more than {MAX_NESTING} deep"
            )
            raise InputError(
                f"{self.file} is not JSONL: none of its first {len(lines)} lines is a JSON object with values"
                f" (the first: {why}); it begins like {self.file.looks_like()}"
            )
        return schema

    def total_rows(self) -> int | None:
        """By counting lines, about 1 GB/s; None for a file that is larger, packed or far away."""
        path = self.file.local
        if path is None or self.file.codec or path.stat().st_size > COUNT_UP_TO_BYTES:
            return None
        return sum(count_rows(block) for _, block in self._numbered_blocks())

    def blocks(self, schema: pa.Schema, skip: int) -> Iterator[Block]:
        """See Reader.blocks."""
        for first_line, block in self._numbered_blocks():
            rows = count_rows(block) if skip else 0
            if isinstance(block, LongLine) and not skip:
                yield self._too_long(first_line, block)
            elif skip and rows <= skip:
                skip -= rows
                yield Block(rows)
            else:
                skip = 0
                yield self._parsed(split_lines(first_line, block), schema)

    def _parsed(self, lines: Sequence[tuple[int, bytes]], schema: pa.Schema) -> Block:
        return parse_lines(lines, schema, self._as_json)

    def _numbered_blocks(self) -> Iterator[tuple[int, bytes]]:
        """The file cut after line ends, each block with the number of its first line (from 1)."""
        first = 1
        for block in self._blocks_of_bytes():
            yield first, block
            first += 1 if isinstance(block, LongLine) else block.count(b"\n")

    def _blocks_of_bytes(self) -> Iterator[bytes]:
        self.bytes_read = 0
        with Content(self.file) as file:
            rest = file.read(len(BOM)).removeprefix(BOM)
            while data := file.read(self._block_bytes):
                self.bytes_read = file.position
                whole, newline, tail = data.rpartition(b"\n")
                if newline:
                    yield rest + whole + newline
                    rest = tail
                else:
                    rest += data
                if len(rest) > self._max_line_bytes:
                    yield LongLine(rest[:KEPT_BYTES])
                    whole, newline, rest = self._behind_line(file).rpartition(b"\n")
                    if newline:
                        yield whole + newline
            if rest:
                yield rest

    def _behind_line(self, file: Content) -> bytes:
        """Read on to the end of a line; what was read of the next ones."""
        while data := file.read(self._block_bytes):
            self.bytes_read = file.position
            _, newline, tail = data.partition(b"\n")
            if newline:
                return tail
        return b""

    def _too_long(self, number: int, line: LongLine) -> Block:
        most = self._max_line_bytes
        why = (
            f"the line has more than {most} bytes; JSON over several lines is not JSONL, and Parquet takes longer rows"
        )
        return Block(1, None, (BadRow(0, why, number, line.decode("utf-8", "backslashreplace")),))


def split_lines(first: int, block: bytes) -> list[tuple[int, bytes]]:
    """The lines that are not blank, each with its number in the file; `first` is that of the first line."""
    stripped = enumerate((line.strip(JSON_SPACE) for line in block.split(b"\n")), first)
    return [pair for pair in stripped if pair[1]]


def count_rows(block: bytes) -> int:
    """How many lines are not blank."""
    if isinstance(block, LongLine):
        return 1
    data = np.frombuffer(block, np.uint8)
    starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(data == ord("\n")) + 1])
    starts = starts[starts < len(data)]
    surely = data[starts] > ord(" ")
    rest = (int(start) for start in starts[~surely])
    return int(surely.sum()) + sum(1 for start in rest if block[start:].split(b"\n", 1)[0].strip(JSON_SPACE))


def parse_lines(lines: Sequence[tuple[int, bytes]], schema: pa.Schema, as_json: Sequence[str] = ()) -> Block:
    """The (number, line) pairs as a block: those that fit `schema`, and the others with the reason.

    `as_json`: keys whose values of any type become string columns of JSON.
    """
    texts = [_with_json(text, as_json) if as_json else text for _, text in lines]
    data = _parse(texts, schema)
    if data is not None:
        return Block(len(lines), data)
    reasons = {i: why for i, text in enumerate(texts) if (why := _why_not_json(text))}
    maybe = [i for i in range(len(texts)) if i not in reasons]
    for k in misfits(len(maybe), lambda a, b: _parse([texts[i] for i in maybe[a:b]], schema) is not None):
        reasons[maybe[k]] = _why_not_schema(texts[maybe[k]], schema)
    good = [text for i, text in enumerate(texts) if i not in reasons]
    bad = tuple(
        BadRow(i, reasons[i], lines[i][0], lines[i][1].decode("utf-8", "backslashreplace")) for i in sorted(reasons)
    )
    return Block(len(lines), _parse(good, schema) if good else None, bad)


def _with_json(line: bytes, keys: Sequence[str]) -> bytes:
    """`line` with the values of `keys` as texts; a line that is not JSON as it is."""
    try:
        found = json.loads(line)
        if not isinstance(found, dict):
            return line
        values = {k: found[k] for k in keys if not isinstance(found.get(k), str | None)}
        texts = {k: json.dumps(value, ensure_ascii=False) for k, value in values.items()}
        return json.dumps({**found, **texts}).encode()  # half a character stays an escape, which Arrow refuses
    except (ValueError, RecursionError):
        return line


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
    """The value, if columns can be read off it."""
    try:
        found = json.loads(line)
        if b"\\ud" in line.lower():
            json.dumps(found, ensure_ascii=False).encode()  # half a character, which Arrow does not take
    except (ValueError, RecursionError):
        return None
    brackets = line.count(b"[") + line.count(b"{")
    return None if brackets > MAX_NESTING and depth(found) > MAX_NESTING else found


def _why_not_json(line: bytes) -> str | None:
    """Why `line` is not a JSON object; None if it is one, or is too deep to say."""
    try:
        found = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start + 1}; convert the file to UTF-8"
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg} at character {error.pos + 1}; each line must be one JSON object"
    except (ValueError, RecursionError):  # a number of thousands of digits, thousands of brackets
        return None
    return None if isinstance(found, dict) else f'a JSON {_kind(found)}, not an object; write it as {{"prompt": ...}}'


def _why_not_schema(line: bytes, schema: pa.Schema) -> str:
    """Which column the object does not fit; tried one by one, because Arrow names columns for some errors only."""
    for field in schema:
        try:
            _parse_objects([line], pa.schema([field]))
        except pa.ArrowException as error:
            return _explained(str(error)[:MOST_SHOWN], field)
    return "does not fit the columns; data.schema can give other types"


def _explained(error: str, field: pa.Field) -> str:
    if "surrogate" in error:
        return f"has {HALF_A_CHARACTER}"
    if "too big to be stored" in error:  # in whatever column, also one that is not read
        return "has a number beyond what a double holds (1.8e308); write it as a text"
    if "specified twice" in error:
        return f"has the key '{field.name}' twice; keep one"
    return f"does not fit column '{field.name}' ({field.type}): {error}; data.schema can give another type"


def _kind(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")
