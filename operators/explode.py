"""Explode: turns the elements of a list into rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from operators.rows.lineage import append_to_lineage, refuse_identity, repeated, with_lineage
from operators.settings.checks import check_one_of
from pipeline.api import LINEAGE, ROW, Batch, Operator, Output, RejectKind, Scope, add_columns, require_column
from pipeline.api.errors import SchemaError


class Explode(Operator):
    """Makes a row of each element of a list. The other columns are repeated, and the position of the element, from 0,
    is appended to `lineage`, which comes after `row`.

    Args:
        column: a column of lists.
        as_: the name that the element gets (`as` in a job file); that of the list where none is given.
        empty: what becomes of a row whose list is empty or null: reject (it leaves with kind `filtered`) or keep (it
            stays, as element 0 that is null).

    Example:
        questions:
          inputs: parse
          op:
            _target_: operators.explode.Explode
            column: questions
            as: question
    """

    scope = Scope.ROW

    def __init__(self, column: str, as_: str | None = None, empty: str = "reject") -> None:
        check_one_of("empty", empty, ("reject", "keep"))
        refuse_identity([column, as_ or column], "exploded; name another one")
        self._column = column
        self._name = as_ or column
        self._keep_empty = empty == "keep"

    def plan(self, schema: pa.Schema) -> pa.Schema:
        kind = require_column(schema, self._column).type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            raise SchemaError(f"column '{self._column}' has type {kind}; it must be a list")
        require_column(schema, ROW.name, [ROW.type])
        element = pa.field(self._name, kind.value_type)
        if self._name != self._column:
            add_columns(schema, element)
        self._schema = with_lineage(element if f.name == self._column else f for f in schema)
        return self._schema

    def process(self, batch: Batch) -> Iterable[Output]:
        lists = batch.data.column(self._column)
        lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
        empty = np.flatnonzero(lengths == 0)
        if len(empty) and not self._keep_empty:
            yield batch.reject(empty.tolist(), f"the list '{self._column}' is empty", RejectKind.FILTERED)
        kept = batch.num_rows if self._keep_empty else batch.num_rows - len(empty)
        if kept:
            parents, positions = repeated(np.maximum(lengths, 1) if self._keep_empty else lengths)
            has_element = lengths[parents] > 0  # an empty list that is kept has none, and gets null
            places = pa.array(np.cumsum(has_element) - 1, pa.int64(), mask=~has_element)
            rows = batch.data.take(pa.array(parents))
            lineage = rows.column(LINEAGE.name) if LINEAGE.name in rows.schema.names else None
            new_columns = {
                LINEAGE.name: append_to_lineage(lineage, positions),
                self._name: pc.list_flatten(lists).take(places),
            }
            columns = [new_columns[f.name] if f.name in new_columns else rows.column(f.name) for f in self._schema]
            data = pa.record_batch(columns, schema=self._schema)
            yield batch.with_data(data, expanded=data.num_rows - kept)
