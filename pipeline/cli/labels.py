"""`python -m pipeline review DIR --columns ...`: write a page with a sample of a run's rows for people to label."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.commands import PROGRAM, parser_of
from pipeline.labels.page import ReviewPage
from pipeline.labels.sample import MOST_VALUES, PLACE, By, by_columns, require, sample_of
from pipeline.labels.verdict_column import choices_of, guessed_by
from pipeline.monitor.wording import bytes_text, printable
from pipeline.results.batches import no_rows
from pipeline.results.reader import read_results
from pipeline.run_dir.names import DATA, REVIEW
from pipeline.system.terminal import say


def review(arguments: Sequence[str]) -> ExitCode:
    """Write the page."""
    parser = parser_of("review")
    parser.add_argument("directory", type=Path, metavar="outputs/NAME", help="directory of a run; it may still work")
    parser.add_argument("--columns", type=_names, required=True, help="columns to show, in this order")
    parser.add_argument("--rows", type=int, default=100, help="rows to label (100)")
    parser.add_argument("--by", type=_names, help="columns that make strata: first the verdict, a number, disagreement")
    parser.add_argument("--choices", type=_names, help="labels with a button (choices of the step, or its values)")
    parser.add_argument("--question", metavar="TEXT", help="guidelines above the buttons (What should VERDICT be?)")
    parser.add_argument("--blind", action="store_true", help="do not show the columns of --by")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other rows (0)")
    parser.add_argument("--folder", default=DATA, help="data/NAME of a second sink (data)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the page (review.html of the run)")
    options = parser.parse_args(arguments)
    results = read_results(options.directory)
    rows = results.rows(options.folder, PLACE)
    if rows is None:
        raise no_rows(results, options.folder)
    if options.rows < 1 or options.seed < 0:
        raise ConfigError("--rows is at least 1, --seed at least 0")
    require(rows.collect_schema().names(), options.columns, "--columns")
    by = by_columns(rows, options.by) if options.by else guessed_by(rows, options.columns, results.config)
    if by is None and not options.choices:
        raise ConfigError(
            f"none of {', '.join(options.columns)} can be a verdict: a column of booleans, or of few texts; show the"
            " column of the verdict, name it with --by, or give --choices yes,no for labels of your own"
        )
    by = by or By(None)
    shown = [name for name in options.columns if not (options.blind and name in by.columns)]
    choices = options.choices or (choices_of(rows, by.verdict, results.config) if by.verdict else [])
    if not shown:
        raise ConfigError("--blind hides the columns of --by, and no other is in --columns; name one to judge")
    if not choices or len(choices) > MOST_VALUES:
        raise ConfigError(f"there are {len(choices)} labels to choose from; give --choices yes,no (1 to {MOST_VALUES})")
    sample = sample_of(rows, by, options.rows, options.seed)
    path = options.out or results.directory / REVIEW
    question = options.question or (f"What should {by.verdict} be?" if by.verdict else "Your label")
    ReviewPage(options.folder, shown, choices, question, options.blind).write(path, results, sample)
    many = sum(len(stratum.places) for stratum in sample.strata)
    guessed = "" if options.by else f" by {', '.join(by.columns)} (--by makes others)"
    drawn = f"from {len(sample.strata)} strata{guessed}" if len(sample.strata) > 1 else "at random (--by makes strata)"
    then = f" --verdict {by.verdict or 'COLUMN'}" + (f" --folder {options.folder}" if options.folder != DATA else "")
    say(
        [
            *([f"{len(results.missing):,} files of the run are missing, see verify"] if results.missing else []),
            *([f"the run has {many:,} rows: all are on the page"] if many < options.rows else []),
            f"{len(sample.places):,} of {many:,} rows, {drawn}; labels: {printable(', '.join(choices))}",
            f"page      {path} ({bytes_text(path.stat().st_size)}); open it in a browser, label, save a file",
            f"then      {PROGRAM} calibrate {results.directory} --labels FILE{then}",
        ]
    )
    return ExitCode.DONE


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
