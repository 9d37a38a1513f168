"""Check the record batches of Parquet and Arrow files: a row whose bytes do not fit its type is a bad row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from operators.sources.reader import BadRow, Block
from pipeline.api.records import record_json


def checked(batch: pa.RecordBatch, schema: pa.Schema) -> Block:
    """Cast `batch` to `schema`, without the rows that are not valid (text that is no UTF-8, offsets outside the data).

    Raises:
        pyarrow.ArrowException: the batch is broken as a whole.
    """
    batch.validate()  # lengths and buffers; if they are wrong, rows cannot be separated
    if _is_valid(batch):
        return Block(batch.num_rows, batch.select(schema.names).cast(schema))
    valid = np.array([_is_valid(batch.slice(i, 1)) for i in range(batch.num_rows)])
    bad = tuple(_bad_row(batch.slice(i, 1), i) for i in np.flatnonzero(~valid).tolist())
    return Block(batch.num_rows, batch.filter(pa.array(valid)).select(schema.names).cast(schema), bad)


def _is_valid(data: pa.RecordBatch | pa.Array) -> bool:
    try:
        data.validate(full=True)
    except pa.ArrowException:
        return False
    return True


def _bad_row(row: pa.RecordBatch, offset: int) -> BadRow:
    broken = [name for name, column in zip(row.schema.names, row.columns, strict=True) if not _is_valid(column)]
    is_text = bool(broken) and _is_readable(row.column(broken[0]))
    why = "is not text in UTF-8; write the file again in UTF-8" if is_text else "is damaged; write the file again"
    record = {name: _shown(column) for name, column in zip(row.schema.names, row.columns, strict=True)}
    return BadRow(offset, f"column '{broken[0] if broken else ''}' {why}", None, record_json(record))


def _is_readable(column: pa.Array) -> bool:
    """Return True if the column has texts whose bytes can be read, although they are not UTF-8."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _is_valid(column.cast(pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()))
    return False


def _shown(column: pa.Array) -> object:
    if _is_valid(column):
        return column.to_pylist()[0]
    if not _is_readable(column):
        return "(cannot be read)"
    as_bytes = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    return as_bytes.to_pylist()[0].decode("utf-8", "backslashreplace")
