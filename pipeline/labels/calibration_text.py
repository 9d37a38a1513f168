"""Text that `calibrate` prints: the tables of the report as text, what to know about the labels, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.labels.judge_bias import JudgeBias
from pipeline.monitor.wording import printable
from pipeline.results.comparison import aligned
from pipeline.results.report.calibrated import calibration_tables, keep_text
from pipeline.results.report.panel import ReportTable
from pipeline.run_dir.calibration_file import CalibrationAbout, CalibrationFigures


def sections_of(figures: CalibrationFigures) -> Iterator[list[str]]:
    """Yield the sections to print, each a list of lines."""
    about = figures.about
    who = f"{len(about.reviewers)} reviewer{'s' * (len(about.reviewers) != 1)}"
    named = f" ({', '.join(about.reviewers)})" if about.reviewers else ""
    yield [f"{about.verdict} in {about.folder}, {about.folder_rows:,} rows, by labels of {who}{named}", *_notes(about)]
    for table in calibration_tables(figures):
        yield _as_text(table)
    if keep := keep_text(figures):
        yield [keep]


def bias_sections(bias: JudgeBias, about: CalibrationAbout) -> Iterator[list[str]]:
    """Yield the sections of what is told without labels."""
    lines = [*bias.lines(), *bias.by_length(about.values)]
    yield [
        f"{about.verdict} in {about.folder}, without labels: nothing is written",
        *(f"note: {n}" for n in bias.notes),
    ]
    for table in calibration_tables(CalibrationFigures(about, lines)):
        yield _as_text(table)


def replaced_text(before: CalibrationFigures) -> str:
    """Return what the files of a calibration were of that have been written anew."""
    given, about = before.one("labels", "given"), before.about
    return f"figures of {about.verdict} by {given.rows if given else 0:,} labels of {', '.join(about.files)}"


def _notes(about: CalibrationAbout) -> list[str]:
    return [f"note: {note}" for note in about.notes]


def _as_text(table: ReportTable) -> list[str]:
    rows = [["" if cell is None else printable(str(cell)) for cell in row] for row in table.rows]
    columns = [printable(name) for name in table.columns]
    return [printable(table.caption), *(f"  {line}" for line in aligned(columns, rows))]
