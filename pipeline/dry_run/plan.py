"""The plan of a job, printed by `dry_run=plan` and, before the estimate, by `dry_run=true`."""

from __future__ import annotations

import pyarrow as pa

from pipeline.dataflow.graph import Graph
from pipeline.dataflow.target_progress import Budget
from pipeline.run.memory_check import memory_lines
from pipeline.settings import JobSettings, TargetSettings


def plan_lines(settings: JobSettings, graph: Graph) -> list[str]:
    """Return a line per node with its operator and column changes, then memory needs and the place of the results."""
    rows = settings.chunk_rows if graph.target is None else settings.target.rows_of_chunk(settings.chunk_rows)
    lines = [f"job {settings.name}: {len(graph.nodes)} nodes, chunks of {rows} rows, seed {settings.seed}"]
    width = max(len(name) for name in graph.order)
    for name in graph.order:
        node, schema = graph.nodes[name], graph.schemas[name]
        source = f" <- {', '.join(node.inputs)}" if node.inputs else ""
        first = graph.schemas[node.inputs[0]] if node.inputs else None
        lines.append(f"  {name:{width}}  {node.op.title}{source}: {_columns(first, schema)}")
    lines += [] if graph.target is None else [_target_line(settings.target)]
    url = getattr(settings.output, "publish", None)
    where = f"results would go to {settings.directory}" + (f" and {url}" if url else "")
    return [*lines, *memory_lines(settings, graph), where]


def _columns(given: pa.Schema | None, gives: pa.Schema | None) -> str:
    """Describe the columns of a source, or those that another node adds, changes or drops."""
    if gives is None:
        return "writes the rows"
    before = {} if given is None else {f.name: f.type for f in given}
    new = ", ".join(f"{f.name}: {f.type}" for f in gives if before.get(f.name) != f.type)
    gone = [name for name in before if name not in gives.names]
    told = [*([f"adds {new}" if before else new] if new else []), *([f"drops {', '.join(gone)}"] if gone else [])]
    return "; ".join(told) or "the same columns"


def _target_line(target: TargetSettings) -> str:
    limits = [budget.text(target) for budget in Budget if budget.limit(target) is not None]
    until = f", or until {' or '.join(limits)} is spent" if limits else ""
    return f"rows are made until {target.accepted_rows} have passed all nodes{until}"
