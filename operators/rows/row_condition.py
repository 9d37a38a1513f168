"""`where` of Filter, Generate and Embed: selects the rows to keep or to process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa

from operators.rows.batches import set_apart
from operators.rows.sql import RowExpression
from pipeline.api.forecast import Forecast, Task, share
from pipeline.api.records import Batch, Rejects


class Where:
    """Splits batches by a condition on one row, in the SQL of polars; without one, all rows are worked on."""

    def __init__(self, text: str | None) -> None:
        self._condition = None if text is None else RowExpression("where", text)

    def plan(self, schema: pa.Schema) -> None:
        """Check the condition against the columns, as RowExpression does."""
        if self._condition is not None:
            self._condition.plan(schema, lambda kind: kind == pl.Boolean, "true or false; compare it with something")

    def split(self, batch: Batch) -> tuple[Batch, Batch, list[Rejects]]:
        """Return the rows to process, those for which the condition is false or null, and rejects of those for which it
        cannot be evaluated."""
        beyond = {} if self._condition is None else self._condition.beyond(batch.data)
        rejects, batch = set_apart(batch, beyond)
        if self._condition is None or not batch.num_rows:
            return batch, batch.with_data(batch.data.slice(0, 0)), rejects
        holds = self._condition.values(batch.data).fill_null(False).to_numpy()
        if holds.all():
            return batch, batch.with_data(batch.data.slice(0, 0)), rejects
        chosen, others = (pa.array(np.flatnonzero(which), pa.int64()) for which in (holds, ~holds))
        return batch.with_data(batch.data.take(chosen)), batch.with_data(batch.data.take(others)), rejects

    def chosen(self, batch: Batch, kept: Collection[str], schema: pa.Schema) -> tuple[Batch, list[Batch | Rejects]]:
        """Return the rows to process, and what passes by: rejects, and the other rows under `schema`, the columns
        `kept` as they are and nulls in all others."""
        batch, others, beyond = self.split(batch)
        return batch, [*beyond, *([_passed_by(others, kept, schema)] if others.num_rows else [])]

    def forecast(
        self,
        batches: Sequence[Batch],
        task: Task,
        of_own: Callable[[Sequence[Batch], Task], Forecast],
        kept: Collection[str],
        schema: pa.Schema,
    ) -> Forecast:
        """Forecast `task`, in which only the chosen rows take time: `of_own` forecasts these. The others pass by, see
        `chosen`."""
        parts = [self.split(batch) for batch in batches]
        to_process = [chosen for chosen, _, _ in parts if chosen.num_rows]
        part = share(sum(b.num_rows for b in to_process), sum(b.num_rows for b in batches))
        result = of_own(to_process, replace(task, rows=task.rows.times(part)))
        left = [_passed_by(others, kept, schema) for _, others, _ in parts if others.num_rows]
        return replace(result, rows_out=result.rows_out + task.rows.times(1 - part), output=[*result.output, *left])


def _passed_by(batch: Batch, kept: Collection[str], schema: pa.Schema) -> Batch:
    data = batch.data
    columns = [
        data.column(field.name)
        if field.name in kept and field.name in data.schema.names
        else pa.nulls(data.num_rows, field.type)
        for field in schema
    ]
    return batch.with_data(pa.record_batch(columns, schema=schema))
