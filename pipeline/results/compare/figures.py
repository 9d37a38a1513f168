"""The figures of two runs side by side, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.monitor.wording import seconds, share
from pipeline.results.figures import STEP_PARTS, lengths, run_figures, stage_times, step_sums, token_columns
from pipeline.results.reader import Results

Row = tuple[str, str, str, str]
"""What is compared, both values, and the change from the first to the second (empty where it says nothing)."""
WIDEST = 40
WORTH_COMPARING = 0.1
"""Share of its time that a stage is busy: below it a change is noise, and changes nothing."""
SMALLEST_CHANGE = 0.05
"""Percent."""


def figures(a: Results, b: Results) -> list[Row]:
    """Everything that is known of both runs or of one of them, in the order in which it is shown."""
    rows = [*_about(a, b), *_totals(a, b), *_steps(a, b), *_lengths(a, b)]
    return [row for row in rows if row[1] or row[2]]


def stages(a: Results, b: Results) -> list[Row]:
    """How much of its time each stage was busy, and for how long."""
    times = [{stage["node"]: stage for stage in stage_times(run)} for run in (a, b)]
    rows = []
    for node in dict.fromkeys([*times[0], *times[1]]):
        found = [side.get(node) for side in times]
        cells = [f"{seconds(s['busy_s'])} {share(s['busy_s'], s['wall_s'])}" if s else "" for s in found]
        shares = [s["busy_s"] / s["wall_s"] if s and s["wall_s"] else 0.0 for s in found]
        busy = [s["busy_s"] if s else None for s in found]
        rows.append((node, cells[0], cells[1], _change(*busy) if max(shares) >= WORTH_COMPARING else ""))
    return rows


def lines(rows: Sequence[Row], head: tuple[str, str] | None = None) -> list[str]:
    """`rows` in columns. `head`: what the two sides are called."""
    table: list[Row] = [*([("", *head, "")] if head else []), *rows]
    widths = [min(WIDEST, max((len(row[i]) for row in table), default=0)) for i in range(3)]
    padded = [[f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)] for row in table]
    return ["  ".join([*cells, row[3]]).rstrip() for cells, row in zip(padded, table, strict=True)]


def _about(a: Results, b: Results) -> list[Row]:
    texts = {
        "job": (a.job, b.job),
        "status": tuple(str(run.manifest.get("status", "")) for run in (a, b)),
        "fingerprint": tuple(str(run.manifest.get("fingerprint", {}).get("sha256", ""))[:12] for run in (a, b)),
        "model": (_model(a), _model(b)),
    }
    return [(name, one, other, "" if one == other else "differs") for name, (one, other) in texts.items()]


def _totals(a: Results, b: Results) -> list[Row]:
    others = run_figures(b)
    pairs = [(name, one, others[name]) for name, one in run_figures(a).items()]
    return [
        (n, one.text, other.text, _change(one.value, other.value))
        for n, one, other in pairs
        if one.value or other.value
    ]


def _steps(a: Results, b: Results) -> list[Row]:
    sums = [{group["prompts"]: group for group in step_sums(run)} for run in (a, b)]
    rows = []
    for prompts, name in ((True, "calls that compute prompts"), (False, "calls that generate")):
        found = [side.get(prompts) for side in sums]
        spent = [sum(group[part] for part in STEP_PARTS) if group else None for group in found]
        pairs = zip(found, spent, strict=True)
        cells = [f"{group['steps']:,} in {seconds(s)}" if group and s is not None else "" for group, s in pairs]
        rows.append((name, cells[0], cells[1], _change(spent[0], spent[1])))
    return rows


def _lengths(a: Results, b: Results) -> list[Row]:
    """Median and 95th percentile of each column of token counts."""
    found = [_quantiles(run) for run in (a, b)]
    rows = []
    for column in dict.fromkeys([*found[0], *found[1]]):
        cells = ["{:,} and {:,}".format(*side[column]) if column in side else "" for side in found]
        rows.append((f"{column}, median and p95", cells[0], cells[1], ""))
    return rows


def _quantiles(run: Results) -> dict[str, tuple[int, int]]:
    shown: dict[str, tuple[int, int]] = {}
    for folder in run.folders:
        rows = run.rows(folder)
        if rows is not None:
            where = f" in {folder}" if len(run.folders) > 1 else ""
            known = {f"{column}{where}": lengths(rows, column) for column in token_columns(rows)}
            shown |= {name: (found.quantile(0.5), found.quantile(0.95)) for name, found in known.items() if found.rows}
    return shown


def _model(run: Results) -> str:
    model = run.config.get("model")
    if not isinstance(model, dict):
        return ""
    parts = [str(model[key]) for key in ("repo", "file") if model.get(key)]
    return " ".join(parts) or Path(str(model.get("path") or "")).name


def _change(a: float | None, b: float | None) -> str:
    """`+12.3 %`; nothing where there is as good as no change, or nothing to compare."""
    percent = 100 * (b / a - 1) if a and b is not None else 0.0
    return f"{percent:+.1f} %" if abs(percent) >= SMALLEST_CHANGE else ""
