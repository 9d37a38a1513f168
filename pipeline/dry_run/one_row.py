"""Run the nodes before a prompt on one row of the input, in this thread and in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from pipeline.api.errors import ConfigError, InputError, NodeFailed, PipelineError
from pipeline.api.protocols import Forecasts, ListInbox, MakesPrompts, Operator, Source
from pipeline.api.records import ROW, Batch, ChunkEnd, Rejects
from pipeline.api.runtime import Resources
from pipeline.api.user_code import user_code
from pipeline.config.build import build_graph
from pipeline.dataflow.graph import Graph
from pipeline.dataflow.kept_errors import KeptErrors
from pipeline.dry_run.sample import InputSample
from pipeline.dry_run.sample_run import NodeResult, SampleRun
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
    if made := next((n for n in path if isinstance(graph.nodes[n].op, Forecasts)), None):
        raise ConfigError(
            f"the prompt of '{wanted}' needs what '{made}' generates; run the job with output.prompt_text=true, which"
            " keeps every prompt"
        )
    # A node with `run` or `finish` may look at a whole chunk.
    kinds = [type(graph.nodes[n].op) for n in path[1:]]
    alone = all((kind.run, kind.finish) == (Operator.run, Operator.finish) for kind in kinds)
    read = partial(_sample, row=row, chunk_rows=settings.chunk_rows, alone=alone)
    tried = SampleRun(graph, process, read, settings.directory, node_s=math.inf)
    with closing(tried.run(path)) as ran:
        for node in ran:
            if node == wanted and isinstance(maker := graph.nodes[wanted].op, MakesPrompts):
                yield from _prompt_lines(maker, wanted, row, tried.nodes, graph.keepers.get(wanted))


def _prompt_lines(
    op: MakesPrompts, name: str, row: int, nodes: Mapping[str, NodeResult], keeper: KeptErrors | None
) -> Iterator[str]:
    made = (batch.data for batch in nodes[name].output)
    batches = made if keeper is None else (keeper.without_failed(data) for data in made)
    rows = [data.filter(pa.array(np.asarray(data.column(ROW.name)) == row)) for data in batches]
    if not any(data.num_rows for data in rows):
        left = [(node, reject) for node, of in nodes.items() for reject in (*of.rejects, *of.kept) if reject.row == row]
        why = "; ".join(f"rejected by '{node}': {reject.reason}" for node, reject in left)
        raise InputError(f"row {row} has no prompt at '{name}': {why or 'a node has dropped it'}")
    for data in rows:
        for i in range(data.num_rows):
            with user_code(partial(NodeFailed, name), PipelineError):
                lines = list(op.prompt_lines(data.slice(i, 1)))
            yield from lines


def _node(graph: Graph, name: str | None) -> str:
    """Return the node `name`, or the first of the step `name`, that makes prompts."""
    made = [node for node in graph.order if isinstance(graph.nodes[node].op, MakesPrompts)]
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


def _sample(source: Operator, row: int, chunk_rows: int, *, alone: bool) -> InputSample:
    """Return the chunk of the input that has the row, or the row alone."""
    if row >= chunk_rows and isinstance(source, Source):
        source.seek(row // chunk_rows)
    sample, last = InputSample(math.inf), -1
    for item in source.run(ListInbox()):
        if isinstance(item, ChunkEnd):
            if last >= row:
                return sample
        elif isinstance(item, Batch) and item.num_rows:
            rows = np.asarray(item.data.column(ROW.name))
            last = max(last, int(rows.max()))
            wanted = rows == row if alone else rows // chunk_rows == row // chunk_rows
            sample.take(Batch(0, item.data.filter(pa.array(wanted))))
        elif isinstance(item, Rejects):
            last = max(last, *(reject.row for reject in item.rows))
            sample.take(item)
    if last < row:
        raise InputError(
            f"row={row}: the input ends before it{f', at row {last}' if last >= 0 else ''}; rows count from 0"
        )
    return sample
