"""Panels on the whole run: figures, attempts, versions and settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.monitor.summary import too_many_errors
from pipeline.monitor.wording import of_the_limit, seconds, share
from pipeline.results.figures import ROW_COUNTS, STILL_OPEN, attempts, run_figures, run_totals
from pipeline.results.reader import Results
from pipeline.results.report.panel import Fold, Panel, ReportTable
from pipeline.run_dir.state import RunStatus
from pipeline.system.yaml_text import write_yaml

ALWAYS = ("rows done", "rows in data")
"""Figures that are shown even if they are 0."""
WORDS: Mapping[str, str] = {
    RunStatus.NEW: "not begun",
    RunStatus.RUNNING: STILL_OPEN,
    RunStatus.INTERRUPTED: "interrupted",
    RunStatus.FAILED: "failed",
    RunStatus.BUDGET: "ended by a budget, before its target was reached",
    RunStatus.DONE: "done",
}


def status(results: Results) -> list[str]:
    """Return the status of the run, with the exit code of its last attempt if that has ended."""
    state, figures = str(results.manifest.get("status")), attempts(results)
    code = figures[-1].exit_code if figures and state != RunStatus.RUNNING else None
    return [WORDS.get(state, "unknown") + ("" if code is None else f", exit code {code}")]


def why(results: Results) -> list[str]:
    """Return the reason for exit code 3 of a finished run; empty if it has none."""
    if results.config.get("append"):  # the rows that were added last count, and the terminal names them
        last = attempts(results)[-1:]
        return ["Exit code 3: too many errors in the rows that were added last."] * any(a.exit_code == 3 for a in last)
    limit = results.config.get("max_error_rate")
    ended = results.manifest.get("status") in (RunStatus.DONE, RunStatus.BUDGET)
    counts = results.counts
    errors, rows = counts.get("error_rejects", 0) + counts.get("kept_with_error", 0), counts.get("source_rows", 0)
    reason = too_many_errors(errors, rows, limit) if ended and limit is not None else ""
    return [f"Exit code 3: {reason}."] if reason else []


def totals(results: Results) -> list[tuple[str, str]]:
    """Return names and texts of the figures of the whole run."""
    figures = run_figures(results)
    hidden = {"prompt tokens a second"} if figures["completion tokens"].value else set()
    if figures["attempts"].value == 1:
        hidden.add("attempts")
    shown = {name: f.text for name, f in figures.items() if (f.value or name in ALWAYS) and name not in hidden}
    source = results.counts.get("source_rows", 0)
    for key in ("error_rejects", "filtered_rejects", "kept_with_error"):
        rows, name = results.counts.get(key, 0), ROW_COUNTS[key]
        if 0 < rows <= source:
            shown[name] += f" ({share(rows, source)})"
    if speed := of_the_limit(run_totals(results)):
        shown["calls of the model"] = speed
    return list(shown.items())


def attempt_panel(results: Results) -> list[Panel]:
    """Return a panel of the attempts, if there were several."""
    figures = attempts(results)
    if len(figures) < 2:
        return []
    columns = ["attempt", "began", "ended", "running time", "rows committed", "prompt tokens", "completion tokens"]
    rows = [
        [
            *(str(a.number), a.started_at and a.started_at[:19].replace("T", " "), a.state, seconds(a.wall_s)),
            *(None if a.rows is None else f"{a.rows:,}", f"{a.tokens_in:,}", f"{a.tokens_out:,}"),
        ]
        for a in figures
    ]
    about = "What an attempt did not commit was finished by a later one."
    return [Panel("Attempts", about, tables=[ReportTable(columns, rows)])]


def made_with(results: Results) -> list[Panel]:
    """Return a panel with versions, machine, settings and fingerprint."""
    figures = attempts(results)
    last = next((attempt for attempt in reversed(figures) if attempt.versions), None)
    rows = [] if last is None else [[k, str(v)] for k, v in {**last.machine, **last.versions}.items() if v != ""]
    fingerprint: Mapping[str, Any] = results.manifest.get("fingerprint", {})
    if digest := fingerprint.get("sha256"):
        rows.append(["fingerprint", digest])
    folds = []
    if results.config:
        text = write_yaml(dict(results.config))
        folds.append(Fold("Settings (config.yaml)", text))
    if keys := fingerprint.get("keys"):
        lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items()]
        folds.append(Fold("What decides the bytes of data/ (fingerprint)", "\n".join(lines)))
    return (
        [Panel("Made with", tables=[ReportTable(["", ""], rows)] if rows else [], folds=folds)] if rows or folds else []
    )
