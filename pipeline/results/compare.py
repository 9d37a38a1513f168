"""Compare runs: figures of any number of them, settings and rows of two.

Rows are joined, and their texts compared by hashes: without texts in memory, runs may have millions of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from pipeline.api.records import LINEAGE, ROW
from pipeline.config.fingerprint import ABSENT, differences, flat
from pipeline.monitor.wording import seconds, share
from pipeline.results.figures import (
    STEP_PARTS,
    Figure,
    columns_named,
    frequencies,
    quantile,
    run_figures,
    stage_times,
    step_sums,
    token_columns,
)
from pipeline.results.paired import PairedMean, PairedShare, measured, paired
from pipeline.results.reader import Results

Row = Sequence[str]
"""Name of a figure, its value in each run, and the change if there are two of them, empty if it means nothing."""
WIDEST = 40
WORTH_COMPARING = 0.1
"""Busy share of a stage below which its change is not shown: it is noise."""
SMALLEST_CHANGE = 0.05
"""Percent."""
ABOUT_THE_RUN = ("output_dir", "overwrite", "dry_run", "show")
"""Settings that do not describe the job."""
TEXTS = ("completion",)
DIFFERENCES = 3


class Difference(NamedTuple):
    """A row whose values differ. `key`: its join key as text."""

    key: str
    a: Any
    b: Any


class Agreement(NamedTuple):
    """Comparison of a column: number of joined rows with equal values, and the `first` rows that differ."""

    column: str
    equal: int
    first: Sequence[Difference]


@dataclass(frozen=True)
class Joined:
    """Rows of two runs joined by the columns `keys`. `both`, `only_a`, `only_b`: numbers of rows."""

    keys: Sequence[str]
    both: int
    only_a: int
    only_b: int
    columns: Sequence[Agreement]
    shares: Sequence[PairedShare]
    means: Sequence[PairedMean]


def figures(runs: Sequence[Results]) -> list[Row]:
    """Return the figures of all runs, or of some of them, in display order."""
    rows: list[Row] = []
    for name, known in figures_by_name(runs).items():
        if any(f.value or (f.value is None and f.text) for f in known):
            differs = all(f.value is None for f in known) and len({f.text for f in known}) > 1
            rows.append((name, *(f.text for f in known), "differs" if differs else _change([f.value for f in known])))
    return rows


def figures_by_name(runs: Sequence[Results]) -> dict[str, list[Figure]]:
    """Return the figures that any of the runs has, in display order, of each run in turn."""
    sides = [_known(run) for run in runs]
    names = dict.fromkeys(name for side in sides for name in side)
    return {name: [side.get(name, Figure(None, "")) for side in sides] for name in names}


def stages(runs: Sequence[Results]) -> list[Row]:
    """Return busy seconds and busy share of each stage."""
    times = [{stage["node"]: stage for stage in stage_times(run)} for run in runs]
    rows: list[Row] = []
    for node in dict.fromkeys(node for side in times for node in side):
        found = [side.get(node) for side in times]
        cells = [f"{seconds(s['busy_s'])} {share(s['busy_s'], s['wall_s'])}" if s else "" for s in found]
        shares = [s["busy_s"] / s["wall_s"] if s and s["wall_s"] else 0.0 for s in found]
        busy = [s["busy_s"] if s else None for s in found]
        rows.append((node, *cells, _change(busy) if max(shares) >= WORTH_COMPARING else ""))
    return rows


def lines(rows: Sequence[Row], head: Sequence[str] = ()) -> list[str]:
    """Return `rows` as lines in aligned columns. `head`: names of the runs."""
    table: list[Row] = [*([("", *head, "")] if head else []), *rows]
    columns = max((len(row) for row in table), default=1) - 1
    widths = [min(WIDEST, max(len(row[i]) for row in table)) for i in range(columns if table else 0)]
    padded = [[f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)] for row in table]
    return ["  ".join([*cells, row[-1]]).rstrip() for cells, row in zip(padded, table, strict=True)]


def _known(run: Results) -> dict[str, Figure]:
    """Return job, status, fingerprint, model and figures of a run by display name."""
    texts = {
        "job": run.job,
        "status": str(run.manifest.get("status", "")),
        "fingerprint": str(run.manifest.get("fingerprint", {}).get("sha256", ""))[:12],
        "model": _model(run),
    }
    figures_by_name = {name: Figure(None, text) for name, text in texts.items()} | run_figures(run)
    for group in step_sums(run):
        spent = sum(group[part] for part in STEP_PARTS)
        name = "calls that compute prompts" if group["prompts"] else "calls that generate"
        figures_by_name[name] = Figure(spent, f"{group['steps']:,} in {seconds(spent)}")
    for rows, where in run.tables():
        for column in token_columns(rows):
            counts = frequencies(rows, column)
            if len(counts):
                text = f"{quantile(counts, column, 0.5):,} and {quantile(counts, column, 0.95):,}"
                figures_by_name[f"{column}{where}, median and p95"] = Figure(None, text)
    return figures_by_name


def _model(run: Results) -> str:
    model = run.config.get("model")
    if not isinstance(model, dict):
        return ""
    parts = [str(model[key]) for key in ("repo", "file") if model.get(key)]
    return " ".join(parts) or Path(str(model.get("path") or "")).name


def _change(values: Sequence[float | None]) -> str:
    """Format the change of two runs in percent: `+12.3 %`; empty below SMALLEST_CHANGE, if a value is missing, and of
    more runs."""
    a, b = values if len(values) == 2 else (None, None)
    percent = 100 * (b / a - 1) if a and b is not None else 0.0
    return f"{percent:+.1f} %" if abs(percent) >= SMALLEST_CHANGE else ""


def setting_differences(a: Results, b: Results) -> list[str]:
    """Return `key: a -> b` for each setting in config.yaml that differs.

    A group that is passed to a node is listed once, by the key that users type: `runtime.slots`, not
    `nodes.generate.op.runtime.slots`.
    """
    flat_a, flat_b = _settings(a), _settings(b)
    pairs = {k: (flat_a.get(k, ABSENT), flat_b.get(k, ABSENT)) for k in flat_a | flat_b if k not in ABOUT_THE_RUN}
    changed = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    shown = {key: pair for key, pair in changed.items() if changed.get(key.partition(".op.")[2]) != pair}
    return differences({k: pair[0] for k, pair in shown.items()}, {k: pair[1] for k, pair in shown.items()})


def content_differences(a: Results, b: Results) -> list[str]:
    """Return `key: a -> b` for the rest of the fingerprints: content of inputs and model, and user code."""
    settings = _settings(a) | _settings(b)
    sides = [run.manifest.get("fingerprint", {}).get("keys", {}) for run in (a, b)]
    return differences(*({k: v for k, v in side.items() if k not in settings} for side in sides))


def _settings(run: Results) -> dict[str, Any]:
    return {key: value for group, inner in run.config.items() for key, value in flat(str(group), inner)}


def joined(a: Results, b: Results, folder: str) -> Joined | None:
    """Join the rows of `folder` of both runs; None if one has no rows there, or no key tells the rows of both apart."""
    rows_a, rows_b = a.rows(folder), b.rows(folder)
    if rows_a is None or rows_b is None:
        return None
    keys = join_keys(a, b, rows_a, rows_b)
    if not keys:
        return None
    booleans, numbers = measured(rows_a, rows_b, keys)
    columns = _compared(rows_a, rows_b, keys, booleans)
    hashes, values = [pl.col(c).hash() for c in columns], [pl.col(c) for c in (*booleans, *numbers)]
    left, right = _side("a", rows_a, keys, hashes).with_row_index("place"), _side("b", rows_b, keys, hashes)
    pairs = left.join(right, on=_names(keys), how="full", coalesce=True).collect(engine="streaming")
    both = pairs.filter(pl.col("in a") & pl.col("in b"))
    same = {c: both[f"a {c}"] == both[f"b {c}"] for c in columns}
    measures = _side("a", rows_a, keys, values).join(_side("b", rows_b, keys, values), on=_names(keys))
    return Joined(
        keys,
        len(both),
        pairs["in b"].null_count(),
        pairs["in a"].null_count(),
        [Agreement(c, int(same[c].sum()), _first(both.filter(~same[c]), c, rows_a, rows_b, keys)) for c in columns],
        *paired(measures, booleans, numbers, _names(keys)[0] if LINEAGE.name in keys else None),
    )


def join_keys(a: Results, b: Results, rows_a: pl.LazyFrame, rows_b: pl.LazyFrame) -> list[str]:
    """Return the id column if both runs have the same and it is unique, else `row`; and `lineage` if both have one.
    Where one run alone has samples, none of its rows is the partner of a row of the other, and there is no key."""
    common = set(rows_a.collect_schema().names()) & set(rows_b.collect_schema().names())
    lineage = [LINEAGE.name] if LINEAGE.name in common else []
    ids = [(run.config.get("data") or {}).get("id_column") for run in (a, b)]
    if ids[0] == ids[1] and ids[0] in common:
        keys = [ids[0], *lineage]
        if all(_are_unique(rows, keys) for rows in (rows_a, rows_b)):
            return keys
    if ROW.name not in common:
        return []
    both_or_none = lineage or not any(LINEAGE.name in rows.collect_schema() for rows in (rows_a, rows_b))
    unique = both_or_none or all(_are_unique(rows, [ROW.name]) for rows in (rows_a, rows_b))
    return [ROW.name, *lineage] if unique else []


def _are_unique(rows: pl.LazyFrame, keys: Sequence[str]) -> bool:
    selected = rows.select(_key(k) for k in keys)
    many, different = selected.select(pl.len(), pl.struct(pl.all()).n_unique().alias("different")).collect().row(0)
    return bool(many == different)


def _compared(rows_a: pl.LazyFrame, rows_b: pl.LazyFrame, keys: Sequence[str], booleans: Sequence[str]) -> list[str]:
    """Return the columns of generated texts and `booleans`; if there are no such texts, all common columns of equal
    type."""
    types_a, types_b = rows_a.collect_schema(), rows_b.collect_schema()
    common = [c for c in types_a if types_b.get(c) == types_a[c] and c not in {*keys, ROW.name, LINEAGE.name}]
    texts = [c for c in columns_named(rows_a, TEXTS) if c in common]
    return [*texts, *booleans] if texts else common


def _side(name: str, rows: pl.LazyFrame, keys: Sequence[str], values: Sequence[pl.Expr]) -> pl.LazyFrame:
    """Select the keys, `in NAME` (true), and each value as `NAME VALUE`: no two of a join have the same name."""
    named = [value.name.prefix(f"{name} ") for value in values]
    return rows.select(*map(_key, keys), pl.lit(True).alias(f"in {name}"), *named)


def _key(name: str) -> pl.Expr:
    """Return a key column as text, since the same ids may have different types in two inputs."""
    column = pl.col(name)
    if name == LINEAGE.name:
        column = column.cast(pl.List(pl.String)).list.join(".")
    return column.cast(pl.String).fill_null("").alias(f"key {name}")


def _names(keys: Sequence[str]) -> list[str]:
    return [f"key {name}" for name in keys]


def _first(
    different: pl.DataFrame, column: str, rows_a: pl.LazyFrame, rows_b: pl.LazyFrame, keys: Sequence[str]
) -> list[Difference]:
    """Return the first rows that differ. Reads the values of these rows only."""
    names = _names(keys)
    wanted = different.sort("place").head(DIFFERENCES).select(names)
    if wanted.is_empty():
        return []

    def values(rows: pl.LazyFrame) -> dict[tuple[str, ...], Any]:
        named = rows.select(*map(_key, keys), pl.col(column).alias("value"))
        table = named.join(wanted.lazy(), on=names, how="semi").collect(engine="streaming")
        return {row[:-1]: row[-1] for row in table.select(*names, "value").rows()}

    in_a, in_b = values(rows_a), values(rows_b)
    shown = []
    for row in wanted.rows():
        parts = [f"{name} {value}" for name, value in zip(keys, row, strict=True) if value != ""]
        shown.append(Difference(", ".join(parts), in_a[row], in_b[row]))
    return shown
