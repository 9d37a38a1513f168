"""Record batches of Parquet and Arrow as blocks. A row whose bytes do not fit its type is bad."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from operators.formats.reader import BadRow, RowBlock
from pipeline.api.records import python_values, record_json


def checked_block(batch: pa.RecordBatch, schema: pa.Schema) -> RowBlock:
    """Cast `batch` to `schema`, without the rows that are not valid (text that is no UTF-8, offsets outside the data).

    Raises:
        pyarrow.ArrowException: the batch is broken as a whole.
    """
    batch.validate()  # lengths and buffers; if they are wrong, rows cannot be separated
    if _is_valid(batch):
        return RowBlock(batch.num_rows, batch.select(schema.names).cast(schema))
    valid = np.array([_is_valid(batch.slice(i, 1)) for i in range(batch.num_rows)])
    bad = tuple(_bad_row(batch.slice(i, 1), i) for i in np.flatnonzero(~valid).tolist())
    return RowBlock(batch.num_rows, batch.filter(pa.array(valid)).select(schema.names).cast(schema), bad)


def _is_valid(data: pa.RecordBatch | pa.Array) -> bool:
    try:
        data.validate(full=True)
    except pa.ArrowException:
        return False
    return True


def _bad_row(row: pa.RecordBatch, offset: int) -> BadRow:
    columns = dict(zip(row.schema.names, row.columns, strict=True))
    broken = {name: _escaped(column) for name, column in columns.items() if not _is_valid(column)}
    name, text = next(iter(broken.items()), ("", None))
    why = "is damaged; write the file again" if text is None else "is not text in UTF-8; write the file again in UTF-8"
    record = {
        name: (broken[name] or "(cannot be read)") if name in broken else python_values(column)[0]
        for name, column in columns.items()
    }
    return BadRow(offset, f"column '{name}' {why}", None, record_json(record))


def _escaped(column: pa.Array) -> str | None:
    """Return a text that is not UTF-8 with Python escapes; None if its bytes cannot be read, or are no text."""
    is_large = pa.types.is_large_string(column.type)
    if not is_large and not pa.types.is_string(column.type):
        return None
    as_bytes = column.cast(pa.large_binary() if is_large else pa.binary())
    return str(as_bytes[0].as_py(), "utf-8", "backslashreplace") if _is_valid(as_bytes) else None
