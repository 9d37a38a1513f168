"""Runs a few operators as a graph: list in, flow, list out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.api.protocols import Inbox, Operator
from pipeline.api.records import Batch, ChunkEnd, Item
from pipeline.api.runtime import Resources, RunContext
from pipeline.dataflow.executor import Executor
from pipeline.dataflow.graph import Graph, Node
from pipeline.run_dir.chunk_record import ChunkRecord
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.system.atomic_files import rename_shards
from tests.pipeline.ops import Collect


class Rows(Operator):
    """A source of given rows (dicts), with `row` added."""

    def __init__(self, rows: Sequence[dict[str, Any]], schema: pa.Schema, chunk_rows: int = 16, batch: int = 5) -> None:
        self.rows, self.chunk_rows, self.batch = rows, chunk_rows, batch
        self.schema = pa.schema([pa.field("row", pa.int64(), nullable=False), *schema])

    def plan(self) -> pa.Schema:
        return self.schema

    def run(self, inbox: Inbox) -> Iterator[Item]:
        numbered = [{"row": i, **row} for i, row in enumerate(self.rows)]
        for chunk, first in enumerate(range(0, len(numbered), self.chunk_rows)):
            rows = numbered[first : first + self.chunk_rows]
            for start in range(0, len(rows), self.batch):
                yield Batch(chunk, pa.RecordBatch.from_pylist(rows[start : start + self.batch], schema=self.schema))
            yield ChunkEnd(chunk, len(rows))


class Flow:
    """A graph of named nodes; after `run`, `out` has the rows of the sink `out`, in the order of (row, lineage)."""

    def __init__(self, directory: Path, nodes: dict[str, Node], process: Resources | None = None) -> None:
        self.sink = Collect()
        last = next(reversed(nodes))
        self.tables = MetricsTables(directory)
        self.context = RunContext(directory, process or Resources(), self.tables.get)
        self.executor = Executor(Graph({**nodes, "out": Node(self.sink, (last,), capacity_rows=8)}), self.context, self)
        self.tally = self.executor.tally
        self.committed: list[int] = []
        self.told: Counter[str] = Counter()

    def commit(self, record: ChunkRecord) -> None:
        rename_shards(record.shards)
        self.committed.append(record.chunk)
        for counts in record.counts.values():
            self.told.update(counts.told)

    def run(self) -> list[dict[str, Any]]:
        self.executor.run()
        return self.out

    @property
    def out(self) -> list[dict[str, Any]]:
        rows = [row for batch in self.sink.batches for row in batch.data.to_pylist()]
        return sorted(rows, key=lambda row: (row["row"], row.get("lineage") or []))


def chain(source: Any, **operators: Any) -> dict[str, Node]:
    """Nodes that read one another in order."""
    nodes = {"source": Node(source)}
    for name, op in operators.items():
        nodes[name] = Node(op, (next(reversed(nodes)),), capacity_rows=8)
    return nodes
