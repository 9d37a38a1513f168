"""Operators whose output depends on the rows of earlier chunks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa

from pipeline.api.protocols import Inbox, Operator, Stateful
from pipeline.api.records import Batch, ChunkEnd, Item, Output, RejectKind, add_columns
from tests.pipeline.ops import Passes


class RunningSum(Operator, Stateful):
    """s = the sum of x over all rows so far."""

    def __init__(self) -> None:
        self.sum = 0

    def plan(self, schema: pa.Schema) -> pa.Schema:
        self.schema = add_columns(schema, pa.field("s", pa.int64()))
        return self.schema

    def process(self, batch: Batch) -> Iterable[Output]:
        sums = []
        for x in batch.data.column("x").to_pylist():
            self.sum += x
            sums.append(self.sum)
        yield batch.with_data(pa.record_batch([*batch.data.columns, pa.array(sums, pa.int64())], schema=self.schema))

    def state(self, chunk: int) -> bytes:
        return json.dumps(self.sum).encode()

    def restore(self, states: Iterable[bytes]) -> None:
        (state,) = states
        self.sum = json.loads(state)


class FirstOfEach(Passes, Stateful):
    """Keeps the first row of each x % `modulo`. Reads a chunk ahead: ends a chunk when it has the next one's rows."""

    def __init__(self, modulo: int) -> None:
        self.modulo = modulo
        self.seen: set[int] = set()
        self.seen_by: dict[int, list[int]] = {}
        """What had been seen when each chunk ended that is not sent on yet."""

    def run(self, inbox: Inbox) -> Iterator[Item]:
        held: ChunkEnd | None = None
        for item in inbox:
            if isinstance(item, Batch):
                yield from self._split(item)
            elif isinstance(item, ChunkEnd):
                self.seen_by[item.chunk] = sorted(self.seen)
                if held is not None:
                    yield held
                held = item
        if held is not None:
            yield held

    def _split(self, batch: Batch) -> Iterator[Item]:
        first: list[int] = []
        later: list[int] = []
        for i, x in enumerate(batch.data.column("x").to_pylist()):
            (later if x % self.modulo in self.seen else first).append(i)
            self.seen.add(x % self.modulo)
        if later:
            yield batch.reject(later, "seen before", RejectKind.FILTERED)
        if first:
            yield batch.with_data(batch.data.take(pa.array(first, pa.int64())))

    def state(self, chunk: int) -> bytes:
        return json.dumps(self.seen_by.pop(chunk)).encode()

    def restore(self, states: Iterable[bytes]) -> None:
        (state,) = states
        self.seen = set(json.loads(state))


class SumByChunk(Operator, Stateful):
    """RunningSum, remembered as the x of each chunk."""

    append = True

    def __init__(self) -> None:
        self.running = RunningSum()
        self.of_chunk: dict[int, list[int]] = {}

    def plan(self, schema: pa.Schema) -> pa.Schema:
        return self.running.plan(schema)

    def process(self, batch: Batch) -> Iterable[Output]:
        self.of_chunk.setdefault(batch.chunk, []).extend(batch.data.column("x").to_pylist())
        return self.running.process(batch)

    def state(self, chunk: int) -> bytes:
        return json.dumps(self.of_chunk.pop(chunk)).encode()

    def restore(self, states: Iterable[bytes]) -> None:
        self.running.sum = sum(sum(json.loads(state)) for state in states)


class WrongState(RunningSum):
    """Gives no bytes."""

    def state(self, chunk: int) -> bytes:
        return str(self.sum)  # type: ignore[return-value]  # which is the point
