"""Calibrate a judge by people's labels: how far its verdicts can be trusted, and the run's rows by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from pipeline.api.errors import ConfigError
from pipeline.labels.calibration_options import CalibrationOptions, keep_condition, positive_of
from pipeline.labels.design import design_of
from pipeline.labels.joined_labels import JoinedLabels, join_labels
from pipeline.labels.judge_bias import JudgeBias
from pipeline.labels.judge_figures import JudgeFigures
from pipeline.labels.judged_rows import VERDICT, judged_rows, require_columns, with_scores
from pipeline.results.reader import Results
from pipeline.run_dir.calibration_file import CalibrationAbout, CalibrationFigures, folder_rows


@dataclass(frozen=True)
class CalibratedJudge:
    """Figures, and the labels that they are made of."""

    figures: CalibrationFigures
    joined: JoinedLabels


def bias_of(results: Results, options: CalibrationOptions) -> tuple[JudgeBias, CalibrationAbout]:
    """Return what can be told of the judge without labels, and of what. Raises ConfigError."""
    judged = judged_rows(results, options.folder, options.verdict)
    require_columns(judged, swapped=options.swapped, text=options.text)
    values = judged.select(VERDICT).drop_nulls().unique().sort(VERDICT).collect()[VERDICT].to_list()
    positive, _ = positive_of(options.positive, values)
    about = _about(results, options, positive, values)
    return JudgeBias(judged, options.verdict, options.swapped, options.positions, options.text), about


def calibrate(results: Results, files: Sequence[Path], options: CalibrationOptions) -> CalibratedJudge:
    """Return the figures of the verdicts of a run by the labels in `files`.

    Raises:
        ConfigError: a column or a file is missing or is not what it should be, no label fits, or none counts.
    """
    rows = judged_rows(results, options.folder, options.verdict)
    require_columns(rows, probability=options.probability, swapped=options.swapped, text=options.text)
    types = rows.collect_schema()
    probability, lacks = _probability(rows, types, options)
    judged = with_scores(rows, probability, options.text)
    joined = join_labels(results, judged, files, options.verdict, options.folder)
    design = design_of(judged, joined)
    strange = sorted({row.label or "" for row in design.rows} - joined.verdicts.keys())
    values = [*joined.verdicts, *strange]
    positive, passes = positive_of(options.positive, list(joined.verdicts), strange)
    judge = JudgeFigures(judged, joined, design, values, [positive] if positive else values, probability)
    bias = JudgeBias(rows, options.verdict, options.swapped, options.positions, options.text)
    unused = [lacks] if lacks and f"{options.verdict}_probability" in types else []
    threshold = judge.threshold(positive, options.precision, lacks)
    lines = [
        *judge.lines(options.width),
        *threshold.lines,
        *bias.lines(),
        *bias.by_length(judge.targets, design),
    ]
    about = replace(
        _about(results, options, positive, values),
        probability=probability,
        values=values,
        files=[path.name for path in files],
        reviewers=joined.reviewers,
        judged=judge.total,
        unjudged=judge.unjudged,
        passes=passes,
        keep=threshold.at
        and keep_condition(options.verdict, positive or "", types[options.verdict], probability or "", threshold.at),
        no_keep=threshold.why_none,
        notes=[*joined.notes, *design.notes, *judge.notes, *bias.notes, *unused],
    )
    return CalibratedJudge(CalibrationFigures(about, lines), joined)


def _about(
    results: Results, options: CalibrationOptions, positive: str | None, values: Sequence[str]
) -> CalibrationAbout:
    """Return what figures without labels are of."""
    return CalibrationAbout(
        run=results.run_id,
        folder=options.folder,
        folder_rows=folder_rows(results.manifest, options.folder),
        verdict=options.verdict,
        probability=None,
        positive=positive,
        values=[positive] if positive else values,
        files=[],
        reviewers=[],
        precision=options.precision,
        width=options.width,
    )


def _probability(rows: pl.LazyFrame, types: pl.Schema, options: CalibrationOptions) -> tuple[str | None, str]:
    """Return the column of how likely verdicts are; None, and why, if there is none. Raises ConfigError if the one that
    the user names is no column of probabilities."""
    name = options.probability or f"{options.verdict}_probability"
    if name not in types:
        adds = "a step with choices adds it with probability: true, or name a column (--probability)"
        return None, f"the rows have no {name}; {adds}"
    if not types[name].is_numeric():
        why = f"column '{name}' is a {types[name]}, no number"
        if options.probability:
            raise ConfigError(f"--probability: {why}")
        return None, f"{why}; name another (--probability)"
    numbers = pl.col(name).cast(pl.Float64).fill_nan(None)
    ends = rows.select(least=numbers.min(), most=numbers.max()).collect(engine="streaming").row(0)
    beyond = next((end for end in ends if end is not None and not 0 <= end <= 1), None)
    if beyond is None:
        return name, ""
    why = f"column '{name}' has {beyond:g}, and probabilities are 0 to 1"
    if options.probability:
        raise ConfigError(f"--probability: {why}; name another, or make one of it with operators.map.Map")
    return None, f"{why}: it is not used; name another (--probability), or make one of it with operators.map.Map"
