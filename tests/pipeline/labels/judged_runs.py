"""Runs of which only the rows are there, and labels of them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.labels.calibration import CalibratedJudge, calibrate
from pipeline.labels.calibration_options import CalibrationOptions
from pipeline.results.reader import Results, read_results
from pipeline.run_dir.calibration_file import CalibrationLine
from tests.pipeline.labels.runs import run_of

Row = dict[str, Any]


def judged(directory: Path, rows: Sequence[Row], run: str = "r1") -> Results:
    """A run with these rows, in place of one that is there. Rows get their `row` and an id."""
    shutil.rmtree(directory, ignore_errors=True)
    run_of(directory, [{"row": i, "id": f"a{i}", **row} for i, row in enumerate(rows)], data={"id_column": "id"})
    (directory / "status.json").write_text(json.dumps({"run_id": run}), encoding="utf-8")
    return read_results(directory)


def labels(path: Path, records: Sequence[Row]) -> Path:
    """A file of labels."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def calibrated(results: Results, file: Path | Sequence[Path], verdict: str = "verdict", **more: Any) -> CalibratedJudge:
    files = [file] if isinstance(file, Path) else file
    return calibrate(results, files, CalibrationOptions(verdict, **more))


class Known(NamedTuple):
    """The numbers of a figure; NaN for what it does not have."""

    estimate: float
    low: float
    high: float
    rows: int


def known(line: CalibrationLine | None) -> Known:
    """The numbers of a line, which has to be there."""
    assert line is not None
    estimate, low, high = (math.nan if value is None else value for value in (line.estimate, line.low, line.high))
    return Known(estimate, low, high, line.rows or 0)


def figure(judge: CalibratedJudge, name: str, value: str = "") -> Known:
    return known(judge.figures.one(name, value))
