"""Panel on what people's labels say of the verdicts of a run. Its tables are those that `calibrate` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise

from pipeline.monitor.wording import number, share
from pipeline.results.reader import Results
from pipeline.results.report.panel import Cell, Chart, Fold, Panel, ReportTable, Series
from pipeline.run_dir.calibration_file import CalibrationFigures, CalibrationLine, read_calibration

Rows = list[list[Cell]]
INTERVAL = "95 % interval"
CURVE = "Accuracy by confidence"


def calibrated(results: Results) -> list[Panel]:
    """Return the panel, of a run that has been calibrated."""
    figures = read_calibration(results.directory)
    if figures is None:
        return []
    about, stale = figures.about, figures.stale(results.run_id, results.manifest)
    again = f" These figures are not of the rows that are here: {stale}. Calibrate again." if stale else ""
    said = f"How far people agree with {about.verdict}, by labels of {', '.join(about.reviewers)}.{again}"
    keep = keep_text(figures)
    folds = [Fold("The line for a job that keeps rows", keep)] if keep else []
    folds += [Fold("What to know about these labels", "\n".join(about.notes))] if about.notes else []
    return [Panel("Calibration", said, _curve(figures), calibration_tables(figures), folds=folds)]


def calibration_tables(figures: CalibrationFigures) -> list[ReportTable]:
    """Return the tables of the figures, in their order; none is empty."""
    every = (
        _labels,
        _confusion,
        _agreement,
        _rates,
        _whole_run,
        _by_confidence,
        _threshold,
        _reviewers,
        _bias,
        _length,
    )
    return [_without_empty_columns(table) for make in every if (table := make(figures)).rows]


def _without_empty_columns(table: ReportTable) -> ReportTable:
    kept = [i for i, cells in enumerate(zip(*table.rows, strict=True)) if any(cell not in (None, "") for cell in cells)]
    rows = [[row[i] for i in kept] for row in table.rows]
    return ReportTable([table.columns[i] for i in kept], rows, table.caption)


def keep_text(figures: CalibrationFigures) -> str:
    """Return the `keep:` line of the threshold, or why there is none; empty if nobody expects one."""
    about = figures.about
    if about.keep is None:
        return about.no_keep and f"no threshold: {about.no_keep}"
    value = about.positive or ""
    precision, kept = figures.one("threshold_precision", value), figures.one("threshold_kept", value)
    is_plain = not about.keep.startswith('"') and not re.search(r": | #|\n", about.keep)
    line = f"keep: {about.keep if is_plain else json.dumps(about.keep, ensure_ascii=False)}"
    if precision is None or kept is None:
        return line
    reason = f"precision {percent(precision.estimate)} ({limits(precision)}), keeps {percent(kept.estimate)} of rows"
    return f"{line} # {reason}"


def percent(value: float | None) -> str:
    """Format a share: `12.3 %`; a dash if there is none."""
    return "-" if value is None else share(value, 1)


def limits(line: CalibrationLine) -> str:
    """Format the interval of a share: `10.1 to 14.7 %`; empty if it has none."""
    if line.estimate is None or line.low is None or line.high is None:
        return ""
    return f"{100 * line.low:.1f} to {100 * line.high:.1f} %"


def _cells(line: CalibrationLine) -> list[Cell]:
    return [percent(line.estimate), limits(line), number(line.rows or 0)]


def _labels(figures: CalibrationFigures) -> ReportTable:
    rows: Rows = [[line.value, number(line.rows or 0)] for line in figures.of("labels") if line.rows]
    rows += [["rows that they label", number(line.rows or 0)] for line in figures.of("labelled_rows")]
    return ReportTable(["labels", ""], rows, f"Labels of {', '.join(figures.about.files)}")


def _confusion(figures: CalibrationFigures) -> ReportTable:
    values = figures.about.values
    cells = {(line.value, line.group): f"{line.rows:,} ({percent(line.estimate)})" for line in figures.of("confusion")}
    rows: Rows = [[said, *(cells.get((said, verdict)) for verdict in values)] for said in values if cells]
    caption = "What people say, and the verdict: labelled rows, and the share of the run that they stand for"
    return ReportTable(["people say", *(f"verdict {value}" for value in values)], rows, caption)


def _agreement(figures: CalibrationFigures) -> ReportTable:
    rows: Rows = [["the verdict is what people say", *_cells(line)] for line in figures.of("agreement")]
    names = {
        "kappa": "beyond chance (Cohen's kappa)",
        "reviewers_kappa": "two reviewers with each other (Cohen's kappa)",
        "reviewers_alpha": "reviewers with each other (Krippendorff's alpha)",
    }
    for figure, name in names.items():
        for line in figures.of(figure):
            rows.append(
                [
                    name,
                    "-" if line.estimate is None else f"{round(line.estimate, 2) + 0.0:.2f}",
                    "",
                    number(line.rows or 0),
                ]
            )
    return ReportTable(["agreement", "", INTERVAL, "rows"], rows, "How often the verdict is right")


def _rates(figures: CalibrationFigures) -> ReportTable:
    rows: Rows = []
    for line in figures.of("true_positive_rate"):
        v = line.value
        rows.append([f"of rows that people call {v}, the verdict is {v}", *_cells(line)])
        if other := figures.one("true_negative_rate", v):
            rows.append([f"of rows that people do not call {v}, the verdict is another", *_cells(other)])
        if precise := figures.one("precision", v):
            rows.append([f"of rows with the verdict {v}, people say {v}", *_cells(precise)])
    return ReportTable(["rate", "", INTERVAL, "rows"], rows, "True positive rate, true negative rate and precision")


def _whole_run(figures: CalibrationFigures) -> ReportTable:
    rows: Rows = []
    for line in figures.of("corrected_rate"):
        v, raw, worth = line.value, figures.one("raw_rate", line.value), figures.one("worth_labels", line.value)
        more = figures.one("labels_needed", v)
        rows.append(
            [
                v,
                percent(raw.estimate if raw else None),
                percent(line.estimate),
                limits(line),
                number(worth.estimate or 0) if worth else "",
                number(more.rows or 0) if more else "",
            ]
        )
    columns = ["value", "the judge says", "people would say", INTERVAL, "worth plain labels"]
    likely = " and probabilities" if figures.about.probability and len(figures.about.values) == 2 else ""
    corrected = f"corrected by the labels{likely} (prediction-powered inference)"
    caption = f"Rows of the whole run: raw by the verdicts, and {corrected}"
    return ReportTable([*columns, f"labels to add for a width of {100 * figures.about.width:g} %"], rows, caption)


def _by_confidence(figures: CalibrationFigures) -> ReportTable:
    means = {line.group: line for line in figures.of("mean_confidence")}
    rows: Rows = []
    for line in figures.of("accuracy_by_confidence"):
        mean = means.get(line.group)
        rows.append([line.group, percent(mean.estimate if mean else None), *_cells(line)])
    columns = [figures.about.probability or "", "the judge's mean", "right", INTERVAL, "rows"]
    return ReportTable(columns, rows, CURVE)


def _threshold(figures: CalibrationFigures) -> ReportTable:
    about, at = figures.about, figures.one("threshold", figures.about.positive or "")
    if about.positive is None or about.probability is None or at is None:
        return ReportTable([], [])
    rows: Rows = [["kept from a probability of", f"{at.estimate or 0:.4g}", "", number(at.rows or 0)]]
    names = {"threshold_precision": f"of these people say {about.positive}", "threshold_kept": "kept of the run"}
    for figure, name in names.items():
        rows += [[name, *_cells(line)] for line in figures.of(figure)]
    sure = (
        "is reached by the lower limit" if at.group == "sure" else "is reached by the estimate, not by its lower limit"
    )
    return ReportTable(["threshold", "", INTERVAL, "rows"], rows, f"A precision of {percent(about.precision)} {sure}")


def _reviewers(figures: CalibrationFigures) -> ReportTable:
    said: Sequence[CalibrationLine] = figures.of("reviewers_say")
    names = figures.about.reviewers if len(figures.about.reviewers) == 2 else ["one says", "another says"]
    rows: Rows = [[line.value, line.group, number(line.rows or 0)] for line in said]
    return ReportTable([*names, "rows"], rows, "What reviewers say of the same rows")


def _bias(figures: CalibrationFigures) -> ReportTable:
    names = {
        "order_agreement": "both orders agree",
        "order_favours_first": "where they do not, the first place wins",
    }
    rows: Rows = [[name, *_cells(line)] for figure, name in names.items() for line in figures.of(figure)]
    rows += [
        [f"self-agreement: {line.group}{' that agree' if 'pairs' in line.group else ''}", *_cells(line)]
        for line in figures.of("self_agreement")
    ]
    rows += [
        [f"{line.value}, in the other order {line.group}", None, None, number(line.rows or 0)]
        for line in figures.of("order_verdicts")
    ]
    return ReportTable(["bias", "", INTERVAL, "rows"], rows, "Order effects and self-agreement, over rows of the run")


def _length(figures: CalibrationFigures) -> ReportTable:
    rows: Rows = []
    for line in figures.of("length_verdicts"):
        key, row = (line.value, line.group), [line.value, line.group, percent(line.estimate), number(line.rows or 0)]
        cells: list[Cell] = [*row]
        for figure in ("length_labelled_verdicts", "length_labels"):
            found = next((one for one in figures.of(figure) if (one.value, one.group) == key), None)
            cells += [None, None] if found is None else [percent(found.estimate), limits(found)]
        rows.append([*cells, number(found.rows or 0) if found else None])
    columns = [
        "value",
        "characters",
        "verdicts",
        "rows",
        "of labelled rows",
        INTERVAL,
        "people say",
        INTERVAL,
        "labels",
    ]
    return ReportTable(columns, rows, "Length bias: a share that grows in verdicts and not in labels is the judge's")


def _curve(figures: CalibrationFigures) -> list[Chart]:
    """Return the reliability curve: accuracy in bands of confidence, beside the confidence that the judge has there."""
    bands = sorted(figures.of("mean_confidence"), key=lambda line: line.low or 0.0)
    right = {line.group: line for line in figures.of("accuracy_by_confidence")}
    if len(bands) < 2:
        return []
    edges = [100 * (band.low or 0.0) for band in bands] + [100 * (bands[-1].high or 0.0)]
    if any(a >= b for a, b in pairwise(edges)):
        return []

    def values(of: str) -> list[float | None]:
        lines = [right[band.group] for band in bands]
        return [100 * value if (value := getattr(line, of)) is not None else None for line in lines]

    series = [
        Series("right, by people", "c1", values("estimate")),
        Series("lower limit", "c7", values("low")),
        Series("upper limit", "c7", values("high")),
        Series("what the judge says", "c2", [100 * (band.estimate or 0.0) for band in bands]),
    ]
    about = "Where the first line is on the last, the judge is as often right as it says."
    return [Chart(CURVE, about, edges, series, "%", axis="% sure")]
