"""SampleRun: run a graph on a sample of its input, in this thread and in memory."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.api.errors import NodeFailed, PipelineError
from pipeline.api.forecast import NOTHING, Forecast, Range, Sample, Task, share
from pipeline.api.meter import Clock, StageMeter
from pipeline.api.protocols import BaseOperator, ListInbox, overrides
from pipeline.api.records import Batch, ChunkEnd, Item, Reject, Rejects, Shard
from pipeline.api.runtime import Resources, RunContext, Runtime
from pipeline.config.build import Job
from pipeline.dry_run.sample import sample_of
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.system.signals import NOTHING_RUNS, leave, stopped_by_signals

OPERATOR_S = 5.0
SLICE_ROWS = 64


@dataclass
class NodeResult:
    """Result of one node on the sample.

    Args:
        rows: rows that it will receive in the run.
        given: sample rows that it received.
        output: its output on the sample.
        rejects: sample rows that it rejected.
        rows_out: rows that it will pass on in the run.
        row_s: seconds per row, of a node without a forecast.
        forecast: of a node that makes one, else None.
        sink_bytes: file size of all its rows, for a sink.
    """

    rows: Range
    given: int
    output: list[Batch] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    rows_out: Range = NOTHING
    row_s: float = 0.0
    forecast: Forecast | None = None
    sink_bytes: Range = NOTHING

    def add(self, *items: Item | Shard) -> None:
        """Add output items of the node."""
        for item in items:
            if isinstance(item, Batch):
                self.output.append(item)
            elif isinstance(item, Rejects):
                self.rejects += item.rows


class SampleRun:
    """Runs the nodes of a graph one after the other on a sample. Sinks write nothing.

    Args:
        job: the job. Its operators cannot be used again; its directory is only read.
        process: shared resources, which hold the models.
        seconds: time limit of all forecasts together.
        first_chunk, first_row: start of the run.
    """

    def __init__(
        self,
        job: Job,
        process: Resources,
        seconds: float,
        first_chunk: int = 0,
        first_row: int = 0,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._job = job
        self._process = process
        self._seconds = seconds
        self._first = first_chunk, first_row
        self._clock = clock
        self.nodes: dict[str, NodeResult] = {}
        self.sample: Sample | None = None

    def run(self) -> Iterator[str]:
        """Run all nodes; yields the name of each when it has run.

        Raises:
            NodeFailed: an operator raised, as it would in the run.
            ConfigError: an input or a model is invalid.
        """
        graph = self._job.graph
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dry-run-"))
            stack.enter_context(stopped_by_signals(lambda: _leave_without(folder), NOTHING_RUNS))
            context = RunContext(Path(folder), self._process, MetricsTables(Path(folder)).get)
            stack.callback(context.resources.close)
            for name in graph.order:
                runtime = Runtime(context, name, graph.depth(name), StageMeter(name))
                try:
                    self.nodes[name] = self._run_node(name, runtime, stack)
                except PipelineError:
                    raise
                except Exception as error:  # of a user's operator: the run would end with the same
                    raise NodeFailed(name, error) from error
                yield name

    def _run_node(self, name: str, runtime: Runtime, stack: ExitStack) -> NodeResult:
        graph = self._job.graph
        node = graph.nodes[name]
        if name == graph.source:
            return self._read_sample(node.op, runtime)
        inputs = [self.nodes[source] for source in node.inputs]
        batches = [batch.at_port(port) for port, result in enumerate(inputs) for batch in result.output]
        rows = sum((result.rows_out for result in inputs), NOTHING)
        found = NodeResult(rows, sum(batch.num_rows for batch in batches))
        if name in graph.sinks:
            found.sink_bytes = _bytes(node.op, batches, found)
        elif overrides(node.op, "forecast"):
            self._forecast(node.op, runtime, batches, found)
        else:
            node.op.open(runtime)
            stack.callback(node.op.close)
            self._operate(node.op, batches, found)
        return found

    def _read_sample(self, source: BaseOperator, runtime: Runtime) -> NodeResult:
        source.open(runtime)
        try:
            self.sample = sample = sample_of(source, *self._first, self._job.settings.chunk_rows)
        finally:
            source.close()
        good = sum(batch.num_rows for batch in sample.batches)
        found = NodeResult(sample.rows, sample.taken, rows_out=sample.rows.times(share(good, sample.taken)))
        found.add(*sample.batches, *sample.rejects)
        return found

    def _forecast(self, op: BaseOperator, runtime: Runtime, batches: list[Batch], found: NodeResult) -> None:
        """Get a forecast from `op`, within an equal share of the time left for the remaining forecasts."""
        nodes = self._job.graph.nodes
        left = sum(overrides(node.op, "forecast") for name, node in nodes.items() if name not in self.nodes)
        whole = found.rows.is_exact and found.rows.likely <= found.given
        began = self._clock()
        task = Task(found.rows, whole, self._seconds / left, self._job.directory)
        found.forecast = forecast = op.forecast(runtime, batches, task)
        self._seconds = max(self._seconds - (self._clock() - began - forecast.prepare_s), 0.0)
        found.rows_out = forecast.rows_out
        found.add(*forecast.output, *forecast.rejects)

    def _operate(self, op: BaseOperator, batches: list[Batch], found: NodeResult) -> None:
        began = self._clock()
        found.add(*op.run(ListInbox(self._in_time(batches, found))))
        found.row_s = (self._clock() - began) / max(found.given, 1)
        made = sum(batch.num_rows for batch in found.output)
        found.rows_out = found.rows.times(share(made, found.given))

    def _in_time(self, batches: list[Batch], found: NodeResult) -> Iterator[Item]:
        """Yield rows until OPERATOR_S have passed, and count them in `found.given`."""
        found.given = 0
        until = self._clock() + OPERATOR_S
        for batch in batches:
            for first in range(0, batch.num_rows, SLICE_ROWS):
                if self._clock() > until:
                    break
                piece = replace(batch, data=batch.data.slice(first, SLICE_ROWS))
                found.given += piece.num_rows
                yield piece
        yield ChunkEnd(0, found.given)


def _leave_without(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    leave()


def _bytes(op: BaseOperator, batches: list[Batch], found: NodeResult) -> Range:
    """Estimate the file size of all rows of a sink."""
    rows = found.rows
    if not found.given:
        return Range(0.0, 0.0, 0.0 if not rows.likely else float("inf"))
    # Larger files compress better, and longer rows than those of the sample may come.
    size, factors = sum(batch.data.get_total_buffer_size() for batch in batches), (0.1, 0.5, 1.5)
    if (encoded := op.encoded_bytes(batches)) is not None:
        size, factors = encoded, (0.6, 1.0, 1.3)
    low, likely, high = (size / found.given * factor for factor in factors)
    return Range(rows.low * low, rows.likely * likely, rows.high * high)
