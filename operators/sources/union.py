"""Files that differ (`data.union`): each is read under types of its own, and its rows get those of all files."""

from __future__ import annotations

import reprlib

import numpy as np
import pyarrow as pa

from operators.formats.input_file import InputFile
from operators.formats.reader import Reader
from pipeline.api.records import Reject, python_values, record_json


def own_schema(reader: Reader, own: pa.Schema, merged: pa.Schema) -> pa.Schema:
    """Return the columns and types under which a file is read, whose rows `widened` then makes rows of `merged`.

    What is null in all of a file, and texts of CSV, are read as the column is in other files: of CSV a number is read
    as what it is in its file, so that it is a value of that type which is widened, and not its text.
    """
    if reader.optional_columns:
        return merged
    fields = []
    for field in merged:
        if field.name in own.names:
            kind = own.field(field.name).type
            is_read_so = pa.types.is_null(kind) or (reader.texts and field.type == pa.string())
            fields.append(field if is_read_so else field.with_type(kind))
    return pa.schema(fields)


def widened(
    data: pa.RecordBatch, rows: np.ndarray, schema: pa.Schema, file: InputFile
) -> tuple[pa.RecordBatch, np.ndarray, tuple[Reject, ...]]:
    """Return rows of a file, and their numbers, under the `schema` of all files, and rejects for those with a number
    that is none of the wider type."""
    try:
        return _cast(data, schema), rows, ()
    except pa.ArrowInvalid:
        wrong = {i: why for i in range(len(rows)) if (why := _misfit(data.slice(i, 1), schema))}
    bad = tuple(reject(data, i, int(rows[i]), why, file) for i, why in wrong.items())
    good = np.array([i not in wrong for i in range(len(rows))])
    return _cast(data.filter(pa.array(good)), schema), rows[good], bad


def _cast(data: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        data.column(field.name).cast(field.type) if field.name in data.schema.names else pa.nulls(len(data), field.type)
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)


def _misfit(row: pa.RecordBatch, schema: pa.Schema) -> str | None:
    """Return why a row has no place under `schema`; None if it has one."""
    for name, column in zip(row.schema.names, row.columns, strict=True):
        kind = schema.field(name).type
        try:
            column.cast(kind)
        except pa.ArrowInvalid:
            shown = reprlib.repr(python_values(column)[0])
            return f"column '{name}' is {kind} over all files, which is not every {column.type}: {shown} would change"
    return None


def reject(data: pa.RecordBatch, index: int, row: int, why: str, file: InputFile) -> Reject:
    """Return the reject for a row of `data`, which has the number `row`."""
    columns = zip(data.schema.names, data.slice(index, 1).columns, strict=True)
    return Reject(row, why, record_json({name: python_values(column)[0] for name, column in columns}), file=str(file))
