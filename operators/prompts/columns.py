"""The columns that templates name."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from operators.prompts.template import OF_ANY_NAME, Template
from pipeline.api.errors import SchemaError, did_you_mean
from pipeline.api.records import ROW


def columns_of(schema: pa.Schema) -> str:
    """List the columns for a message, or say that the input has none of its own."""
    listed = f"the columns are {', '.join(schema.names)}"
    return f"the input is empty ({listed})" if set(schema.names) <= {ROW.name} else listed


def used_columns(template: Template, schema: pa.Schema, variables: Iterable[str] = ()) -> list[str]:
    """Return the columns that `template` names, in their order; a SchemaError for other names than `variables`."""
    by_name = set(schema.names) if template.by_name is None else template.by_name
    unknown = sorted(template.unknown - set(schema.names) - set(variables)) or sorted(by_name - set(schema.names))
    if unknown:
        odd = [name for name in schema.names if not name.isidentifier() and unknown[0] in name]
        hint = f"; {OF_ANY_NAME}" if odd else did_you_mean(unknown[0], schema.names)
        raise SchemaError(f"{template.name} uses '{unknown[0]}'; {columns_of(schema)}{hint}")
    if taken := sorted(template.reserved & set(schema.names)):
        raise SchemaError(
            f"{template.name} uses '{taken[0]}', which is a word of Jinja's and not the column; give the column another"
            f" name, which the template can use (data.rename={{{taken[0]}: another_name}}, or operators.columns.Rename)"
        )
    return [name for name in schema.names if name in template.named | by_name]  # a column named `range` counts as well
