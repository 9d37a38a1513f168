"""Union: merges several inputs; rows of input i get i appended to their lineage."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from operators.rows.lineage import append_to_lineage, with_lineage
from pipeline.api import LINEAGE, ROW, Batch, Operator, Output, SchemaError


class Union(Operator):
    """Passes on the rows of all its inputs, which must have the same columns (in any order; lineage aside).

    Rows that branches made of one source row have the same `row`; `lineage`, which comes after it, tells them apart.

    Example:
        both:
          inputs: [short_answers, long_answers]
          op:
            _target_: operators.union.Union
    """

    def plan(self, *inputs: pa.Schema) -> pa.Schema:
        if len(inputs) < 2:
            raise SchemaError(f"joins two or more inputs; it has {len(inputs)}")
        for port, schema in enumerate(inputs):
            _check_equal(inputs[0], schema, port)
        self._schema = with_lineage(inputs[0])
        return self._schema

    def process(self, batch: Batch) -> Iterable[Output]:
        earlier = batch.data.column(LINEAGE.name) if LINEAGE.name in batch.data.schema.names else None
        lineage = append_to_lineage(earlier, np.full(batch.num_rows, batch.port, np.int32))
        columns = [lineage if name == LINEAGE.name else batch.data.column(name) for name in self._schema.names]
        yield batch.with_data(pa.record_batch(columns, schema=self._schema))


def _check_equal(first: pa.Schema, other: pa.Schema, port: int) -> None:
    expected_types, types = ({f.name: f.type for f in s if f.name != LINEAGE.name} for s in (first, other))
    if ROW.name not in expected_types:
        raise SchemaError(f"needs the column '{ROW.name}'; its inputs have {', '.join(expected_types) or 'none'}")
    for name in expected_types.keys() | types.keys():
        expected, kind = expected_types.get(name, "absent"), types.get(name, "absent")
        if expected != kind:
            raise SchemaError(
                f"column '{name}' is {expected} in input 0 and {kind} in input {port};"
                " the inputs of a union need the same columns"
            )
