"""Operators for runs under a target."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.api.protocols import Operator, Runtime
from pipeline.api.records import Batch, Output, RejectKind, add_columns
from tests.pipeline.job_ops import Parquet
from tests.pipeline.ops import Passes


class Picky(Passes):
    """Keeps the rows with row * 7 % 10 < 4: four of ten, in every round others. Makes 5 tokens of each row."""

    def open(self, runtime: Runtime) -> None:
        self.meter = runtime.meter

    def process(self, batch: Batch) -> Iterable[Output]:
        self.meter.tokens_out += 5 * batch.num_rows
        rows = batch.data.column("row").to_pylist()
        if bad := [i for i, row in enumerate(rows) if not passes(row)]:
            yield batch.reject(bad, "too plain", RejectKind.FILTERED)
        yield batch.with_data(batch.data.take(pa.array([i for i, row in enumerate(rows) if passes(row)], pa.int64())))


def passes(row: int) -> bool:
    """Whether Picky keeps a row."""
    return row * 7 % 10 < 4


class AddRound(Operator):
    """Adds the round of each row, as `round`."""

    def plan(self, schema: pa.Schema) -> pa.Schema:
        self.schema = add_columns(schema, pa.field("round", pa.int64()))
        return self.schema

    def open(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def process(self, batch: Batch) -> Iterable[Output]:
        rounds = pa.array(self.runtime.round_of(np.asarray(batch.data.column("row"))))
        yield batch.with_data(pa.record_batch([*batch.data.columns, rounds], schema=self.schema))


class FailAtRow(Passes):
    """Fails at a row of the endless source while the file `broken` exists."""

    def __init__(self, row: int, broken: str) -> None:
        self.row, self.broken = row, Path(broken)

    def process(self, batch: Batch) -> Iterable[Output]:
        if self.row in batch.data.column("row").to_pylist() and self.broken.exists():
            raise RuntimeError("the machine caught fire")
        yield batch


class WaitsForEver(Passes):
    """Works on the row `row` until the run is over."""

    def __init__(self, row: int) -> None:
        self.row = row

    def open(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def process(self, batch: Batch) -> Iterable[Output]:
        yield batch
        if max(batch.data.column("row").to_pylist(), default=0) >= self.row:
            while not self.runtime.cancelled:
                os.sched_yield()


class Aside(Parquet):
    """A second sink."""

    def open(self, runtime: Runtime) -> None:
        self.directory = runtime.output_dir / "data/aside"
