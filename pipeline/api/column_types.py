"""Types of columns that Parquet cannot hold as they are."""

from __future__ import annotations

import pyarrow as pa


def without_null(kind: pa.DataType) -> pa.DataType:
    """Return `kind` with string in place of null, the type of values that were not seen, also inside of it."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(without_null(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, without_null(field.type)) for field in kind])
    return kind


def holds_nothing(kind: pa.DataType) -> bool:
    """Return True for a struct without fields, also inside of `kind`."""
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return (pa.types.is_struct(kind) and not inner) or any(map(holds_nothing, inner))
