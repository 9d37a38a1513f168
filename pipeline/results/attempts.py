"""The attempts of a run, read from its metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from pipeline.results.reader import Results
from pipeline.run_dir.state import RunStatus

UNKNOWN_END = "killed"
"""State of an attempt that left metrics but no record of its end."""
STILL_OPEN = "running, or killed"
"""State of the last attempt, if the two cannot be told apart."""


@dataclass(frozen=True)
class AttemptFigures:
    """One attempt.

    Args:
        number: 1 for the first.
        state: status at its end.
        exit_code: None if it was killed.
        started_at: ISO 8601; None if it was killed.
        wall_s: duration; if it was killed, up to its last metrics.
        rows: source rows that it committed; None if it was killed.
        tokens_in, tokens_out: prompt tokens processed, completion tokens generated.
        begins_s: running time of all attempts before it, without the pauses between them.
        versions, machine: of software and hardware; empty if it was killed.
    """

    number: int
    state: str
    exit_code: int | None
    started_at: str | None
    wall_s: float
    rows: int | None
    tokens_in: int
    tokens_out: int
    begins_s: float
    versions: Mapping[str, Any]
    machine: Mapping[str, Any]


def attempts(results: Results) -> list[AttemptFigures]:
    """Return all attempts that have left metrics, in order."""
    table = results.metrics("run")
    ended = {} if table is None else {row["attempt"]: row for row in table.collect().to_dicts()}
    seen = _from_stages(results)
    numbers = sorted({*ended, *seen})
    found: list[AttemptFigures] = []
    for n in numbers:
        known = ended.get(n) or seen[n]
        open_end = n == numbers[-1] and results.manifest.get("status") == RunStatus.RUNNING
        attempt = AttemptFigures(
            number=n,
            state=known.get("state") or (STILL_OPEN if open_end else UNKNOWN_END),
            exit_code=known.get("exit_code"),
            started_at=known.get("started_at"),
            wall_s=max(known.get("wall_s") or 0.0, seen.get(n, {}).get("t_s") or 0.0),
            rows=known.get("rows"),
            tokens_in=known.get("tokens_in") or 0,
            tokens_out=known.get("tokens_out") or 0,
            begins_s=running_s(found),
            versions=json.loads(known.get("versions") or "{}"),
            machine=json.loads(known.get("machine") or "{}"),
        )
        found.append(attempt)
    return found


def running_s(found: Sequence[AttemptFigures]) -> float:
    """Return the total running time of the attempts."""
    return sum(attempt.wall_s for attempt in found)


def on_one_axis(table: pl.LazyFrame, found: Sequence[AttemptFigures]) -> pl.LazyFrame:
    """Return a metrics table with `t_s` as running time over all attempts, not since the start of each."""
    begins = pl.LazyFrame(
        {"attempt": [a.number for a in found], "begins_s": [a.begins_s for a in found]},
        schema={"attempt": pl.Int32, "begins_s": pl.Float64},
    )
    joined = table.join(begins, on="attempt")
    return joined.with_columns(t_s=pl.col("t_s") + pl.col("begins_s")).drop("begins_s")


def _from_stages(results: Results) -> dict[int, dict[str, Any]]:
    """Return the last `t_s` and the tokens of each attempt, from metrics/stages.parquet."""
    stages = results.metrics("stages")
    if stages is None:
        return {}
    columns = (pl.col("t_s").max(), pl.col("tokens_in").sum(), pl.col("tokens_out").sum())
    return {row["attempt"]: row for row in stages.group_by("attempt").agg(*columns).collect().to_dicts()}
