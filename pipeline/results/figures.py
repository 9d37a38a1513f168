"""Figures of a run, from its metrics and rows: totals, seconds of stages, steps of the model, lengths, finish reasons.

Everything is summed where it is read, so that neither a long run nor millions of rows fill the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import accumulate
from typing import Any, NamedTuple

import polars as pl

from pipeline.monitor.wording import number, seconds, share
from pipeline.results.attempts import attempts, running_s
from pipeline.results.reader import Results

ROW_COUNTS = {
    "source_rows": "rows done",
    "data_rows": "rows in data",
    "error_rejects": "rows with errors",
    "filtered_rejects": "rows filtered out",
}
"""By key of the manifest's counts: what they are called."""
STEP_PARTS = ("form_s", "decode_s", "sample_s")
UNFILLED = "unfilled_"
"""Columns of metrics/steps.parquet that begin so count empty slots, by cause."""
OF_A_MOMENT = ("attempt", "t_s", "interval_s", "node", "queue_rows")
"""Columns of metrics/stages.parquet that cannot be added up."""
TOKEN_COUNTS = ("prompt_token_count", "completion_token_count", "token_count")
FINISH_REASON = "finish_reason"


class Figure(NamedTuple):
    """A figure of a run, None where it is not known or no number, and as text."""

    value: float | None
    text: str


@dataclass(frozen=True)
class Lengths:
    """Counts of lengths: `counts[i]` rows have the length `values[i]`. `values` ascend."""

    values: Sequence[int]
    counts: Sequence[int]

    @property
    def rows(self) -> int:
        """Rows that have a length."""
        return sum(self.counts)

    @property
    def total(self) -> int:
        """All lengths added up."""
        return sum(value * count for value, count in zip(self.values, self.counts, strict=True))

    def quantile(self, share: float) -> int:
        """The smallest length that at least `share` of the rows do not exceed. There is a row."""
        reached = accumulate(self.counts)
        return next(v for v, n in zip(self.values, reached, strict=True) if n >= share * self.rows)


def run_figures(results: Results) -> dict[str, Figure]:
    """The figures of the whole run, by what they are called, in the order in which they are shown."""
    found = attempts(results)
    took = running_s(found)
    tokens = {"prompt tokens": sum(a.tokens_in for a in found), "completion tokens": sum(a.tokens_out for a in found)}
    used = slots_used(results)
    numbers = {
        **{name: results.counts.get(key, 0) for key, name in ROW_COUNTS.items()},
        "running time": took,
        **tokens,
        **{f"{name} a second": n / took for name, n in tokens.items() if took and n},
        "slots in use": used,
        "attempts": len(found),
    }
    texts = {"running time": seconds(took), "slots in use": share(used or 0, 1)}
    return {name: Figure(n, texts.get(name) or number(n)) for name, n in numbers.items() if n is not None}


def stage_times(results: Results) -> list[dict[str, Any]]:
    """`node` and the sums of counters and clocks of each stage, in the order of the graph, parts after their node."""
    stages = results.metrics("stages")
    if stages is None:
        return []
    counted = [c for c in stages.collect_schema().names() if c not in OF_A_MOMENT]
    sums = stages.group_by("node").agg(pl.col(counted).sum()).collect().to_dicts()
    order = graph_order(results.config)

    def place(row: dict[str, Any]) -> tuple[int, str]:
        node = row["node"].partition("/")[0]
        return (order.index(node) if node in order else len(order), row["node"])

    return sorted(sums, key=place)


def graph_order(config: Mapping[str, Any]) -> list[str]:
    """The nodes of a job, each behind those that it reads."""
    nodes: Mapping[str, Any] = config.get("nodes") or {}
    return list(TopologicalSorter({name: node.get("inputs", ()) for name, node in nodes.items()}).static_order())


def causes_of(steps: pl.LazyFrame) -> list[str]:
    """The columns of empty slots that `steps` has."""
    return [name for name in steps.collect_schema().names() if name.startswith(UNFILLED)]


def slots_used(results: Results) -> float | None:
    """Share of the slots in which rows decoded, over all steps that decode; None where nothing was decoded."""
    steps = results.metrics("steps")
    if steps is None:
        return None
    decoding = steps.filter(pl.col("decode_tokens") > 0)
    used, empty = pl.col("rows").sum(), pl.sum_horizontal(pl.col(causes_of(steps)).sum())
    found = decoding.select(used=used, slots=used + empty).collect().row(0)
    return found[0] / found[1] if found[1] else None


def step_sums(results: Results) -> list[dict[str, Any]]:
    """Steps that compute prompts, and those that only generate: `prompts` (bool), `steps`, `tokens`, and STEP_PARTS."""
    steps = results.metrics("steps")
    if steps is None:
        return []
    tokens = (pl.col("prefill_tokens") + pl.col("decode_tokens")).cast(pl.Int64).sum()
    grouped = steps.group_by(prompts=pl.col("prefill_tokens") > 0)
    found = grouped.agg(pl.len().alias("steps"), tokens.alias("tokens"), pl.col(STEP_PARTS).sum())
    return found.sort("prompts", descending=True).collect().to_dicts()


def columns_named(rows: pl.LazyFrame, names: Sequence[str]) -> list[str]:
    """The columns of `rows` that have one of `names`, or that behind a prefix (`judge_completion`), in their order."""
    return [c for c in rows.collect_schema().names() if any(c == n or c.endswith(f"_{n}") for n in names)]


def lengths(rows: pl.LazyFrame, column: str) -> Lengths:
    """The values of a column of token counts."""
    found = counted(rows, column).sort(column).to_dict(as_series=False)
    return Lengths(found[column], found["rows"])


def counted(rows: pl.LazyFrame, column: str) -> pl.DataFrame:
    """The counts of each value of `column`, nulls left out: `column` and `rows`."""
    grouped = rows.select(column).drop_nulls().group_by(column).agg(pl.len().cast(pl.Int64).alias("rows"))
    return grouped.collect(engine="streaming")


def token_columns(rows: pl.LazyFrame) -> list[str]:
    """The columns of token counts."""
    schema = rows.collect_schema()
    return [column for column in columns_named(rows, TOKEN_COUNTS) if schema[column].is_integer()]
