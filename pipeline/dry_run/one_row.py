"""Run the nodes before a prompt on one row of the input, in this thread and in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.api.errors import ConfigError, InputError, NodeFailed, PipelineError
from pipeline.api.meter import StageMeter
from pipeline.api.protocols import BaseOperator, ListInbox, overrides
from pipeline.api.records import ROW, Batch, ChunkEnd, Item, Reject, Rejects, Shard
from pipeline.api.runtime import Resources, RunContext, Runtime
from pipeline.api.user_code import closing, user_code
from pipeline.config.build import build_graph
from pipeline.dataflow.graph import Graph
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.settings import JobSettings, TargetSettings


def prompt_of_row(settings: JobSettings, row: int, name: str | None, process: Resources) -> Iterator[str]:
    """Yield the lines that show the prompt of a row of the input, from the operator that makes its tokens.

    Args:
        row: its number, from 0.
        name: of the node that makes the prompt, or of its step; None for the first one.

    Raises:
        ConfigError: no node makes prompts, or the one asked for needs what a model has generated.
        InputError: the input has no such row, or a node has rejected it.
    """
    graph = build_graph(replace(settings, target=TargetSettings()))
    wanted = _node(graph, name)
    path = _before(graph, wanted)
    if made := next((n for n in path if overrides(graph.nodes[n].op, "forecast")), None):
        raise ConfigError(
            f"the prompt of '{wanted}' needs what '{made}' generates; run the job with output.prompt_text=true, which"
            " keeps every prompt"
        )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prompt-")))
        context = RunContext(folder, process, MetricsTables(folder).get)
        stack.callback(context.resources.close)
        rejects: list[tuple[str, Reject]] = []
        found: dict[str, list[Batch]] = {}
        alone = not any(overrides(graph.nodes[n].op, "run") or overrides(graph.nodes[n].op, "finish") for n in path[1:])
        for node in path:
            op = graph.nodes[node].op
            stack.callback(closing(node, op.close))  # first: one that opens half way is closed, too
            with user_code(partial(NodeFailed, node), PipelineError):  # the run would end with the same
                op.open(Runtime(context, node, graph.depth(node), StageMeter(node)))
                if node == graph.source:
                    items = list(_chunk(op, row, settings.chunk_rows, alone=alone))
                else:
                    inputs = graph.nodes[node].inputs
                    given: list[Item] = [b.at_port(port) for port, i in enumerate(inputs) for b in found[i]]
                    items = list(
                        op.run(ListInbox(iter([*given, ChunkEnd(0, sum(b.num_rows for b in found[inputs[0]]))])))
                    )
            found[node] = [item for item in items if isinstance(item, Batch)]
            rejects += [(node, r) for item in items if isinstance(item, Rejects) for r in item.rows if r.row == row]
        rows = [kept for batch in found[wanted] if (kept := _only(batch.data, row)).num_rows]
        if not rows:
            raise InputError(f"row {row} has no prompt at '{wanted}': {_why(rejects)}")
        for data in rows:
            for i in range(data.num_rows):
                with user_code(partial(NodeFailed, wanted), PipelineError):
                    lines = list(graph.nodes[wanted].op.prompt_lines(data.slice(i, 1)))
                yield from lines


def _node(graph: Graph, name: str | None) -> str:
    """Return the node `name`, or the first of the step `name`, that makes prompts."""
    made = [node for node in graph.order if overrides(graph.nodes[node].op, "prompt_lines")]
    if not made:
        raise ConfigError("no node of this job makes the tokens of a prompt (operators.tokens.Tokenize)")
    asked = [node for node in made if name in (None, node, graph.nodes[node].step)]
    if not asked:
        raise ConfigError(f"node={name} makes no prompt; those that do are {', '.join(made)}")
    return asked[0]


def _before(graph: Graph, name: str) -> list[str]:
    """Return the nodes that `name` needs, and itself, in the order of the graph."""
    needed = {name}
    for node in reversed(graph.order):
        needed |= set(graph.nodes[node].inputs) if node in needed else set()
    return [node for node in graph.order if node in needed]


def _chunk(source: BaseOperator, row: int, chunk_rows: int, *, alone: bool) -> Iterator[Item | Shard]:
    """Yield the chunk of the input that has the row, or the row alone."""
    if row >= chunk_rows and overrides(source, "seek"):
        source.seek(row // chunk_rows)
    last = -1
    for item in source.run(ListInbox()):
        if isinstance(item, ChunkEnd):
            if last >= row:
                return
            continue
        if isinstance(item, Batch) and item.num_rows:
            last = max(last, int(np.asarray(item.data.column(ROW.name)).max()))
        elif isinstance(item, Rejects):
            last = max(last, *(reject.row for reject in item.rows))
        if isinstance(item, Batch):
            same = item.data if not alone else _only(item.data, row)
            in_chunk = np.asarray(same.column(ROW.name)) // chunk_rows == row // chunk_rows
            yield Batch(0, same.filter(pa.array(in_chunk)))
        else:
            yield item
    if last < row:
        raise InputError(
            f"row={row}: the input ends before it{f', at row {last}' if last >= 0 else ''}; rows count from 0"
        )


def _only(data: pa.RecordBatch, row: int) -> pa.RecordBatch:
    return data.filter(pa.array(np.asarray(data.column(ROW.name)) == row))


def _why(rejects: list[tuple[str, Reject]]) -> str:
    return "; ".join(f"rejected by '{node}': {reject.reason}" for node, reject in rejects) or "a node has dropped it"
