"""Files that `calibrate` leaves in a run's directory: figures, joined labels, report and card with them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from pipeline.api.records import LINEAGE
from pipeline.labels.calibration import CalibratedJudge
from pipeline.labels.joined_labels import JoinedLabels
from pipeline.publish.dataset_card import renew_card
from pipeline.results.reader import Results
from pipeline.results.report import write_report
from pipeline.run_dir.calibration_file import write_calibration
from pipeline.run_dir.names import LABELS
from pipeline.system.atomic_files import replacing, write_parquet

LABELS_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64()),
        LINEAGE,
        pa.field("id", pa.string()),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("probability", pa.float64()),
        pa.field("consensus", pa.string()),
        pa.field("reviewer", pa.string(), nullable=False),
        pa.field("label", pa.string()),
        pa.field("comment", pa.string()),
        pa.field("stratum", pa.string()),
        pa.field("stratum_rows", pa.int64()),
    ]
)
"""Columns of labels.parquet: a line for each row and reviewer. `consensus`: the label of most reviewers, null if they
tie; `label`: null if the reviewer skipped the row."""


def save(results: Results, judge: CalibratedJudge) -> list[Path]:
    """Write calibration.parquet, labels.parquet and report.html, and a card that is there and was not edited. Returns
    their paths. Raises StorageError if one cannot be written."""
    directory = results.directory
    labels = directory / LABELS
    with replacing(labels) as file:
        write_parquet(labels_table(judge.joined), file)
    figures = write_calibration(directory, judge.figures)
    card = renew_card(directory, results.run_id, results.manifest)
    return [figures, labels, write_report(directory), *([card] if card else [])]


def labels_table(joined: JoinedLabels) -> pa.Table:
    """Return the labels beside their rows, with LABELS_SCHEMA."""
    lines = [
        {
            "row": row.row,
            "lineage": row.lineage,
            "id": row.id,
            "verdict": row.verdict,
            "probability": row.probability,
            "consensus": row.label,
            "reviewer": label.reviewer,
            "label": label.label,
            "comment": label.comment or None,
            "stratum": label.stratum,
            "stratum_rows": label.stratum_rows,
        }
        for row in joined.rows
        for label in row.said
    ]
    return pa.Table.from_pylist(lines, schema=LABELS_SCHEMA)
