"""What a job would do, for `dry_run=plan` and, ahead of the estimate, `dry_run=true`."""

from __future__ import annotations

from pipeline.footprint import memory_lines
from pipeline.graph import Graph
from pipeline.settings import JobSettings, TargetSettings

BUDGETS = ("max_rows", "max_rounds", "max_tokens", "max_minutes")


def plan_lines(settings: JobSettings, graph: Graph) -> list[str]:
    """The nodes with their operators and the columns that they give, what memory they take, where results would go."""
    rows = settings.chunk_rows if graph.goal is None else settings.target.rows_of_chunk(settings.chunk_rows)
    lines = [f"job {settings.name}: {len(graph.nodes)} nodes, chunks of {rows} rows, seed {settings.seed}"]
    width = max(len(name) for name in graph.order)
    for name in graph.order:
        node, schema = graph.nodes[name], graph.schemas[name]
        source = f" <- {', '.join(node.inputs)}" if node.inputs else ""
        gives = "sink" if schema is None else ", ".join(f"{f.name}: {f.type}" for f in schema)
        lines.append(f"  {name:{width}}  {graph.title(name)}{source}: {gives}")
    lines += [] if graph.goal is None else [_target_line(settings.target)]
    url = getattr(settings.output, "publish", None)
    where = f"results would go to {settings.directory}" + (f" and {url}" if url else "")
    return [*lines, *memory_lines(settings, graph), where]


def _target_line(target: TargetSettings) -> str:
    limits = [f"{key}={value:g}" for key in BUDGETS if (value := getattr(target, key)) is not None]
    until = f", or until {' or '.join(limits)} is spent" if limits else ""
    return f"rows are made until {target.accepted_rows} have passed all nodes{until}"
