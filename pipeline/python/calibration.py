"""Calibration of a run's judge from Python: what the command `calibrate` says, and its numbers as frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.labels.calibration import calibrate
from pipeline.labels.calibration_files import labels_table, save
from pipeline.labels.calibration_options import CalibrationOptions
from pipeline.labels.calibration_text import sections_of
from pipeline.results.reader import Results

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class JudgeCalibration:
    """How far people agree with the verdicts of a run.

    Args:
        text: as `python -m pipeline calibrate` prints it.
        figures: a row for each figure, the content of calibration.parquet (docs/judges.md).
        labels: a row for each labelled row and reviewer, the content of labels.parquet.
        keep: the condition of rows at the threshold, as `keep` of a step takes it; None if there is none.
    """

    text: str
    figures: pl.DataFrame
    labels: pl.DataFrame
    keep: str | None

    def __str__(self) -> str:
        return self.text


def calibration_of(
    results: Results, labels: str | Path | Iterable[str | Path], options: dict[str, Any]
) -> JudgeCalibration:
    """Calibrate, and write the files of the run as the command does. Raises ConfigError."""
    import polars as pl

    files: Sequence[Path] = [Path(labels)] if isinstance(labels, str | Path) else [Path(file) for file in labels]
    judge = calibrate(results, files, CalibrationOptions(**options))
    save(results, judge)
    text = "\n\n".join("\n".join(section) for section in sections_of(judge.figures))
    figures, said = pl.DataFrame(judge.figures.table()), pl.DataFrame(labels_table(judge.joined))
    return JudgeCalibration(text, figures, said, judge.figures.about.keep)
