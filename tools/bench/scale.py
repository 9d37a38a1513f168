"""The cost of the driver with many workers: workers whose model sleeps, and the figures of their driver.

`python -m tools.bench.scale FOLDER COMMAND...` runs the command of a job, and writes what its driver used over time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pyarrow as pa

from operators.engine.backend import fake
from operators.engine.backend.batch import BatchBuffer
from operators.engine.backend.loading import ModelFacts, check_options
from operators.settings import ModelSettings
from tools.bench.child import ChildFailed, last_words, peak_rss_mb, start
from tools.bench.contenders import CELLS, JobContender, Spec
from tools.bench.figures import Figures, of_job

STEP_S = 0.15
"""Seconds that a call of the model sleeps: so long that the Python of 64 workers needs less than a core."""
_MEDIAN_TOKENS, _SPREAD, _MOST_TOKENS = 20, 0.6, 96
"""Completions are lognormal: the median, the standard deviation of the logarithm, and the cut."""
_DRIVER = "driver.json"
_POLL_S = 0.25


def load(settings: ModelSettings) -> fake.FakeModel:
    """Load the fake model, each call of which sleeps `model.options.step_s` seconds."""
    step_s = float(settings.options.get("step_s", STEP_S))

    def sleeps(batch: BatchBuffer) -> int:
        time.sleep(step_s)
        return 0

    return fake.FakeModel(sleeps)


def inspect(settings: ModelSettings) -> ModelFacts:
    check_options(settings, ("step_s",))
    return fake.inspect(replace(settings, options={}))


@dataclass(frozen=True)
class Workers(JobContender):
    """A job with workers that sleep.

    Args:
        workers: how many.
        step_s: seconds that a call of the model sleeps.
        rows_each: rows of each worker, times those that the case has.
    """

    workers: int = field(default=1, kw_only=True)
    rows_each: int = field(default=1, kw_only=True)
    step_s: float = field(default=STEP_S, kw_only=True)

    def command(self, spec: Spec) -> list[str]:
        rows = self.workers * self.rows_each * spec.workload.rows.num_rows
        drawn = np.random.default_rng(0).lognormal(np.log(_MEDIAN_TOKENS), _SPREAD, rows)
        lengths = np.clip(drawn, 1, min(_MOST_TOKENS, spec.sampling.max_tokens)).astype(np.int32)
        table = pa.table({"prompt": [f"Question {i}" for i in range(rows)], "max_tokens": lengths})
        case = replace(
            spec,
            workload=replace(spec.workload, rows=table),
            model=ModelSettings(loader=f"{__name__}:load", options={"step_s": self.step_s}),
            runtime=replace(spec.runtime, threads=1, max_sequence_tokens=CELLS),
        )
        job = [*super().command(case), f"cluster.workers={self.workers}"]
        return [sys.executable, "-m", "tools.bench.scale", str(spec.folder), *job]

    def figures(self, spec: Spec, output: str) -> Figures:
        directory = spec.folder / "out"
        driver = json.loads((spec.folder / _DRIVER).read_text(encoding="utf-8"))
        figures = replace(of_job(directory), peak_rss_mb=driver["peak_rss_mb"])
        stages = pl.read_parquet(directory / "metrics/stages.parquet")
        run = pl.read_parquet(directory / "metrics/run.parquet").to_dicts()[-1]
        pieces = json.loads(run["totals"])["cluster/pieces"]
        began = datetime.fromisoformat(run["started_at"]).timestamp()
        return of_workers(figures, stages, [(at - began, cpu) for at, cpu in driver["cpu_s"]], int(pieces))


def of_workers(figures: Figures, stages: pl.DataFrame, driver: Sequence[tuple[float, float]], pieces: int) -> Figures:
    """Return `figures` with the figures of workers.

    Everything is counted from the time when the last worker had opened: of workers, the intervals between two reports
    that begin after it. The steady state ends when the first worker has computed for the last time; what it and the
    others idle after that is the tail.

    Args:
        stages: metrics/stages.parquet.
        driver: seconds since the run began, and CPU seconds that the driver had used by then, in order.
        pieces: that were sent in the whole run.

    Raises:
        ValueError: the run was too short to have a steady state.
    """
    generate = stages.filter(pl.col("node") == "generate")
    workers = generate.filter(pl.col("worker").is_not_null())
    opened = workers.group_by("worker").agg(pl.col("t_s").min())["t_s"].max()
    last = (
        workers.filter(pl.col("busy_s") > pl.col("wall_s") / 2).group_by("worker").agg(pl.col("t_s").max())["t_s"].min()
    )
    after, begun = pl.col("t_s") > opened, pl.col("t_s") - pl.col("interval_s") >= opened
    rows = generate.filter(pl.col("worker").is_null())
    counted, sent = (int(part["rows_in"].sum()) for part in (rows.filter(after), rows))
    if not (isinstance(opened, float) and isinstance(last, float) and opened < last and counted):
        raise ValueError("the workers were done before all of them had opened: give them more rows (bench.max_rows)")
    earlier = [cpu for at, cpu in driver if at <= opened]
    cpu_s = driver[-1][1] - (earlier[-1] if earlier else 0.0)
    steady, whole, tail = (
        workers.filter(begun, part).select(pl.col("busy_s", "wall_s").sum()).row(0)
        for part in (pl.col("t_s") <= last, pl.lit(value=True), pl.col("t_s") > last)
    )
    return replace(
        figures,
        efficiency=steady[0] / steady[1],
        whole_efficiency=whole[0] / whole[1],
        tail_idle=(tail[1] - tail[0]) / whole[1],
        driver_row_us=1e6 * cpu_s / counted,
        driver_piece_ms=1e3 * cpu_s / (pieces * counted / sent),
    )


def main(arguments: Sequence[str]) -> int:
    """Run a job, and write the CPU seconds over time and the peak memory of its driver, in MiB."""
    folder, command = Path(arguments[0]), arguments[1:]
    error = folder / "stderr"
    samples, peak = [], 0.0
    try:
        process = start(command, folder / "stdout", error)
    except ChildFailed as failed:
        print(f"error: {failed}", file=sys.stderr)
        return 1
    driver = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            used = driver.cpu_times()
        except psutil.Error:
            break
        samples.append((time.time(), used.user + used.system))
        peak = max(peak, peak_rss_mb(process.pid))
        time.sleep(_POLL_S)
    if code := process.wait():
        print(last_words(error), file=sys.stderr)
        return code
    (folder / _DRIVER).write_text(json.dumps({"cpu_s": samples, "peak_rss_mb": peak}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
