"""Estimates jobs, runs them, and prints both beside each other as a row of the table in docs/estimate.md.

python docs/compare_estimates.py job=quickstart             # one job, with any overrides
python docs/compare_estimates.py                            # the jobs that ship, one after the other
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

JOBS = ("quickstart", "extract", "best_of_n", "embed", "score_perplexity", "diffuse")
LINES = ("tokens out", "time", "peak memory", "disk")
UNITS = {
    **{"s": 1.0, "min": 60.0, "h": 3600.0, "days": 86_400.0},
    **{"bytes": 1.0, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3, "": 1.0},
}
VALUE = r"([\d,.]+)(?: (days|min|bytes|KiB|MiB|GiB|[sh]))?"


def main() -> None:
    """Print the table."""
    jobs = [sys.argv[1:]] if sys.argv[1:] else [[f"job={name}"] for name in JOBS]
    print("| job | " + " | ".join(f"{name}: estimate | outcome" for name in LINES) + " |")
    print("|---" * (1 + 2 * len(LINES)) + "|", flush=True)
    for overrides in jobs:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pipeline", *overrides, f"output_dir={folder}", "progress=none"]
            told = subprocess.run([*command, "dry_run=true"], check=True, capture_output=True, text=True).stdout
            peak = peak_of(command)
            print(row(" ".join(overrides), told, outcome(Path(folder)) | {"peak memory": peak}), flush=True)


def peak_of(command: list[str]) -> float:
    """Run `command`; bytes of memory that it had at most."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    return usage.ru_maxrss * 1024.0


def row(name: str, told: str, found: dict[str, float]) -> str:
    """A line of the table: of each figure the estimate and what came, in bold where that is outside."""
    cells = [name]
    for line in LINES:
        match = re.search(rf"^  {line} +({VALUE}(?: +\({VALUE} to {VALUE}\))?)", told, re.MULTILINE)
        if match is None:
            cells += ["", ""]
            continue
        unit = UNITS[match[3] or ""]
        inside = match[4] is None or value(match[4], match[5]) <= found[line] <= value(match[6], match[7])
        text = f"{found[line] / unit:,.1f}".removesuffix(".0")
        cells += [match[1], text if inside else f"**{text}**"]
    return f"| {' | '.join(cells)} |"


def value(number: str, unit: str | None) -> float:
    """What a printed number and its unit stand for."""
    return float(number.replace(",", "")) * UNITS[unit or ""]


def outcome(results: Path) -> dict[str, float]:
    """What a run took, by its own account."""
    run = pq.read_table(results / "metrics/run.parquet").to_pylist()[-1]
    stages = pq.read_table(results / "metrics/stages.parquet").to_pydict()
    files = [path for path in results.rglob("*") if path.is_file()]
    return {
        "tokens out": float(sum(stages["tokens_out"])),
        "time": float(run["wall_s"]),
        "disk": float(sum(path.stat().st_size for path in files)),
    }


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"took {time.monotonic() - began:.0f} s", file=sys.stderr)
