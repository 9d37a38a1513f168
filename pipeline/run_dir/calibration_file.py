"""calibration.parquet of a run: what people's labels say of its verdicts, a figure a line. `calibrate` writes it; the
report, the dataset card and other programs read it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.run_dir.names import CALIBRATION
from pipeline.system.atomic_files import replacing, write_parquet

SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in ("figure", "value", "group")),
        *(pa.field(name, pa.float64()) for name in ("estimate", "low", "high")),
        pa.field("rows", pa.int64()),
    ]
)
ABOUT = b"calibration"
"""Key of the file's metadata that has CalibrationAbout as JSON."""


class CalibrationLine(NamedTuple):
    """A figure. `value`: the verdict that it is of, or a label; `group`: what else tells lines of one figure apart;
    empty without. `estimate`, `low`, `high`: with the limits of its interval at 95 %; null where it has none. `rows`:
    labelled rows that it is made of, or a number of rows or labels itself."""

    figure: str
    value: str = ""
    group: str = ""
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    rows: int | None = None


@dataclass(frozen=True)
class CalibrationAbout:
    """What the figures are of.

    Args:
        run, folder, folder_rows: id of the run, and the folder of its rows with how many there were.
        judged, unjudged: its rows with a verdict, of which all shares are but what a threshold keeps, and without one.
        verdict, probability, positive: columns, and the verdict that is told one against the rest; null: every one is.
        values: the verdicts of the run, the most frequent first, then other labels.
        files, reviewers: the files of labels by name, and who made them.
        passes: whether `positive` says that a row is good, as yes does.
        keep: the condition of a job that keeps rows at a threshold; null: there is none.
        no_keep: why there is none; empty: nobody expects one.
        precision, width: what the threshold reaches, and the width of an interval that labels are counted for.
        notes: what a reader has to know, a line each.
    """

    run: str
    folder: str
    folder_rows: int
    verdict: str
    probability: str | None
    positive: str | None
    values: Sequence[str]
    files: Sequence[str]
    reviewers: Sequence[str]
    precision: float
    width: float
    judged: int = 0
    unjudged: int = 0
    passes: bool = False
    keep: str | None = None
    no_keep: str = ""
    notes: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True)
class CalibrationFigures:
    """The content of calibration.parquet."""

    about: CalibrationAbout
    lines: Sequence[CalibrationLine]

    def of(self, figure: str) -> list[CalibrationLine]:
        """Return the lines of a figure."""
        return [line for line in self.lines if line.figure == figure]

    def one(self, figure: str, value: str = "") -> CalibrationLine | None:
        """Return the line of a figure of a value; None if there is none."""
        return next((line for line in self.of(figure) if line.value == value), None)

    def stale(self, run: str, manifest: Mapping[str, Any]) -> str:
        """Say why the figures are not of the rows that are there now; empty if they are. `run`: its id now."""
        now = folder_rows(manifest, self.about.folder)
        if run and self.about.run and run != self.about.run:
            return "they are of another run that was in this directory"
        if now != self.about.folder_rows:
            return f"{self.about.folder} had {self.about.folder_rows:,} rows and has {now:,} now"
        return ""

    def table(self) -> pa.Table:
        """Return the lines as an Arrow table with SCHEMA."""
        columns = list(zip(*self.lines, strict=True)) or [()] * len(SCHEMA)
        arrays = [pa.array(values, kind.type) for values, kind in zip(columns, SCHEMA, strict=True)]
        about = json.dumps(asdict(self.about), ensure_ascii=False).encode()
        return pa.Table.from_arrays(arrays, schema=SCHEMA.with_metadata({ABOUT: about}))


def folder_rows(manifest: Mapping[str, Any], folder: str) -> int:
    """Return the rows of a folder by the manifest of a run."""
    shards = manifest.get("shards", [])
    return sum(int(s["rows"]) for s in shards if PurePath(s["path"]).parent.as_posix() == folder)


def write_calibration(directory: Path, figures: CalibrationFigures) -> Path:
    """Write calibration.parquet. Returns its path. Raises StorageError if it cannot be written."""
    path = directory / CALIBRATION
    with replacing(path) as file:
        write_parquet(figures.table(), file)
    return path


def read_calibration(directory: Path) -> CalibrationFigures | None:
    """Return what calibration.parquet of the run says; None if there is none, or it is damaged."""
    try:
        table = pq.read_table(directory / CALIBRATION)
        about = CalibrationAbout(**json.loads((table.schema.metadata or {})[ABOUT]))
        lines = [CalibrationLine(**row) for row in table.to_pylist()]
    except (OSError, KeyError, TypeError, ValueError):  # ArrowInvalid is a ValueError
        return None
    return CalibrationFigures(about, lines)
