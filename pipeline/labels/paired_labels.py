"""Comparison of the judges of two runs by the same labels: paired, since both have judged the same rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from pipeline.api.errors import ConfigError
from pipeline.api.intervals import Interval, mcnemar, quantile
from pipeline.api.records import LINEAGE, ROW
from pipeline.labels.design import design_of
from pipeline.labels.joined_labels import LabelledRow, join_labels, strange_labels
from pipeline.labels.judged_rows import ID, VERDICT, as_verdict, id_column, judged_rows
from pipeline.labels.label_files import read_labels
from pipeline.labels.rates import Booleans, Floats, Sampled, Whole, rate
from pipeline.results.compare import join_keys
from pipeline.results.comparison import aligned
from pipeline.results.reader import Results
from pipeline.results.report.calibrated import percent

CONFIDENCE = 0.95
SMALLEST_P = 0.0001


def by_labels(a: Results, b: Results, files: Sequence[Path], verdict: str, folder: str, letter: str) -> list[str]:
    """Return lines on how often each run's `verdict` is what people say. `letter`: the name of run `b`.

    Raises:
        ConfigError: a column or a file is not what it should be, or no labelled row is in both runs.
    """
    runs = {label.run for label in read_labels(files, id_column(a))}
    owner, other = (b, a) if b.run_id in runs and a.run_id not in runs else (a, b)
    judged, judged_there = (judged_rows(run, folder, verdict) for run in (owner, other))
    joined = join_labels(owner, judged, files, verdict, folder)
    design = design_of(judged, joined)
    theirs = _verdicts(owner, other, folder, judged_there, design.rows)
    there = np.array([_key(row, theirs[0]) in theirs[1] for row in design.rows])
    if not there.any():
        raise ConfigError(f"no labelled row of {owner.directory} has a {verdict} in {other.directory}: nothing to pair")
    rows = [row for row, is_there in zip(design.rows, there, strict=True) if is_there]
    sample = _without_empty(design.sample.stratum[there], design.sample.rows)
    kind = judged_there.collect_schema()[verdict]
    found = judged_there.select(pl.col(VERDICT).unique()).drop_nulls().sort(VERDICT).collect(engine="streaming")
    values = found[VERDICT].to_list()
    labels = [as_verdict(row.label or "", kind, values) for row in rows]  # 1 of whole numbers is 1.0 of others
    own = np.array([row.verdict == row.label for row in rows])
    its = np.array([theirs[1][_key(row, theirs[0])] == label for row, label in zip(rows, labels, strict=True)])
    right_a, right_b = (own, its) if owner is a else (its, own)
    difference = paired_difference(sample.weights, right_a, right_b)
    only_a, only_b = int((right_a & ~right_b).sum()), int((~right_a & right_b).sum())
    p = mcnemar(only_a, only_b)
    cells = [f"{len(rows):,}", *(_shown(rate(sample, right)) for right in (right_a, right_b)), _signed(difference)]
    head = ["right", "rows", "A", letter, f"{letter} - A", "A only", f"{letter} only", "p"]
    counts = [f"{only_a:,}", f"{only_b:,}", f"{p:.2g}" if p >= SMALLEST_P else f"<{SMALLEST_P}"]
    left_out = int((~there).sum())
    notes = [f"{left_out:,} labelled rows have no {verdict} in {other.directory} and are left out"] if left_out else []
    notes += strange_labels(labels, values, f"{verdict} of {other.directory}")
    return [
        f"{verdict} by people's labels, with intervals at 95 %; p by McNemar's exact test of the rows counted",
        *(f"  {line}" for line in aligned(head, [[verdict, *cells, *counts]])),
        *(f"  note: {note}" for note in [*joined.notes, *design.notes, *notes]),
    ]


def paired_difference(weights: Floats, right_a: Booleans, right_b: Booleans) -> Interval:
    """Return the share right in B less that in A, by the weights of the rows [n], -1 to 1, with its interval: Wald's
    with half a row more in each of the four cells (Agresti and Min 2005), of as many rows as the weights are worth.
    """
    n = weights.sum() ** 2 / (weights**2).sum()
    share = weights / weights.sum()
    only_a, only_b = float(share @ (right_a & ~right_b)), float(share @ (~right_a & right_b))
    b, c, rows = n * only_a + 0.5, n * only_b + 0.5, n + 2
    half = quantile(CONFIDENCE) * math.sqrt(b + c - (c - b) ** 2 / rows) / rows
    middle, estimate = (c - b) / rows, only_b - only_a
    return Interval(estimate, max(-1.0, min(estimate, middle - half)), min(1.0, max(estimate, middle + half)))


def _verdicts(
    owner: Results, other: Results, folder: str, theirs: pl.LazyFrame, rows: Sequence[LabelledRow]
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return the columns by which rows of both are joined, and the other run's verdicts of labelled rows by key."""
    ours = owner.rows(folder)
    assert ours is not None
    keys = join_keys(owner, other, ours, theirs)
    if not keys:
        raise ConfigError(
            f"neither an id column nor '{ROW.name}' tells apart the rows of {owner.directory} and {other.directory}"
        )
    key = pl.col(ROW.name).cast(pl.String) if keys[0] == ROW.name else pl.col(ID)
    if LINEAGE.name in keys:
        key = pl.concat_str(
            key, pl.lit(" "), pl.col(LINEAGE.name).cast(pl.List(pl.String)).list.join(".").fill_null("")
        )
    wanted = [_key(row, keys) for row in rows]
    found = theirs.select(key.alias("key"), VERDICT).drop_nulls().filter(pl.col("key").is_in(wanted))
    return keys, dict(found.collect(engine="streaming").iter_rows())


def _key(row: LabelledRow, keys: Sequence[str]) -> str:
    lineage = "" if row.lineage is None else ".".join(map(str, row.lineage))
    name = str(row.row if keys[0] == ROW.name else row.id)
    return f"{name} {lineage}" if LINEAGE.name in keys else name


def _without_empty(stratum: Whole, rows: Whole) -> Sampled:
    kept, index = np.unique(stratum, return_inverse=True)
    return Sampled(index, rows[kept])


def _shown(interval: Interval) -> str:
    return f"{percent(interval.estimate)} ({100 * interval.low:.1f} to {100 * interval.high:.1f})"


def _signed(interval: Interval) -> str:
    return f"{100 * (interval.estimate or 0):+.1f} % ({100 * interval.low:+.1f} to {100 * interval.high:+.1f})"
