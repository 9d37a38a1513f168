"""Rows that no model completes: what the dataflow costs from a file of rows to a file of results."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import polars as pl

from tools.bench.contenders import JobContender, Spec
from tools.bench.figures import Figures

COPIES = 100
"""Rows of the input for each prompt of the scenario."""
_JOB = """
defaults: [override /model: tiny]
report: false
data: {prompt_column: text}
nodes:
  read: {op: {_target_: operators.sources.read_prompts.ReadPrompts, data: "${data}", chunk_rows: "${chunk_rows}"}}
  filter: {inputs: read, op: {_target_: operators.filter.Filter, where: "score > 0.05 AND label <> 'z'"}}
  map:
    inputs: filter
    op:
      _target_: operators.map.Map
      columns: {words: "ARRAY_LENGTH(STRING_TO_ARRAY(text, ' '))"}
      templates: {question: "Rewrite as {{ label }}: {{ text }}"}
  render:
    inputs: map
    op:
      _target_: operators.render.Render
      model: ${model}
      data: ${data}
      messages: [{role: user, content: "{{ question }}"}]
  dedup: {inputs: render, op: {_target_: operators.dedup.Dedup, columns: [prompt_text]}}
  sample: {inputs: dedup, op: {_target_: operators.sample_rows.Sample, fraction: 0.9}}
  limit: {inputs: sample, op: {_target_: operators.limit.Limit, rows: 1000000000}}
  select: {inputs: limit, op: {_target_: operators.columns.Select, drop: [number]}}
  write: {inputs: select, op: {_target_: operators.sinks.write_rows.WriteRows, output: "${output}"}}
"""


@dataclass(frozen=True)
class Rows(JobContender):
    """A job of nine nodes, of which none asks a model.

    Args:
        read: the format of its input; `overrides` give that of its results.
        copies_each: COPIES.
    """

    read: str = field(default="jsonl", kw_only=True)
    copies_each: int = field(default=COPIES, kw_only=True)

    def command(self, spec: Spec) -> list[str]:
        data, job = spec.folder / f"rows.{self.read}", spec.folder / "job.yaml"
        prompts = spec.workload.rows["prompt"].to_pylist()
        numbers = range(len(prompts) * self.copies_each)
        asked = [i - (i % 50 == 49) for i in numbers]  # one row in fifty is equal to the one before
        columns = {
            "id": [f"r{i}" for i in numbers],
            "number": numbers,
            "text": [f"{i}: {prompts[i % len(prompts)]}" for i in asked],
            "label": ["ab"[i % 2] for i in asked],
            "score": [i % 997 / 997 for i in numbers],
        }
        frame = pl.DataFrame(columns)
        if self.read == "jsonl":
            frame.write_ndjson(data)
        elif self.read == "csv":
            frame.write_csv(data)
        else:
            frame.write_parquet(data)
        job.write_text(_JOB, encoding="utf-8")
        places = [f"data.path={data}", f"output_dir={spec.folder / 'out'}", "progress=none"]
        return [sys.executable, "-m", "pipeline", f"job={job}", *places, *self.overrides]

    def figures(self, spec: Spec, output: str) -> Figures:
        stages = pl.read_parquet(spec.folder / "out/metrics/stages.parquet")
        by_node = stages.group_by("node").agg(pl.col("rows_in", "wall_s").sum())
        rows, wall_s = by_node.select(pl.max("rows_in", "wall_s")).row(0)
        return Figures(
            work_s=wall_s,
            prompt_tokens=0,
            new_tokens=rows,
            note=f"{rows:,} rows; t/s are rows a second",
        )
