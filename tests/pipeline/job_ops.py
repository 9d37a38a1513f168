"""Operators that a job file can name, for tests of whole runs: a source that can seek, a step, a Parquet sink."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.api.numbers import Number
from pipeline.api.protocols import Inbox, Operator, Runtime, Source
from pipeline.api.records import Batch, ChunkEnd, Item, Output, add_columns, require_column
from pipeline.system.atomic_files import part_name, sorted_by_identity, write_parquet_shard
from tests.pipeline.ops import Count, Passes


class CannotSeek(Count):
    """Rows x = row, from the first one on. `content` stands for what the input file holds."""

    def __init__(
        self, rows: int, chunk_rows: int = 10, batch_rows: int = 3, content: str = "a", path: str = ""
    ) -> None:
        super().__init__(rows, chunk_rows, batch_rows)
        self.content = content

    def fingerprint(self) -> dict[str, str]:
        return {"content": self.content}


class Numbers(CannotSeek, Source):
    """The same, from any chunk on."""

    def seek(self, chunk: int) -> None:
        self.first = chunk

    def total_rows(self) -> int | None:
        return self.rows


class Square(Operator):
    """y = x * x + add. Rejects the rows named in `bad`; fails at x = `fail_at` while the file `broken` exists."""

    def __init__(self, add: int = 0, bad: Any = None, fail_at: int = -1, broken: str = "") -> None:
        self.add, self.bad, self.fail_at, self.broken = add, bad or [], fail_at, broken

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, "x", [pa.int64()])
        self.schema = add_columns(schema, pa.field("y", pa.int64()))
        return self.schema

    def open(self, runtime: Runtime) -> None:
        runtime.number("slot_steps", Number("slots"), lambda: 8, of_run=True)
        runtime.number("slot_steps_used", Number("of these in use"), lambda: 6, of_run=True)
        runtime.status(lambda: "slots 3/4")

    def process(self, batch: Batch) -> Iterable[Output]:
        x = batch.data.column("x").to_pylist()
        if self.fail_at in x and Path(self.broken).exists():
            raise RuntimeError("the machine caught fire")
        if bad := [i for i, v in enumerate(x) if v in self.bad]:
            yield batch.reject(bad, "unlucky number")
        good = batch.data.take(pa.array([i for i, v in enumerate(x) if v not in self.bad], pa.int64()))
        y = pa.array([v * v + self.add for v in good.column("x").to_pylist()], pa.int64())
        yield batch.with_data(pa.record_batch([*good.columns, y], schema=self.schema))


def four_samples(row: dict[str, Any], differ: int = 0) -> list[dict[str, Any]]:
    """Four samples of a row; the `tag` of those with x < `differ` is not the same."""
    return [{"sample": 10 * row["x"] + i, "tag": i if row["x"] < differ else 0} for i in range(4)]


class Loses(Passes):
    """Loses the first row of every batch."""

    def process(self, batch: Batch) -> Iterable[Output]:
        yield batch.with_data(batch.data.slice(1))


class InterruptAt(Passes):
    """Sends its own process a SIGINT at x = `at` while the file `flag` exists, and then waits to be cancelled."""

    def __init__(self, at: int, flag: str) -> None:
        self.at, self.flag = at, Path(flag)

    def open(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def process(self, batch: Batch) -> Iterable[Output]:
        if self.at in batch.data.column("x").to_pylist() and self.flag.exists():
            self.flag.unlink()
            os.kill(os.getpid(), signal.SIGINT)
            while not self.runtime.cancelled:
                os.sched_yield()
        yield batch


class Hangs(Passes):
    """Never returns from the batch with x = `at`, unless the file `healed` exists; sets `begun` when it hangs."""

    begun = threading.Event()

    def __init__(self, at: int, healed: str) -> None:
        self.at, self.healed = at, Path(healed)

    def process(self, batch: Batch) -> Iterable[Output]:
        if self.at in batch.data.column("x").to_pylist() and not self.healed.exists():
            self.begun.set()
            threading.Event().wait()
        yield batch


class LeavesLate(Passes):
    """Passes chunk 0 on when it has read chunk 2 to its end, and leaves."""

    def run(self, inbox: Inbox) -> Iterator[Item]:
        seen: list[Item] = []
        for item in inbox:
            seen.append(item)
            if isinstance(item, ChunkEnd) and item.chunk == 2:
                break
        yield from (item for item in seen if item.chunk == 0)


class Parquet(Operator):
    """data/part-NNNNN.parquet, one a chunk."""

    def __init__(self) -> None:
        self.open_chunks: dict[int, list[pa.RecordBatch]] = {}

    def plan(self, schema: pa.Schema) -> None:
        self.schema = schema

    def open(self, runtime: Runtime) -> None:
        self.directory = runtime.output_dir / "data"

    def process(self, batch: Batch) -> Iterable[Output]:
        self.open_chunks.setdefault(batch.chunk, []).append(batch.data)
        return ()

    def finish(self, chunk: int) -> Iterable[Output]:
        table = pa.Table.from_batches(self.open_chunks.pop(chunk, []), self.schema)
        yield write_parquet_shard(sorted_by_identity(table), self.directory / part_name(chunk), chunk)


class AddFrom(Square):
    """Square whose `add` is what stands in a file, unknown to the run's fingerprint."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.file = Path(path)

    def open(self, runtime: Runtime) -> None:
        self.add = int(self.file.read_text())


class WaitAt(Passes):
    """At x = `at`, while the file `flag` exists, makes the file `<flag>.reached` and waits until `flag` is gone."""

    def __init__(self, at: int, flag: str) -> None:
        self.at, self.flag = at, Path(flag)

    def process(self, batch: Batch) -> Iterable[Output]:
        if self.at in batch.data.column("x").to_pylist() and self.flag.exists():
            Path(f"{self.flag}.reached").touch()
            while self.flag.exists():
                time.sleep(0.01)
        yield batch
