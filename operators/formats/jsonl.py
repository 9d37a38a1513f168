"""JSONL: one JSON object per line.

Keys that `data.schema` does not name are left out; of others that no column holds the rows are counted. Missing keys
are null; NaN and Infinity are numbers.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from operators.formats.encodings import UTF_8
from operators.formats.format import Format, check_text
from operators.formats.input_file import BOM, BUFFER_BYTES
from operators.formats.lines import LinesReader, not_decoded
from operators.formats.reader import NoRowFitsError, RowBlock
from operators.formats.result_jsonl import scan, write
from operators.formats.text_file import Row, Unread
from operators.formats.unpack import NO_COMPRESSION
from operators.rows.arrow_types import JSON_TEXT, MAX_NESTING, depth, infer_schema, is_exact, parse_schema
from operators.rows.json_values import no_lost_number, noun, unique_keys
from operators.rows.times import times_of_polars
from pipeline.api.errors import HALF_A_CHARACTER

SCALARS = {
    **dict.fromkeys((pa.int32().id, pa.int64().id, pa.uint64().id), int),
    **{pa.string().id: str, pa.bool_().id: bool, pa.float64().id: float},
}
"""The Python type of the values of a column. Arrow converts others silently: true to 1.0, "ab" to a list."""
_EXACT = {pa.int32(), pa.int64(), pa.string(), pa.bool_(), pa.float64()}
"""Types of which Arrow reads the same values from JSON as Python; it rounds twice less than Python for a float."""
_WHOLE = float(1 << 53)
"""From here on a double is not every whole number."""
_Held: TypeAlias = "tuple[frozenset[str], list[tuple[str, _Held]]]"
"""The keys that the fields of a schema or a struct hold, and those of the structs inside of them."""


class JsonlReader(LinesReader):
    """Reads a JSONL file: one row per line that is not blank."""

    noun = "JSONL"
    takes_types = True
    optional_columns = True

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
            none = f"none of its first {len(found)} {self.unit}s is a JSON object with values"
            raise NoRowFitsError(
                f"{self.file} is not {self.noun}: {none} (the first:"
                f" {'it has no keys' if objects else first}); it begins like {self.file.looks_like()}"
            )
        types = {field.name: field.type for field in (*schema, *given)}
        return pa.schema(list(types.items()))

    def blocks(self, schema: pa.Schema, first: int, start: int) -> Iterator[RowBlock]:
        """Yield all rows. Arrow reads a block whose lines are all rows of `schema` beyond doubt; of another one each
        line is read by itself."""
        unread, exact, lines = self.unread(schema), all(_is_exact(field.type) for field in schema), 0
        for text in self._texts():
            rows, block = count_objects(text) if len(text) <= self.max_row_bytes else 0, None
            if rows and first + rows > start and exact and (data := read_objects(text, rows, schema)) is not None:
                block = RowBlock(first, rows, data)
            elif not rows or first + rows > start:
                raws = list(self.rows(io.BytesIO(text), lines))
                rows = len(raws)
                block = None if first + rows <= start else self._block(first, raws, schema, unread)
            if rows:
                yield block or RowBlock(first, rows)
            first += rows
            lines += text.count(b"\n")

    def _texts(self) -> Iterator[bytes]:
        """Yield lines of the file, about `block_bytes` at a time, and only the beginning of one that is too long."""
        self.bytes_read = 0
        with self.text() as (content, raw):
            while text := content.read(self.block_bytes):
                room = self.max_row_bytes + 1 - (len(text) - text.rfind(b"\n") - 1)
                if not text.endswith(b"\n"):
                    text += (rest := content.readline(max(room, 1)))
                    while rest and not rest.endswith(b"\n"):
                        rest = content.readline(BUFFER_BYTES)
                    text += b"" if text.endswith(b"\n") else rest[-1:]
                self.bytes_read = raw.tell()
                yield text

    def values(self, row: Row) -> Mapping[str, Any] | str:
        _, text, too_long = row
        found = too_long or parse_object(text, self.encoding, self.unit)
        for name in self.as_json:
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
        return None if self.only else partial(_unheld, held=_held(schema))


_TINY = re.compile(rb"[0-9.][eE]-[0-9]{3}")
"""A number that may be too near to 0 for a double."""


def count_objects(text: bytes) -> int:
    """Return the number of lines of `text`; 0 if one of them is not enclosed in braces.

    A brace before and behind each line break ends an object there, since JSON has a comma or a colon between braces
    inside of one. So if Arrow finds as many objects as there are lines, each line is one.
    """
    text = text.rstrip(b"\r\n")
    if not (text.startswith(b"{") and text.endswith(b"}")):
        return 0
    breaks = text.count(b"\n")
    return breaks + 1 if text.count(b"}\n{") + text.count(b"}\r\n{") == breaks else 0


def read_objects(text: bytes, objects: int, schema: pa.Schema) -> pa.RecordBatch | None:
    """Read so many lines with Arrow; None if a value of one may be another than `parse_object` gives."""
    if _TINY.search(text):
        return None
    try:
        table = pj.read_json(
            pa.BufferReader(text),
            pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
        )
        table.validate(full=True)  # texts that are not UTF-8
    except pa.ArrowException:
        return None
    if table.num_rows != objects or table.schema != schema or not all(map(_is_sure, table.columns)):
        return None
    (data,) = table.combine_chunks().to_batches()
    return data


def _is_exact(kind: pa.DataType) -> bool:
    nested = pa.types.is_list(kind) or pa.types.is_struct(kind)
    return all(_is_exact(kind.field(i).type) for i in range(kind.num_fields)) if nested else kind in _EXACT


def _is_sure(column: pa.Array | pa.ChunkedArray) -> bool:
    """Return False if a double may be a whole number that it does not hold, `-0`, NaN or infinite; and if a struct is
    null, below which Arrow's bytes are others."""
    if pa.types.is_struct(column.type):
        return not column.null_count and all(map(_is_sure, column.flatten()))
    if pa.types.is_list(column.type):
        return _is_sure(pc.list_flatten(column))
    if not pa.types.is_floating(column.type):
        return True
    sure = pc.and_(pc.less(pc.abs(column), _WHOLE), pc.not_equal(pc.divide(1.0, column), -math.inf))
    return pc.all(sure, min_count=0).as_py() is True


def parse_object(line: bytes, encoding: str = UTF_8, unit: str = "line") -> dict[str, Any] | str:
    """Return the JSON object in `line`, or the reason why there is none. `encoding`: that of its file;
    `unit`: what it is there."""
    try:
        text = line.decode()
        found, end = DECODER.raw_decode(text)
        if end < len(text):
            raise json.JSONDecodeError("Extra data", text, end)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        return not_decoded(error, encoding)
    except UnicodeEncodeError:
        return f"has {HALF_A_CHARACTER}"
    except json.JSONDecodeError as error:
        if line.startswith(BOM):
            return "begins with a byte order mark (BOM), as where files were put behind one another; take it out"
        return f"not JSON: {error.msg} at character {error.pos + 1}; each {unit} must be one JSON object"
    except RecursionError:
        return "is nested too deeply to be read; write it as a text"
    except KeyError as error:
        return f"has the key {error} twice; keep one"
    except ValueError:  # of `_finite`, or a whole number of thousands of digits
        return "has a number beyond what a double holds (1.8e308), or too near to 0; write it as a text"
    return found if isinstance(found, dict) else f'{noun(found)}, not an object; write it as {{"prompt": ...}}'


def _finite(text: str) -> float:
    value = no_lost_number(text)
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


def _held(fields: Iterable[pa.Field]) -> _Held:
    structs = {field.name: _struct_in(field.type) for field in fields}
    return frozenset(structs), [(name, _held(inner)) for name, inner in structs.items() if inner is not None]


def _unheld(value: Any, held: _Held) -> Sequence[str]:
    """Return the keys of an object, or of objects in a list, that are not held: `meta.new`."""
    if isinstance(value, list):
        return list(dict.fromkeys(key for item in value for key in _unheld(item, held)))
    if not isinstance(value, dict):
        return []
    names, inner = held
    found = [] if value.keys() <= names else [name for name in value if name not in names]
    for name, below in inner:
        found += [f"{name}.{key}" for key in _unheld(value.get(name), below)]
    return found


def _struct_in(kind: pa.DataType) -> pa.DataType | None:
    while pa.types.is_list(kind):
        kind = kind.value_type
    return kind if pa.types.is_struct(kind) else None


JSONL = Format(
    "jsonl",
    JsonlReader,
    (".jsonl", ".ndjson"),
    packed=True,
    hub="json",
    compressions=(NO_COMPRESSION, "gzip", "zstd"),
    write=write,
    check=partial(check_text, files="JSON lines"),
    scan=scan,
    times=times_of_polars,
)
