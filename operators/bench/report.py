"""The report of a benchmark: Markdown tables from its rows. `python -m operators.bench.report OUTPUT_DIR` prints it.

A figure is the median over the repeats, with the lowest and the highest. A ratio is taken within each repeat, where
both sides ran next to each other, and is then the median: machines drift between repeats.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from operators.bench.block_report import batching, blocks
from operators.bench.scenarios import LADDER, Scenario, scenario
from operators.bench.tables import Row, paired_ratio, spread, table

REPORT = "report.md"
_LADDER = tuple(c.name for c in LADDER)


def write_report(directory: Path) -> Path:
    """Write report.md into an output directory; returns where it is."""
    path = directory / REPORT
    path.write_text(report(directory), encoding="utf-8")
    return path


def report(directory: Path) -> str:
    """The report of the benchmark in `directory`."""
    rows = pl.read_parquet(directory / "data/*.parquet").sort("row").to_dicts()
    failed = _rejects(directory)
    runs = pl.read_parquet(directory / "metrics/run.parquet").to_dicts() if _has_run(directory) else []
    lines = ["# Benchmark", "", *_origin(runs), *_quiet(rows)]
    for name in dict.fromkeys(row["scenario"] for row in rows):
        of_scenario = [row for row in rows if row["scenario"] == name]
        lines += ["", f"## {name}", "", f"{scenario(name).about}."]
        for slots in dict.fromkeys(row["slots"] for row in of_scenario):
            lines += ["", *_group(name, slots, [row for row in of_scenario if row["slots"] == slots])]
        lines += batching(of_scenario)
    if failed:
        lines += ["", "## Failed cases", "", *(f"- {line}" for line in failed)]
    return "\n".join(lines) + "\n"


def _group(name: str, slots: int, rows: Sequence[Row]) -> Iterator[str]:
    """The table of a scenario at a number of slots."""
    names = list(dict.fromkeys(row["contender"] for row in rows))
    measured = [n for n in names if any(r["tokens_per_s"] for r in rows if r["contender"] == n)]
    yield f"{slots} {'slot' if slots == 1 else 'slots'}, {rows[0]['rows']} prompts"
    yield ""
    if measured:
        ratios = _ratio_columns(measured, scenario(name))
        titles = ["work s", "prompt tokens", "new tokens", "ms a step", "CPU s", "peak MiB"]
        yield from table(["contender", "t/s", *ratios, *titles], ([n, *_cells(rows, n, ratios)] for n in measured))
        yield from blocks(rows, measured)
    notes = [(n, _first(rows, n, "note")) for n in measured]
    skipped = [(n, _first(rows, n, "skipped_reason")) for n in names]
    lines = [f"- {n}: {note}" for n, note in notes if note] + [f"- {n}: skipped, {why}" for n, why in skipped if why]
    if name.startswith("toggle_") and len(measured) == 2:
        gain = paired_ratio(rows, *measured)
        lines.append(f"- gain: {_percent(gain)}")
        texts = {row["texts"] for row in rows if row.get("texts")}
        if texts:
            lines.append(f"- texts: {'the same with and without' if len(texts) == 1 else 'NOT the same'}")
    if lines:
        yield ""
        yield from lines


Pairing = Callable[[str], tuple[str, str] | None]
"""Gives for a contender the two whose ratio stands in its row: the first by the second; None for no ratio."""


def _ratio_columns(measured: Sequence[str], plan: Scenario) -> dict[str, Pairing]:
    """Titles of the columns with ratios, and what stands in them."""
    first = measured[0]
    against = {c.name: c.against for c in plan.contenders if c.against}
    if against:
        return {"its other by this": lambda n: (against[n], n) if against.get(n, n) != n else None}
    if first != _LADDER[0]:
        return {f"{first} by this": lambda n: (first, n) if n != first else None}
    rungs = [n for n in measured if n in _LADDER]
    below = dict(zip(rungs[1:], rungs[:-1], strict=True))
    return {
        "by the rung below": lambda n: (n, below[n]) if n in below else None,
        f"by {first}": lambda n: (n, first) if n != first else None,
    }


def _cells(rows: Sequence[Row], name: str, ratios: Mapping[str, Pairing]) -> Iterator[str]:
    own = [row for row in rows if row["contender"] == name]

    def of(key: str, form: str = ",.1f") -> str:
        return spread([row[key] for row in own if row[key] is not None], form)

    yield of("tokens_per_s")
    for pair in (pairing(name) for pairing in ratios.values()):
        ratio = paired_ratio(rows, *pair) if pair else None
        yield "-" if ratio is None else f"{ratio:.3f}"
    yield of("work_s", ",.2f")
    yield from (_median(own, key) for key in ("prompt_tokens", "new_tokens"))
    yield of("decode_step_ms", ",.2f")
    yield of("cpu_s")
    yield of("peak_rss_mb", ",.0f")


def _median(rows: Iterable[Row], key: str) -> str:
    values = [row[key] for row in rows if row[key] is not None]
    return f"{statistics.median(values):,.0f}" if values else "-"


def _first(rows: Iterable[Row], name: str, key: str) -> str | None:
    return next((row[key] for row in rows if row["contender"] == name and row[key]), None)


def _percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def _origin(runs: Sequence[Row]) -> Iterator[str]:
    """Machine and versions."""
    for run in runs[-1:]:
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


def _rejects(directory: Path) -> list[str]:
    if not list((directory / "rejects").glob("*.parquet")):
        return []
    found = pl.read_parquet(directory / "rejects/*.parquet").to_dicts()
    return [f"{_named(json.loads(row['record'] or '{}'))}: {row['reason']}" for row in found]


def _named(case: Mapping[str, Any]) -> str:
    return f"{case.get('contender')} of {case.get('scenario')}, {case.get('slots')} slots, repeat {case.get('repeat')}"


def _has_run(directory: Path) -> bool:
    return (directory / "metrics/run.parquet").exists()


def main(arguments: Sequence[str]) -> int:
    """OUTPUT_DIR: print its report. 0, or 2 with the reason on stderr."""
    directory = Path(arguments[0])
    if not list((directory / "data").glob("*.parquet")):
        print(f"error: {directory} has no data/*.parquet; give the output directory of job=bench", file=sys.stderr)
        return 2
    print(report(directory), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
