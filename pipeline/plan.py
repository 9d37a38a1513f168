"""What a job would do, for `dry_run=plan` and, ahead of the estimate, `dry_run=true`."""

from __future__ import annotations

from pipeline.graph import Graph
from pipeline.settings import JobSettings


def plan_lines(settings: JobSettings, graph: Graph) -> list[str]:
    """The nodes with their operators and the columns that they give, and where the results would go."""
    lines = [
        f"job {settings.name}: {len(graph.nodes)} nodes, chunks of {settings.chunk_rows} rows, seed {settings.seed}"
    ]
    width = max(len(name) for name in graph.order)
    for name in graph.order:
        node, schema = graph.nodes[name], graph.schemas[name]
        source = f" <- {', '.join(node.inputs)}" if node.inputs else ""
        gives = "sink" if schema is None else ", ".join(f"{f.name}: {f.type}" for f in schema)
        lines.append(f"  {name:{width}}  {type(node.op).__name__}{source}: {gives}")
    return [*lines, f"results would go to {settings.directory}"]
