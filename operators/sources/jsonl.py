"""JSONL: one JSON object per line; and lines, each a row as it is.

Keys that `data.schema` does not name are left out; of others that no column holds the rows are counted. Missing keys
are null; NaN and Infinity are numbers.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import IO, Any, ClassVar

import pyarrow as pa

from operators.rows.arrow_types import JSON_TEXT, MAX_NESTING, depth, infer_schema, is_exact, parse_schema
from operators.rows.json_values import noun, unique_keys
from operators.sources.input_file import BOM, BUFFER_BYTES, UTF_16
from operators.sources.reader import NoRowFitsError
from operators.sources.text import KEPT_BYTES, Row, TextReader, Unread
from pipeline.api.errors import HALF_A_CHARACTER, InputError

COUNT_UP_TO_BYTES = 1 << 30
JSON_SPACE = b" \t\r\n"
SCALARS = {
    **dict.fromkeys((pa.int32().id, pa.int64().id, pa.uint64().id), int),
    **{pa.string().id: str, pa.bool_().id: bool, pa.float64().id: float},
}
"""The Python type of the values of a column. Arrow converts others silently: true to 1.0, "ab" to a list."""
TOO_LONG = "JSON over several lines is not JSONL, and Parquet takes longer rows"
TEXT, LINE = pa.field("text", pa.string()), pa.field("line", pa.int64())


class LinesReader(TextReader):
    """Reads a text file in UTF-8. A row is a line that is not blank: `text`, and `line`, its number from 1. A line that
    is not UTF-8 is a bad row."""

    format = "lines"
    takes_types = False

    def schema(self, sample_rows: int) -> pa.Schema:
        with self.file.open():
            if (like := self.file.looks_like()) == UTF_16:  # which is text with NULs to UTF-8
                raise InputError(f"{self.file} begins like {like}")
            return pa.schema([TEXT, LINE])

    def total_rows(self) -> int | None:
        """Count the lines; None for a file that is large, compressed or remote."""
        path = self.file.local
        if path is None or self.file.codec or path.stat().st_size > COUNT_UP_TO_BYTES:
            return None
        rows, rest = 0, b""
        with path.open("rb") as file:
            beginning = file.read(len(BOM)).removeprefix(BOM)
            for block in itertools.chain([beginning], iter(lambda: file.read(BUFFER_BYTES), b"")):
                *lines, rest = (rest + block).split(b"\n")
                rows += sum(map(bool, [line.strip(JSON_SPACE) for line in lines]))
                rest = b"." if rest.strip(JSON_SPACE) else b""  # of a line without end only this is kept
        return rows + len(rest)

    def rows(self, file: IO[Any]) -> Iterator[Row]:
        """Yield the lines that are not blank; only the beginning of one that is too long."""
        number, most = 0, self.max_row_bytes
        while line := file.readline(most + 1):
            number += 1
            if len(line) > most and not line.endswith(b"\n"):
                yield number, line[:KEPT_BYTES], f"the line has more than {most:,} bytes; {TOO_LONG}"
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
            return _not_utf8(error)

    def column(self, values: Sequence[Any], field: pa.Field) -> pa.Array:
        return pa.array(values, field.type)


class JsonlReader(LinesReader):
    """Reads a JSONL file: one row per line that is not blank."""

    format = "jsonl"
    extensions: ClassVar[Sequence[str]] = (".jsonl", ".ndjson")
    takes_types = True
    optional_columns = True

    @cached_property
    def _as_json(self) -> list[str]:
        return [*self.as_json, *(name for name, kind in self.types.items() if kind.strip() == "json")]

    def schema(self, sample_rows: int) -> pa.Schema:
        with self.file.open():
            given = parse_schema(self.types, self.key)
        if self.only:
            return given
        found = [self.values(row) for row in self.sample(sample_rows)]
        objects = [values for values in found if not isinstance(values, str) and depth(values) <= MAX_NESTING]
        schema = infer_schema(objects)
        if found and not schema.names:
            first = found[0] if isinstance(found[0], str) else f"it is nested more than {MAX_NESTING} deep"
            raise NoRowFitsError(
                f"{self.file} is not JSONL: none of its first {len(found)} lines is a JSON object with values"
                f" (the first: {'it has no keys' if objects else first}); it begins like {self.file.looks_like()}"
            )
        types = {field.name: field.type for field in (*schema, *given)}
        return pa.schema(list(types.items()))

    def values(self, row: Row) -> Mapping[str, Any] | str:
        _, text, too_long = row
        found = too_long or parse_object(text)
        for name in self._as_json:
            if isinstance(found, dict) and not isinstance(found.get(name), str | None):
                found[name] = json.dumps(found[name], ensure_ascii=False)
        return found

    def column(self, values: Sequence[Any], field: pa.Field) -> pa.Array:
        kind = field.type
        if kind == JSON_TEXT:
            return pa.array([_as_json(value) for value in values], pa.string())
        if not set(map(type, values)) <= {SCALARS.get(kind.id), type(None)}:
            values = [_exactly(value, kind) for value in values]
        return pa.array(values, kind)

    def unread(self, schema: pa.Schema) -> Unread | None:
        return None if self.only else _Keys(schema).missing


def parse_object(line: bytes) -> dict[str, Any] | str:
    """Return the JSON object in `line`, or the reason why there is none."""
    try:
        text = line.decode()
        found, end = DECODER.raw_decode(text)
        if end < len(text):
            raise json.JSONDecodeError("Extra data", text, end)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        return _not_utf8(error)
    except UnicodeEncodeError:
        return f"has {HALF_A_CHARACTER}"
    except json.JSONDecodeError as error:
        if line.startswith(BOM):
            return "begins with a byte order mark (BOM), as where files were put behind one another; take it out"
        return f"not JSON: {error.msg} at character {error.pos + 1}; each line must be one JSON object"
    except RecursionError:
        return "is nested too deeply to be read; write it as a text"
    except KeyError as error:
        return f"has the key {error} twice; keep one"
    except ValueError:  # of `_finite`, or a whole number of thousands of digits
        return "has a number beyond what a double holds (1.8e308); write it as a text"
    return found if isinstance(found, dict) else f'{noun(found)}, not an object; write it as {{"prompt": ...}}'


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError
    return value


DECODER = json.JSONDecoder(object_pairs_hook=unique_keys, parse_float=_finite)


def _exactly(value: Any, kind: pa.DataType) -> Any:
    """Convert `value` so that Arrow stores it as `kind` without changing it.

    Raises:
        TypeError: it has another type.
        OverflowError: it is beyond what the type holds.
    """
    if value is None or type(value) is SCALARS.get(kind.id):
        return value
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_exactly(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {field.name: _exactly(value.get(field.name), field.type) for field in kind}
    if pa.types.is_floating(kind) and (type(value) is float or (type(value) is int and is_exact(value))):
        return float(value)
    raise TypeError


def _as_json(value: Any) -> str | None:
    if isinstance(value, str | bool):  # its text would be that of another value
        raise TypeError
    return None if value is None else json.dumps(value, ensure_ascii=False)


class _Keys:
    """The keys that the fields of a schema or a struct hold, and those of the structs inside of them."""

    def __init__(self, fields: Iterable[pa.Field]) -> None:
        of_struct = [(field.name, _struct_in(field.type)) for field in fields]
        self._names = frozenset(name for name, _ in of_struct)
        self._inner = [(name, _Keys(struct)) for name, struct in of_struct if struct is not None]

    def missing(self, values: Mapping[str, Any]) -> list[str]:
        """Return the keys in `values` that are not held: `meta.new`."""
        names = self._names
        found = [] if values.keys() <= names else [name for name in values if name not in names]
        for name, keys in self._inner:
            if value := values.get(name):
                found += [f"{name}.{key}" for key in keys._missing_in(value)]
        return found

    def _missing_in(self, value: Any) -> list[str]:
        if isinstance(value, dict):
            return self.missing(value)
        if not isinstance(value, list):
            return []
        return list(dict.fromkeys(key for item in value for key in self._missing_in(item)))


def _struct_in(kind: pa.DataType) -> pa.DataType | None:
    while pa.types.is_list(kind):
        kind = kind.value_type
    return kind if pa.types.is_struct(kind) else None


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8: {error.reason} at byte {error.start + 1}; convert the file to UTF-8"
