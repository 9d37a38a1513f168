"""Outlook: estimate the work that a run has left, from the cost of its finished rows.

Work is measured in completion tokens for stages that generate, prompt tokens for other stages with a model, and rows in
a graph without tokens. For each stage: remaining rows x mean tokens per row, less the tokens that rows in flight have
already. The remaining rows follow from the source's rows and the shares that the stages upstream pass on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.api.meter import StageMeter

REST = 0.5
"""A row is expected to need at least this share of the mean length, also if it is longer than the mean already."""
UNFINISHED = 0.5
"""Share of the tokens of rows in flight that counts in the mean length. Short rows finish first, so the mean of the
finished ones alone is too low at first. 1 would be right if every token were equally likely to be the last, and is too
high for rows of equal length."""


class Outlook:
    """Estimates the work that a graph has left.

    Args:
        inputs: the inputs of each node, in topological order; the source has none.
    """

    def __init__(self, inputs: Mapping[str, Sequence[str]]) -> None:
        self._inputs = inputs

    def done(self, meters: Mapping[str, StageMeter], finished_rows: int) -> int:
        """Return the work done so far. `finished_rows`: source rows, for a graph without tokens."""
        each = [meters[name] for name in self._inputs]
        tokens = sum(m.tokens_in if m.completed is None else m.tokens_out for m in each)
        return tokens if tokens or any(m.completed is not None for m in each) else finished_rows

    def left(self, meters: Mapping[str, StageMeter], source_rows: int, finished_rows: int) -> tuple[float | None, str]:
        """Return the work left and an empty text, or None and the reason why it cannot be estimated yet.

        Args:
            source_rows, finished_rows: source rows of this attempt, and how many of them are finished.
        """
        work, has_tokens = 0.0, False
        for name, rows in self._expected(meters, source_rows).items():
            meter = meters[name]
            done = meter.rows_out + meter.rejected
            unfinished = max(0.0, rows - done)
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

    def _expected(self, meters: Mapping[str, StageMeter], source_rows: int) -> dict[str, float]:
        """Return how many rows each node will have processed at the end."""
        rows: dict[str, float] = {}
        passed: dict[str, float] = {}
        for name, inputs in self._inputs.items():
            meter = meters[name]
            rows[name] = sum(passed[i] for i in inputs) * _growth(meter) if inputs else float(source_rows)
            done = meter.rows_out + meter.rejected
            passed[name] = rows[name] * (meter.rows_out / done if done else 1.0)
        return rows


def _growth(meter: StageMeter) -> float:
    return (meter.rows_in + meter.expanded) / meter.rows_in if meter.rows_in else 1.0
