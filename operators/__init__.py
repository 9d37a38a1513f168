"""The work: sources, render, tokenize, batch forming, generation, transforms and sinks.

Each file in this folder has operators that a job can name; what they are made of is in the folders.
"""

from __future__ import annotations

CATALOG = {
    "Sources": ("sources.read_prompts.ReadPrompts",),
    "From rows to token ids": ("render.Render", "tokens.Tokenize", "batch_by_length.BatchByLength"),
    "With the model": (
        "generate.Generate",
        "score.Score",
        "choose.Choose",
        "embed.Embed",
        "rerank.Rerank",
        "classify.Classify",
    ),
    "Columns": (
        "map.Map",
        "columns.Select",
        "columns.Rename",
        "assign.Assign",
        "parse_json.ParseJson",
        "tokens.Split",
        "say.Say",
        "grade.Grade",
    ),
    "Rows": (
        "filter.Filter",
        "dedup.Dedup",
        "sample_rows.Sample",
        "limit.Limit",
        "best_of.BestOf",
        "best_of.Majority",
        "gather.Gather",
        "gather.Pairs",
        "explode.Explode",
        "pages.Pages",
        "lookup.Lookup",
        "union.Union",
    ),
    "Your own": ("call.Call",),
    "Sinks": ("sinks.write_rows.WriteRows",),
}
"""By purpose, the operators that a job can name: paths below `operators.`."""


def targets() -> list[str]:
    """List the classes that a job can write as `_target_`."""
    return [f"{__name__}.{path}" for paths in CATALOG.values() for path in paths]
