"""Compare the figures of two runs, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.monitor.wording import seconds, share
from pipeline.results.figures import STEP_PARTS, Figure, lengths, run_figures, stage_times, step_sums, token_columns
from pipeline.results.reader import Results

Row = tuple[str, str, str, str]
"""Name of a figure, both values, and the change from the first to the second, empty if it means nothing."""
WIDEST = 40
WORTH_COMPARING = 0.1
"""Busy share of a stage below which its change is not shown: it is noise."""
SMALLEST_CHANGE = 0.05
"""Percent."""


def figures(a: Results, b: Results) -> list[Row]:
    """Return the figures of both runs, or of one of them, in display order."""
    sides = _known(a), _known(b)
    rows = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        one, other = (side.get(name, Figure(None, "")) for side in sides)
        if any(f.value or (f.value is None and f.text) for f in (one, other)):
            rows.append((name, one.text, other.text, _difference(one, other)))
    return rows


def stages(a: Results, b: Results) -> list[Row]:
    """Return busy seconds and busy share of each stage."""
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
    """Return `rows` as lines in aligned columns. `head`: names of the two runs."""
    table: list[Row] = [*([("", *head, "")] if head else []), *rows]
    widths = [min(WIDEST, max((len(row[i]) for row in table), default=0)) for i in range(3)]
    padded = [[f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)] for row in table]
    return ["  ".join([*cells, row[3]]).rstrip() for cells, row in zip(padded, table, strict=True)]


def _known(run: Results) -> dict[str, Figure]:
    """Return job, status, fingerprint, model and figures of a run by display name."""
    texts = {
        "job": run.job,
        "status": str(run.manifest.get("status", "")),
        "fingerprint": str(run.manifest.get("fingerprint", {}).get("sha256", ""))[:12],
        "model": _model(run),
    }
    known = {name: Figure(None, text) for name, text in texts.items()} | run_figures(run)
    for group in step_sums(run):
        spent = sum(group[part] for part in STEP_PARTS)
        name = "calls that compute prompts" if group["prompts"] else "calls that generate"
        known[name] = Figure(spent, f"{group['steps']:,} in {seconds(spent)}")
    for folder in run.folders:
        rows = run.rows(folder)
        if rows is None:
            continue
        where = f" in {folder}" if len(run.folders) > 1 else ""
        for column in token_columns(rows):
            found = lengths(rows, column)
            if found.rows:
                text = f"{found.quantile(0.5):,} and {found.quantile(0.95):,}"
                known[f"{column}{where}, median and p95"] = Figure(None, text)
    return known


def _model(run: Results) -> str:
    model = run.config.get("model")
    if not isinstance(model, dict):
        return ""
    parts = [str(model[key]) for key in ("repo", "file") if model.get(key)]
    return " ".join(parts) or Path(str(model.get("path") or "")).name


def _difference(a: Figure, b: Figure) -> str:
    if a.value is None and b.value is None:
        return "" if a.text == b.text else "differs"
    return _change(a.value, b.value)


def _change(a: float | None, b: float | None) -> str:
    """Format the change in percent: `+12.3 %`; empty below SMALLEST_CHANGE or if a value is missing."""
    percent = 100 * (b / a - 1) if a and b is not None else 0.0
    return f"{percent:+.1f} %" if abs(percent) >= SMALLEST_CHANGE else ""
