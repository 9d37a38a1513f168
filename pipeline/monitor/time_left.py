"""Estimate the work that a run has left, from the cost of its finished rows.

Work is measured in completion tokens for stages that generate, prompt tokens for other stages with a model, and rows in
a graph without tokens. For each stage: remaining rows x mean tokens per row, less the tokens that rows in flight have
already. The remaining rows follow from the source's rows and the shares that the stages upstream pass on.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.api.meter import StageMeter
from pipeline.dataflow.graph import Graph

REST = 0.5
"""A row is expected to need at least this share of the mean length, also if it is longer than the mean already."""
UNFINISHED = 0.5
"""Share of the tokens of rows in flight that counts in the mean length. Short rows finish first, so the mean of the
finished ones alone is too low at first. 1 would be right if every token were equally likely to be the last, and is too
high for rows of equal length."""


def work_done(graph: Graph, meters: Mapping[str, StageMeter], finished_rows: int) -> int:
    """Return the work done so far. `finished_rows`: source rows, for a graph without tokens."""
    each = [meters[name] for name in graph.order]
    tokens = sum(m.tokens_in if m.completed is None else m.tokens_out for m in each)
    return tokens if tokens or any(m.completed is not None for m in each) else finished_rows


def work_left(
    graph: Graph, meters: Mapping[str, StageMeter], source_rows: int, finished_rows: int
) -> tuple[float | None, str]:
    """Return the work left and an empty text, or None and the reason why it cannot be estimated yet. `source_rows`,
    `finished_rows`: source rows of this attempt, and how many of them are finished."""
    work, has_tokens = 0.0, False
    passed: dict[str, float] = {}
    for name in graph.order:
        meter, inputs = meters[name], graph.nodes[name].inputs
        growth = _growth(meter)
        expected = sum(passed[i] for i in inputs) * growth if inputs else float(source_rows)
        done = meter.rows_out + meter.rejected
        passed[name] = expected * (meter.rows_out / done if done else 1.0)
        unfinished = max(0.0, expected - done)
        if (completed := meter.completed) is not None:
            has_tokens = True
            if not completed.rows and unfinished >= 1:
                return None, f"{name} has finished no row yet"
            in_flight = meter.tokens_out - completed.tokens
            mean = (completed.tokens + UNFINISHED * in_flight) / max(1, completed.rows)
            work += max(unfinished * mean - in_flight, unfinished * mean * REST)
        elif meter.tokens_in:
            has_tokens = True
            if not done:
                return None, f"{name} has finished no row yet"
            work += unfinished * meter.tokens_in / done
    return (work if has_tokens else float(source_rows - finished_rows)), ""


def _growth(meter: StageMeter) -> float:
    """Return how many rows a node makes of one. Rows to be merged are held first, so only those count that were."""
    rows = meter.rows_out + meter.rejected
    taken = meter.rows_in if meter.expanded >= 0 else rows - meter.expanded
    return (taken + meter.expanded) / taken if taken else 1.0
