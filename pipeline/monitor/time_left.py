"""Outlook: how much work a run has left, judged by what its rows have cost so far.

The work of a graph that generates is its completion tokens; of stages that only read, what they read; without tokens,
rows. For each stage: completions still to come x their mean length so far, less what rows in flight have already.
How many come follows from the rows of the source and the shares that the stages before it pass on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.api.meter import StageMeter

REST = 0.5
"""A row that has outlived the mean is taken to need that share of it still."""
UNFINISHED = 0.5
"""Short rows finish first, so the mean of those that are finished is too low for a while. Counting all tokens of rows
in flight would be right where every token is as likely to be the last, and too high for rows of equal length."""


class Outlook:
    """Judges how much work a graph has left.

    Args:
        inputs: the inputs of each node, in topological order; the source has none.
    """

    def __init__(self, inputs: Mapping[str, Sequence[str]]) -> None:
        self._inputs = inputs

    def done(self, meters: Mapping[str, StageMeter], finished_rows: int) -> int:
        """Return the work that is done. `finished_rows`: source rows, for a graph without tokens."""
        each = [meters[name] for name in self._inputs]
        tokens = sum(m.tokens_in if m.completed is None else m.tokens_out for m in each)
        return tokens if tokens or any(m.completed is not None for m in each) else finished_rows

    def left(self, meters: Mapping[str, StageMeter], source_rows: int, finished_rows: int) -> tuple[float | None, str]:
        """Return what is left of an attempt that has `source_rows` in all, of which `finished_rows` are finished: in
        tokens, or in rows where no stage has tokens. None where it cannot be known yet, and why."""
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
        """Rows that each node will have worked on at the end."""
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
