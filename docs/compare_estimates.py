"""Estimate jobs, run them, and print both beside each other as rows of the tables in docs/estimate.md.

python -m docs.compare_estimates job=quickstart             # one job, with any overrides
python -m docs.compare_estimates                            # the jobs that ship, one after the other
python -m docs.compare_estimates minutes                    # runs of a minute or so whose lengths are not known before
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq

from models.tiny.prompts import write_rows
from models.tiny.tasks import FAMILIES, examples

JOBS = ("quickstart", "extract", "best_of_n", "embed", "score_perplexity", "diffuse")
# Name, prompts (FILES), and overrides; the number of rows is that which took about a minute on two cores.
MINUTES = (
    ("all families", "mixed", ["job=quickstart", "data.limit=9000"]),
    ("drawn", "mixed", ["job=quickstart", "data.limit=9000", "sampling=creative"]),
    ("cut at 40", "mixed", ["job=quickstart", "data.limit=12000", "sampling.max_tokens=40"]),
    ("sorted by family", "sorted", ["job=quickstart", "data.limit=9000"]),
    ("stories", "story", ["job=quickstart", "data.limit=2500"]),
    ("stories, drawn", "story", ["job=quickstart", "data.limit=2500", "sampling=creative"]),
    ("one sentence", "story", ["job=quickstart", "data.limit=7000", "sampling.stop=['. ']"]),
    ("four slots", "mixed", ["job=quickstart", "data.limit=5000", "runtime.slots=4"]),
    ("best of four", "mixed", ["job=best_of_n", "data.limit=2500"]),
    ("arithmetic", "arithmetic", ["job=quickstart", "data.limit=6000"]),
    ("labels", "label", ["job=classify", "data.limit=15000"]),
    ("blocks", "mixed", ["job=diffuse", "data.limit=2500"]),
)
FILES = {
    "mixed": FAMILIES,
    "sorted": FAMILIES,
    "story": ("story",),
    "arithmetic": ("arithmetic",),
    "label": ("label",),
}
FILE_ROWS = 15_000
LINES = ("tokens out", "time", "peak memory", "disk")
UNITS = {
    **{"s": 1.0, "min": 60.0, "h": 3600.0, "days": 86_400.0},
    **{"bytes": 1.0, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3, "": 1.0},
}
VALUE = r"([\d,.]+)(?: (days|min|bytes|KiB|MiB|GiB|[sh]))?"


def main() -> None:
    """Print the table."""
    print("| job | " + " | ".join(f"{name}: estimate | outcome" for name in LINES) + " |")
    print("|---" * (1 + 2 * len(LINES)) + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, overrides) in enumerate(cases(Path(folder), sys.argv[1:])):
            results = Path(folder) / str(number)
            command = [sys.executable, "-m", "pipeline", *overrides, f"output_dir={results}", "progress=none"]
            printed = subprocess.run([*command, "dry_run=true"], check=True, capture_output=True, text=True).stdout
            peak = peak_of(command)
            print(row(name, printed, outcome(results) | {"peak memory": peak}), flush=True)


def cases(folder: Path, given: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the overrides of each job to run. Files that are needed are written to `folder`."""
    if given != ["minutes"]:
        jobs = [given] if given else [[f"job={name}"] for name in JOBS]
        yield from ((" ".join(overrides), overrides) for overrides in jobs)
        return
    for name, families in FILES.items():
        weights = tuple(int(family in families) for family in FAMILIES)
        drawn = list(islice(examples(101, "train", weights), FILE_ROWS))
        if name == "sorted":
            drawn.sort(key=lambda example: example.family)
        write_rows(folder / f"{name}.jsonl", name, drawn)
    for name, file, overrides in MINUTES:
        yield name, [*overrides, f"data.path={folder / file}.jsonl"]


def peak_of(command: list[str]) -> float:
    """Run `command`, and return the bytes of memory that it had at most."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    return usage.ru_maxrss * 1024.0


def row(name: str, printed: str, found: dict[str, float]) -> str:
    """Return a line of the table: each figure's estimate and outcome, which is bold where it lies outside."""
    cells = [name]
    for line in LINES:
        match = re.search(rf"^  {line} +({VALUE}(?: +\({VALUE} to {VALUE}\))?)", printed, re.MULTILINE)
        if match is None:
            cells += ["", ""]
            continue
        unit = UNITS[match[3] or ""]
        inside = match[4] is None or value(match[4], match[5]) <= found[line] <= value(match[6], match[7])
        text = f"{found[line] / unit:,.1f}".removesuffix(".0")
        cells += [match[1], text if inside else f"**{text}**"]
    return f"| {' | '.join(cells)} |"


def value(number: str, unit: str | None) -> float:
    """Return a printed number in seconds or bytes."""
    return float(number.replace(",", "")) * UNITS[unit or ""]


def outcome(results: Path) -> dict[str, float]:
    """Return the figures of a run by its own metrics."""
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
