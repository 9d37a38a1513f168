"""Choice of a run's verdict column, where the user names none, and of the labels that people choose from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from pipeline.api.errors import ConfigError
from pipeline.labels.judged_rows import as_verdict
from pipeline.labels.sample import MOST_VALUES, TEXTS, By, Names, different_values, values_of


def guessed_by(rows: pl.LazyFrame, shown: Names, config: Mapping[str, Any]) -> By | None:
    """Return strata where the user names none: of the verdict and of its probability if rows have that. The verdict is
    the last of the columns `shown` that has a probability, else that is a step with choices, else of booleans, else the
    one with few texts; None if there is none of these.

    Raises:
        ConfigError: several columns have few texts, and nothing tells which is the verdict.
    """
    types, many = rows.collect_schema(), rows.select(pl.len()).collect().item()
    few = {name: n for name in shown if types[name] in TEXTS and (n := different_values(rows, name)) <= MOST_VALUES}
    likely = {name: f"{name}_probability" for name in few if _is_number(types, f"{name}_probability")}
    chosen = [name for name in few if any(True for _ in _choices(config, name))]
    booleans = [name for name in few if types[name] == pl.Boolean]
    if sure := list(likely) or chosen or booleans:
        return By(sure[-1], (sure[-1],), likely.get(sure[-1]))
    texts = [name for name, different in few.items() if different <= max(2, many // 5)]
    if len(texts) > 1:
        raise ConfigError(f"--columns: each of {', '.join(texts)} can be the verdict; name it with --by")
    return By(texts[0], (texts[0],)) if texts else None


def choices_of(rows: pl.LazyFrame, column: str, config: Mapping[str, Any]) -> Sequence[str]:
    """Return what people may say instead of a verdict: the choices of its step, though the judge may never have made
    one, both booleans, else the values that rows have.

    Raises:
        ConfigError: the column has too many values for a verdict, or a single one.
    """
    kind, values = rows.collect_schema()[column], values_of(rows, column)
    if kind == pl.Boolean:
        return ["false", "true"]
    for choices in (*_choices(config, column), *(_choices(config, None) if values else ())):
        written = list(dict.fromkeys(as_verdict(choice, kind) for choice in choices))
        if set(values) <= set(written):
            return written
    if len(values) < 2:
        has = f"the value {values[0]} alone" if values else "no values"
        raise ConfigError(f"column '{column}' has {has}; name what people choose from: --choices yes,no")
    return values


def _choices(config: Mapping[str, Any], step: str | None) -> Iterator[Sequence[str]]:
    """Yield the choices that nodes of a step have; of None: nodes that are of no step."""
    for node in (config.get("nodes") or {}).values():
        op = node.get("op") or {}
        structured = (op.get("sampling") or {}).get("structured") or {}
        for choices in (op.get("options"), structured.get("choices")):
            if node.get("step") == step and choices and isinstance(choices, list):
                yield list(map(str, choices))


def _is_number(types: pl.Schema, name: str) -> bool:
    return name in types and types[name].is_numeric()
