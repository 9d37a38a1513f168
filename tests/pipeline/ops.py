"""Small operators for the tests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from pipeline.api.protocols import Inbox, Operator, Runtime
from pipeline.api.records import ROW, Batch, ChunkEnd, Item, Output, RejectKind, add_columns, require_column

NUMBERS = pa.schema([ROW, pa.field("x", pa.int64())])


class Passes(Operator):
    """A base for operators that keep the columns of their rows."""

    def plan(self, schema: pa.Schema) -> pa.Schema:
        return schema


class Count(Operator):
    """A source of `rows` rows x = row, in chunks and batches of a given size."""

    def __init__(self, rows: int, chunk_rows: int = 10, batch_rows: int = 3) -> None:
        self.rows, self.chunk_rows, self.batch_rows = rows, chunk_rows, batch_rows
        self.first = self.sent = 0

    def plan(self) -> pa.Schema:
        return NUMBERS

    def run(self, inbox: Inbox) -> Iterator[Item]:
        for chunk in range(self.first, -(-self.rows // self.chunk_rows)):
            first = chunk * self.chunk_rows
            last = min(first + self.chunk_rows, self.rows)
            for start in range(first, last, self.batch_rows):
                values = list(range(start, min(start + self.batch_rows, last)))
                self.sent += len(values)
                yield Batch(chunk, pa.record_batch([values, values], schema=NUMBERS))
            yield ChunkEnd(chunk, last - first)


class Apply(Operator):
    """Puts `function(x)` in a new column `y`."""

    def __init__(self, function: Callable[[int], int]) -> None:
        self.function = function

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, "x", [pa.int64()])
        self.schema = add_columns(schema, pa.field("y", pa.int64()))
        return self.schema

    def process(self, batch: Batch) -> Iterable[Output]:
        y = pa.array([self.function(x) for x in batch.data.column("x").to_pylist()], pa.int64())
        yield batch.with_data(pa.record_batch([*batch.data.columns, y], schema=self.schema))


class KeepEven(Passes):
    """Filters odd x out."""

    def process(self, batch: Batch) -> Iterable[Output]:
        x = batch.data.column("x").to_pylist()
        odd = [i for i, v in enumerate(x) if v % 2]
        if odd:
            yield batch.reject(odd, "odd", RejectKind.FILTERED)
        yield batch.with_data(batch.data.take(pa.array([i for i, v in enumerate(x) if not v % 2], pa.int64())))


class Twice(Passes):
    """Gives every row two times."""

    def process(self, batch: Batch) -> Iterable[Output]:
        both = pa.Table.from_batches([batch.data, batch.data]).combine_chunks().to_batches()[0]
        yield batch.with_data(both, expanded=batch.num_rows)


class Join(Operator):
    """Passes on what several inputs send; remembers the ports."""

    def __init__(self) -> None:
        self.ports: set[int] = set()

    def plan(self, *inputs: pa.Schema) -> pa.Schema:
        return inputs[0]

    def process(self, batch: Batch) -> Iterable[Output]:
        self.ports.add(batch.port)
        yield batch


class Collect(Operator):
    """A sink that keeps all rows and the order of what it saw."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.ends: list[int] = []

    def plan(self, schema: pa.Schema) -> None:
        self.schema = schema

    def open(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def process(self, batch: Batch) -> Iterable[Output]:
        if self.ends and batch.chunk <= self.ends[-1]:
            raise AssertionError(f"rows of chunk {batch.chunk} after the end of chunk {self.ends[-1]}")
        self.batches.append(batch)
        return ()

    def finish(self, chunk: int) -> Iterable[Output]:
        self.ends.append(chunk)
        return ()

    def column(self, name: str) -> list[int]:
        return [v for b in self.batches for v in b.data.column(name).to_pylist()]


class Buffer(Passes):
    """Gives the rows of a chunk when it ends, as one that sorts does."""

    def __init__(self) -> None:
        self.held: dict[int, list[Batch]] = {}

    def process(self, batch: Batch) -> Iterable[Output]:
        self.held.setdefault(batch.chunk, []).append(batch)
        return ()

    def finish(self, chunk: int) -> Iterable[Output]:
        return self.held.pop(chunk, [])


class TakeChunks(Passes):
    """Leaves after `chunks` chunks."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks

    def run(self, inbox: Inbox) -> Iterator[Item]:
        for item in inbox:
            yield item
            if isinstance(item, ChunkEnd) and item.chunk + 1 == self.chunks:
                return
