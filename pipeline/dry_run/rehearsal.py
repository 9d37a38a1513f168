"""A graph on a sample of its input, in this thread and in memory: what becomes of the rows, and what that took."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.api.by_batch import run_by_batch
from pipeline.api.errors import NodeFailed, PipelineError
from pipeline.api.forecast import Forecast, Range, Sample, Task, share
from pipeline.api.list_inbox import Given
from pipeline.api.meter import Clock, StageMeter
from pipeline.api.protocols import BaseOperator, Runtime, overrides
from pipeline.api.records import Batch, ChunkEnd, Item, Reject, Rejects
from pipeline.api.runtime import Resources, RunContext
from pipeline.dataflow.graph import Graph
from pipeline.dry_run.sample import sample_of
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.system.signals import NOTHING_RUNS, leave, stopped_by_signals

OPERATOR_S = 5.0
SLICE_ROWS = 64


@dataclass
class Played:
    """What a node made of the sample.

    Args:
        rows: rows that it will be given in the run.
        given: rows that it was shown.
        output: what it passed on.
        rejects: rows that it refused.
        rows_out: rows that it will pass on.
        row_s: seconds a row, of a node that is not a forecaster.
        forecast: what it said, if it is one.
        sink_bytes: of all its rows, for a sink.
    """

    rows: Range
    given: int
    output: list[Batch] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    rows_out: Range = field(default_factory=lambda: Range.exact(0.0))
    row_s: float = 0.0
    forecast: Forecast | None = None
    sink_bytes: Range | None = None


class Rehearsal:
    """Runs the nodes of `graph` one after the other on a sample. Sinks write nothing.

    Args:
        graph: the graph; its operators are used up.
        results: the output directory of the run; only read.
        process: where models are kept.
        chunk_rows: rows of a chunk.
        seconds: that forecasters may compute, all together.
        first_chunk, first_row: where the run would begin.
    """

    def __init__(
        self,
        graph: Graph,
        results: Path,
        process: Resources,
        chunk_rows: int,
        seconds: float,
        first_chunk: int = 0,
        first_row: int = 0,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._graph = graph
        self._results = results
        self._process = process
        self._chunk_rows = chunk_rows
        self._seconds = seconds
        self._first = first_chunk, first_row
        self._clock = clock
        self.nodes: dict[str, Played] = {}
        self.sample: Sample | None = None

    def run(self) -> Iterator[str]:
        """Play all nodes; names each when it is played.

        Raises:
            NodeFailed: an operator raised, as it would in the run.
            ConfigError: a source or a model cannot work.
        """
        forecasters = [n for n in self._graph.order if overrides(self._graph.nodes[n].op, "forecast")]
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dry-run-"))
            stack.enter_context(stopped_by_signals(lambda: _leave_without(folder), NOTHING_RUNS))
            context = RunContext(Path(folder), self._process, MetricsTables(Path(folder)).get)
            stack.callback(context.resources.close)
            for name in self._graph.order:
                runtime = Runtime(context, name, self._graph.depth(name), StageMeter(name))
                left = len([n for n in forecasters if n not in self.nodes])
                try:
                    self.nodes[name] = self._play(name, runtime, self._seconds / max(left, 1), stack)
                except PipelineError:
                    raise
                except Exception as error:  # of a user's operator: the run would end with the same
                    raise NodeFailed(name, error) from error
                yield name

    def _play(self, name: str, runtime: Runtime, seconds: float, stack: ExitStack) -> Played:
        if name == self._graph.source:
            return self._source(runtime)
        inputs = [self.nodes[source] for source in self._graph.nodes[name].inputs]
        rows = sum((played.rows_out for played in inputs), Range.exact(0.0))
        batches = [batch.at_port(port) for port, played in enumerate(inputs) for batch in played.output]
        played = Played(rows, sum(batch.num_rows for batch in batches))
        op = self._graph.nodes[name].op
        if name in self._graph.sinks:
            played.sink_bytes = _bytes(op, batches, played)
        elif overrides(op, "forecast"):
            self._forecast(op, runtime, batches, seconds, played)
        else:
            op.open(runtime)
            stack.callback(op.close)
            self._operate(name, batches, played)
        return played

    def _source(self, runtime: Runtime) -> Played:
        op = self._graph.nodes[self._graph.source].op
        op.open(runtime)
        try:
            self.sample = sample = sample_of(op, *self._first, self._chunk_rows)
        finally:
            op.close()
        good = sum(batch.num_rows for batch in sample.batches)
        rejects = [reject for some in sample.rejects for reject in some.rows]
        rows_out = sample.rows.times(share(good, sample.taken))
        return Played(sample.rows, sample.taken, list(sample.batches), rejects, rows_out)

    def _forecast(
        self, op: BaseOperator, runtime: Runtime, batches: list[Batch], seconds: float, played: Played
    ) -> None:
        whole = played.rows.is_exact and played.rows.likely <= played.given
        began = self._clock()
        played.forecast = found = op.forecast(runtime, batches, Task(played.rows, whole, seconds, self._results))
        self._seconds = max(self._seconds - (self._clock() - began - found.prepare_s), 0.0)
        played.output, played.rows_out = list(found.output), found.rows_out
        played.rejects = [reject for some in found.rejects for reject in some.rows]

    def _operate(self, name: str, batches: list[Batch], played: Played) -> None:
        op = self._graph.nodes[name].op
        began = self._clock()
        if overrides(op, "run"):
            items = op.run(Given([*batches, ChunkEnd(0, played.given)]))
        else:
            played.given = 0
            items = run_by_batch(op.process, op.finish, self._in_time(batches, played), op.on_error)
        for item in items:
            if isinstance(item, Batch):
                played.output.append(item)
            elif isinstance(item, Rejects):
                played.rejects += item.rows
        played.row_s = (self._clock() - began) / max(played.given, 1)
        made = sum(batch.num_rows for batch in played.output)
        played.rows_out = played.rows.times(made / played.given if played.given else 1.0)

    def _in_time(self, batches: list[Batch], played: Played) -> Iterator[Item]:
        """As many of the rows as an operator gets through in a few seconds; counts them."""
        until = self._clock() + OPERATOR_S
        for batch in batches:
            for first in range(0, batch.num_rows, SLICE_ROWS):
                if self._clock() > until:
                    break
                piece = replace(batch, data=batch.data.slice(first, SLICE_ROWS))
                played.given += piece.num_rows
                yield piece
        yield ChunkEnd(0, played.given)


def _leave_without(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    leave()


def _bytes(op: BaseOperator, batches: list[Batch], played: Played) -> Range:
    """What the rows of a sink take on the disk."""
    if not played.given:
        return Range(0.0, 0.0, 0.0 if not played.rows.likely else float("inf"))
    if (size := op.encoded_bytes(batches)) is not None:
        # Larger files compress better, and longer rows than those of the sample may come.
        each = size / played.given
        return Range(played.rows.low * each * 0.6, played.rows.likely * each, played.rows.high * each * 1.3)
    each = sum(batch.data.get_total_buffer_size() for batch in batches) / played.given
    return Range(played.rows.low * each * 0.1, played.rows.likely * each * 0.5, played.rows.high * each * 1.5)
