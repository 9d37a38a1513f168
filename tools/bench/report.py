"""The report of a benchmark: Markdown tables made from its rows.

A figure is the median over the repeats, with minimum and maximum. A ratio is taken within each repeat, where
both sides ran next to each other, and is then the median: machines drift between repeats.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from tools.bench.scenarios import ALL

REPORT = "report.md"
Row = dict[str, Any]
"""One measurement, by column."""
_FIGURES = (
    ("work s", "work_s", ",.2f"),
    ("prompt tokens", "prompt_tokens", ",.0f"),
    ("new tokens", "new_tokens", ",.0f"),
    ("ms a step", "decode_step_ms", ",.2f"),
    ("CPU s", "cpu_s", ",.1f"),
    ("peak MiB", "peak_rss_mb", ",.0f"),
)
_OF_BLOCKS = (
    ("calls", "steps", ",.0f"),
    ("ms a call", "call_ms", ",.2f"),
    ("calls a block", "calls_per_block", ".2f"),
    ("tokens a step of a block", "tokens_per_pass", ".2f"),
    ("Python and sampling", "own_share", ".1%"),
)
"""Columns of a scenario in which blocks are made."""
_OF_IMAGES = (("wall s", "wall_s", ",.2f"), ("images encoded", "images_encoded", ",.0f"))
_OF_WORKERS = (
    ("busy, steady", "efficiency", ".1%"),
    ("busy, whole", "whole_efficiency", ".1%"),
    ("idle at the end", "tail_idle", ".1%"),
    ("driver's us a row", "driver_row_us", ",.0f"),
    ("driver's ms a piece", "driver_piece_ms", ",.2f"),
)
"""Columns of a scenario with workers that sleep; there the peak memory is that of the driver."""


def report(directory: Path) -> str:
    """Return the report of the benchmark in `directory`."""
    rows = pl.read_parquet(directory / "data/*.parquet").sort("row").to_dicts()
    lines = ["# Benchmark", "", *_origin(directory), *_quiet(rows)]
    for name in dict.fromkeys(row["scenario"] for row in rows):
        of_scenario = [row for row in rows if row["scenario"] == name]
        lines += ["", f"## {name}", "", f"{ALL[name].about}."]
        for slots in dict.fromkeys(row["slots"] for row in of_scenario):
            lines += ["", *_group(name, slots, of_scenario)]
    if failed := list(_rejects(directory)):
        lines += ["", "## Failed cases", "", *(f"- {line}" for line in failed)]
    return "\n".join(lines) + "\n"


def _group(name: str, slots: int, of_scenario: Sequence[Row]) -> Iterator[str]:
    rows = [row for row in of_scenario if row["slots"] == slots]
    names = list(dict.fromkeys(row["contender"] for row in rows))
    measured = [n for n in names if any(r["tokens_per_s"] for r in rows if r["contender"] == n)]
    yield f"{_slots(slots)}, {rows[0]['rows']} prompts"
    yield ""
    if measured:
        yield from _table(name, measured, rows, of_scenario)
    notes = {row["contender"]: row["note"] for row in rows if row["note"]}
    notes |= {row["contender"]: f"skipped, {row['skipped_reason']}" for row in rows if row["skipped_reason"]}
    texts = {row["texts"] for row in rows if row["texts"]}
    if name.startswith("toggle_") and len(measured) == 2 and texts:
        notes["texts"] = "the same with and without" if len(texts) == 1 else "NOT the same"
    if notes:
        yield ""
        yield from (f"- {about}: {note}" for about, note in notes.items())


def _table(name: str, measured: Sequence[str], rows: Sequence[Row], of_scenario: Sequence[Row]) -> Iterator[str]:
    against = {c.name: c.against for c in ALL[name].contenders if c.against}
    blocks = any(row["calls_per_block"] for row in rows)
    few, slots = min(row["slots"] for row in of_scenario), rows[0]["slots"]
    batched = [f"by {_slots(few)}", f"calls allow by {_slots(few)}"] if blocks and slots > few else []
    workers = any(row["efficiency"] is not None for row in rows)
    images = any(row["images_encoded"] is not None for row in rows)
    further = ((blocks, _OF_BLOCKS), (workers, _OF_WORKERS), (images, _OF_IMAGES))
    figures = (*_FIGURES, *(column for is_there, columns in further if is_there for column in columns))
    by = "by the reused one" if against else f"by {measured[0]}"
    titles = ["contender", "t/s", by, *(title for title, _, _ in figures), *batched]
    yield f"| {' | '.join(titles)} |"
    yield f"|---|{'---:|' * (len(titles) - 1)}"
    for contender in measured:
        own = [row for row in rows if row["contender"] == contender]
        other = against.get(contender, measured[0])
        ratio = None if other == contender else paired_ratio(rows, contender, other)
        cells = [contender, spread(own, "tokens_per_s"), "-" if ratio is None else f"{ratio:.3f}"]
        cells += [spread(own, key, form) for _, key, form in figures]
        if batched:
            cells += _batching(own, [r for r in of_scenario if r["contender"] == contender and r["slots"] == few])
        yield f"| {' | '.join(cells)} |"


def _slots(number: int) -> str:
    return f"{number} {'slot' if number == 1 else 'slots'}"


def _batching(many: Sequence[Row], few: Sequence[Row]) -> tuple[str, str]:
    """Return the speedup of `many` slots over `few`, and the speedup that their call times allow.

    A call of n rows makes n times the tokens but may take longer than one of a single row. Any speedup below that was
    lost by calls that were not full, or between calls.
    """
    columns = [[row[key] for row in rows if row[key]] for key in ("tokens_per_s", "call_ms") for rows in (many, few)]
    if not all(columns):
        return "-", "-"
    speed, speed_few, call, call_few = map(statistics.median, columns)
    return f"{speed / speed_few:.2f}", f"{many[0]['slots'] / few[0]['slots'] * call_few / call:.2f}"


def spread(rows: Iterable[Row], key: str, form: str = ",.1f") -> str:
    """Format a column as `median (lowest-highest)`, or as its only value; `-` for none."""
    values = [row[key] for row in rows if row[key] is not None]
    if not values:
        return "-"
    low, middle, high = (f"{value:{form}}" for value in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


def paired_ratio(rows: Sequence[Row], one: str, other: str) -> float | None:
    """Return the ratio of tokens_per_s of `one` and `other`: the median over the repeats that have both."""
    speeds = {(row["contender"], row["repeat"]): row["tokens_per_s"] for row in rows if row["tokens_per_s"]}
    ratios = [speed / speeds[other, r] for (name, r), speed in speeds.items() if name == one and (other, r) in speeds]
    return statistics.median(ratios) if ratios else None


def _origin(directory: Path) -> Iterator[str]:
    path = directory / "metrics/run.parquet"
    for run in pl.read_parquet(path).to_dicts()[-1:] if path.exists() else []:
        machine, versions = json.loads(run["machine"]), json.loads(run["versions"])
        yield f"Started {run['started_at']} on {machine['cpu']}, {machine['cores']} cores, {machine['platform']}."
        yield "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items() if version) + "."
        yield ""
    yield "t/s: new tokens a second of work, which is all but the start of processes and the load of the model."
    yield "A figure is the median of the repeats (lowest-highest); a ratio is of t/s, taken within each repeat."


def _quiet(rows: Sequence[Row]) -> Iterator[str]:
    busy = [row["busy_before"] for row in rows if row["busy_before"] is not None]
    if busy:
        yield (
            f"Other processes used {100 * statistics.median(busy):.0f} % of the cores before a case (median),"
            f" {100 * max(busy):.0f} % at most."
        )


def _rejects(directory: Path) -> Iterator[str]:
    if not list((directory / "rejects").glob("*.parquet")):
        return
    for row in pl.read_parquet(directory / "rejects/*.parquet").to_dicts():
        case = json.loads(row["record"] or "{}")
        where = f"{case.get('slots')} slots, repeat {case.get('repeat')}"
        yield f"{case.get('contender')} of {case.get('scenario')}, {where}: {row['reason']}"
