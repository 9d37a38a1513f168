"""SampleRun: run nodes of a graph on a sample of its input, in this thread and in memory."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pipeline.api.errors import NodeFailed, PipelineError
from pipeline.api.forecast import NOTHING, Forecast, Range, Task, share
from pipeline.api.meter import StageMeter
from pipeline.api.protocols import Forecasts, Inbox, ListInbox, Operator, Sink
from pipeline.api.records import Batch, ChunkEnd, Item, Reject, Rejects, Shard
from pipeline.api.runtime import Resources, RunContext, Runtime
from pipeline.api.user_code import or_else, user_code
from pipeline.dataflow.graph import Graph
from pipeline.dataflow.kept_errors import KeptErrors
from pipeline.dry_run.sample import InputSample
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.system.signals import NOTHING_RUNS, leave, stopped_by_signals

OPERATOR_S = 5.0
SLICE_ROWS = 64


@dataclass
class NodeResult:
    """Result of one node on the sample.

    Args:
        rows, rows_out: rows that it will receive and pass on in the run.
        given, output, rejects: sample rows that it received, passed on and rejected.
        kept: errors of rows that it passed on all the same.
        row_s: seconds per row, of a node without a forecast.
        sink_bytes: file size of all its rows, for a sink.
    """

    rows: Range
    given: int
    output: list[Batch] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    kept: list[Reject] = field(default_factory=list)
    rows_out: Range = NOTHING
    row_s: float = 0.0
    forecast: Forecast | None = None
    sink_bytes: Range = NOTHING

    def add(self, *items: Item | Shard) -> None:
        for item in items:
            if isinstance(item, Batch):
                self.output.append(item)
            elif isinstance(item, Rejects):
                self.rejects += item.rows

    def keep(self, errors: Rejects) -> None:
        self.kept += errors.rows


@dataclass
class SampleRun:
    """Runs nodes of a graph one after the other on a sample. Sinks write nothing.

    Args:
        graph: its operators cannot be used again.
        read: reads the sample from the source, which is open.
        directory: of the results; only read.
        forecasts_s: time limit of all forecasts together.
        node_s: of each node without one.
    """

    graph: Graph
    process: Resources
    read: Callable[[Operator], InputSample]
    directory: Path
    forecasts_s: float = 0.0
    node_s: float = OPERATOR_S
    nodes: dict[str, NodeResult] = field(default_factory=dict)

    def run(self, names: Sequence[str]) -> Generator[str]:
        """Run the nodes `names`; yields the name of each when it has run. They stay open until all have."""
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dry-run-"))

            def leave_nothing() -> None:
                shutil.rmtree(folder, ignore_errors=True)
                leave()

            stack.enter_context(stopped_by_signals(leave_nothing, NOTHING_RUNS))
            table, estimates = MetricsTables(Path(folder)).get, self.forecasts_s > 0
            context = RunContext(Path(folder), self.process, table, estimates=estimates)
            stack.callback(context.resources.close)
            for name in names:
                runtime = Runtime(context, name, self.graph.depth(name), StageMeter(name))
                with user_code(partial(NodeFailed, name), PipelineError):  # the run would end with the same
                    self.nodes[name] = self._run_node(name, runtime, stack)
                yield name

    def _run_node(self, name: str, runtime: Runtime, stack: ExitStack) -> NodeResult:
        graph, node = self.graph, self.graph.nodes[name]
        if name == graph.source:
            return self._read_sample(node.op, runtime)
        inputs = [self.nodes[source] for source in node.inputs]
        batches = [batch.at_port(port) for port, result in enumerate(inputs) for batch in result.output]
        rows = sum((result.rows_out for result in inputs), NOTHING)
        found = NodeResult(rows, sum(batch.num_rows for batch in batches))
        if name in graph.sinks:
            found.sink_bytes = _bytes(node.op, batches, found)
        elif isinstance(node.op, Forecasts):
            self._forecast(node.op, runtime, batches, found, graph.keepers.get(name))
        else:
            stack.callback(_close, name, node.op)  # first: one that opens half way is closed, too
            node.op.open(runtime)
            self._operate(node.op, batches, found, graph.keepers.get(name))
        return found

    def _read_sample(self, source: Operator, runtime: Runtime) -> NodeResult:
        try:
            source.open(runtime)
            sample = self.read(source)
        finally:
            _close(runtime.node, source)
        good = sum(batch.num_rows for batch in sample.batches)
        found = NodeResult(sample.rows, sample.taken, rows_out=sample.rows.times(share(good, sample.taken)))
        found.add(*sample.batches, *sample.rejects)
        return found

    def _forecast(
        self, op: Forecasts, runtime: Runtime, batches: list[Batch], found: NodeResult, keeper: KeptErrors | None
    ) -> None:
        """Get a forecast from `op`, within an equal share of the time left for the remaining forecasts."""
        left = sum(isinstance(node.op, Forecasts) for name, node in self.graph.nodes.items() if name not in self.nodes)
        seconds = self.forecasts_s / left

        def forecast(inbox: Inbox) -> Iterator[Item]:
            given = [item for item in inbox if isinstance(item, Batch)]
            asked = found.rows.times(share(sum(batch.num_rows for batch in given), found.given))
            whole = asked.is_exact and found.rows.likely <= found.given
            began = time.perf_counter()
            found.forecast = made = op.forecast(runtime, given, Task(asked, whole, seconds, self.directory))
            self.forecasts_s = max(self.forecasts_s - (time.perf_counter() - began - made.prepare_s), 0.0)
            found.rows_out = made.rows_out
            yield from made.output
            yield from made.rejects
            yield ChunkEnd(0, found.given)

        inbox = ListInbox(batches)
        found.add(*(forecast(inbox) if keeper is None else keeper.run(forecast, inbox, found.keep, at_once=True)))
        assert found.forecast is not None
        made = sum(batch.num_rows for batch in found.output) - sum(batch.num_rows for batch in found.forecast.output)
        found.rows_out += found.rows.times(share(made, found.given)) if made else NOTHING

    def _operate(self, op: Operator, batches: list[Batch], found: NodeResult, keeper: KeptErrors | None) -> None:
        began = time.perf_counter()
        inbox = ListInbox(self._in_time(batches, found))
        found.add(*(op.run(inbox) if keeper is None else keeper.run(op.run, inbox, found.keep)))
        found.row_s = (time.perf_counter() - began) / max(found.given, 1)
        made = sum(batch.num_rows for batch in found.output)
        found.rows_out = found.rows.times(share(made, found.given))

    def _in_time(self, batches: list[Batch], found: NodeResult) -> Iterator[Item]:
        """Yield rows until `node_s` have passed, and count them in `found.given`."""
        found.given = 0
        until = time.perf_counter() + self.node_s
        for batch in batches:
            for first in range(0, batch.num_rows, SLICE_ROWS):
                if time.perf_counter() > until:
                    break
                piece = replace(batch, data=batch.data.slice(first, SLICE_ROWS))
                found.given += piece.num_rows
                yield piece
        yield ChunkEnd(0, found.given)


def _close(node: str, op: Operator) -> None:
    or_else(f"node '{node}' cannot be closed", op.close, None)


def _bytes(op: Operator, batches: list[Batch], found: NodeResult) -> Range:
    """Estimate the file size of all rows of a sink."""
    rows = found.rows
    if not found.given:
        return Range(0.0, 0.0, 0.0 if not rows.likely else float("inf"))
    # Larger files compress better, and longer rows than those of the sample may come.
    size, factors = sum(batch.data.get_total_buffer_size() for batch in batches), (0.1, 0.5, 1.5)
    if isinstance(op, Sink) and (encoded := op.encoded_bytes(batches)) is not None:
        size, factors = encoded, (0.6, 1.0, 1.3)
    low, likely, high = (size / found.given * factor for factor in factors)
    return Range(rows.low * low, rows.likely * likely, rows.high * high)
