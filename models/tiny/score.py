"""Scores the answers of the small model: an operator of one's own, named in a job file by `_target_`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import polars as pl
import pyarrow as pa

from models.tiny.tasks import FAMILIES, check
from operators.scoring.accuracy import accuracy_lines
from pipeline.api import Batch, Concludes, Operator, Output, RejectKind, add_columns, require_column
from pipeline.system.result_files import scan_folder

_COLUMNS = ("family", "prompt", "completion", "meta")
CORRECT = pa.field("correct", pa.bool_(), nullable=False)


class CheckAnswers(Operator, Concludes):
    """Adds `correct`: whether the completion is a right answer, by the program that knows it.

    Reads `family`, `prompt`, `completion` and `meta` (strings). A row of a family that there is no checker for is
    rejected. At the end of the run it reports the accuracy by family.
    """

    def plan(self, schema: pa.Schema) -> pa.Schema:
        """Adds `correct`."""
        for name in _COLUMNS:
            require_column(schema, name, [pa.string()])
        self._schema = add_columns(schema, CORRECT)
        return self._schema

    def process(self, batch: Batch) -> Iterable[Output]:
        """Check the rows of one batch."""
        rows = list(zip(*(batch.data.column(name).to_pylist() for name in _COLUMNS), strict=True))
        unknown = [i for i, row in enumerate(rows) if row[0] not in FAMILIES]
        if unknown:
            reasons = [
                f"there is no checker for the family {rows[i][0]!r}; known: {', '.join(FAMILIES)}" for i in unknown
            ]
            yield batch.reject(unknown, reasons, RejectKind.ERROR)
        known = [i for i, row in enumerate(rows) if row[0] in FAMILIES]
        correct = pa.array([check(*rows[i]) for i in known], pa.bool_())
        kept = batch.data.take(pa.array(known, pa.int64()))
        yield batch.with_data(pa.record_batch([*kept.columns, correct], schema=self._schema))

    def report(self, directory: Path, node: str) -> Iterable[str]:
        """The accuracy by family."""
        yield from accuracy_lines(directory, ["family"], CORRECT.name)


def accuracy(data: Path) -> pl.DataFrame:
    """`family`, `right` and `rows` of the shards in `data`, and a last line `all`."""
    rows = scan_folder(data).select("family", "correct")
    by_family = rows.group_by("family").agg(right=pl.col("correct").sum(), rows=pl.len()).sort("family")
    total = rows.select(family=pl.lit("all"), right=pl.col("correct").sum(), rows=pl.len())
    found = pl.concat([by_family, total]).collect()
    return found.filter(pl.col("rows") > 0)
