"""`python -m pipeline calibrate DIR --labels FILE --verdict COLUMN`: say how far the verdicts of a run can be trusted,
by people's labels. Writes calibration.parquet, labels.parquet and report.html of the run; without `--labels` it writes
nothing, and tells what needs none: order effects, self-agreement, length.

The exit code is 0, and 2 if a file, a column or a value is not what it should be.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.commands import parser_of
from pipeline.labels.calibration import bias_of, calibrate
from pipeline.labels.calibration_files import save
from pipeline.labels.calibration_options import CalibrationOptions
from pipeline.labels.calibration_text import bias_sections, replaced_text, sections_of
from pipeline.results.reader import read_results
from pipeline.run_dir.calibration_file import read_calibration
from pipeline.run_dir.names import DATA
from pipeline.system.terminal import say

NONE = "none"


def main(arguments: Sequence[str]) -> ExitCode:
    """Print and write the figures."""
    parser = parser_of("calibrate")
    parser.add_argument("directory", type=Path, metavar="outputs/NAME", help="directory of a run")
    parser.add_argument("--labels", type=Path, nargs="+", metavar="FILE", default=[], help="files that `review` saves")
    parser.add_argument("--verdict", required=True, metavar="COLUMN", help="column of the judge's verdicts")
    parser.add_argument("--probability", metavar="COLUMN", help="how likely its verdict is (VERDICT_probability)")
    parser.add_argument("--positive", metavar="VALUE", help="the verdict told one against the rest (yes of yes and no)")
    parser.add_argument("--precision", type=float, default=0.95, help="what the threshold has to reach (0.95)")
    parser.add_argument("--width", type=float, default=0.1, help="of the interval to count labels for (0.1)")
    parser.add_argument("--swapped", metavar="COLUMN", help="the verdict with two answers in the other order")
    parser.add_argument("--positions", metavar="A,B", help="verdicts that name the first and second place, or none")
    parser.add_argument("--text", metavar="COLUMN", help="the text that is judged, to tell whether its length counts")
    parser.add_argument("--folder", default=DATA, help="data/NAME of a second sink (data)")
    given = parser.parse_args(arguments)
    places = None if given.positions is None else [v for v in given.positions.split(",") if v != NONE]
    options = CalibrationOptions(
        *(given.verdict, given.probability, given.positive, given.precision, given.width, given.swapped, places),
        *(given.text, given.folder),
    )
    results = read_results(given.directory)
    if given.labels:
        judge, before = calibrate(results, given.labels, options), read_calibration(results.directory)
        paths = save(results, judge)
        for section in sections_of(judge.figures):
            say([*section, ""])
        replaced = [] if before is None else [f"replaced    {replaced_text(before)}"]
        say([*replaced, *(f"written     {path}" for path in paths)])
    else:
        bias, about = bias_of(results, options)
        sections = list(bias_sections(bias, about))
        if len(sections) == 1:
            raise ConfigError(
                "there are no labels (--labels FILE; `review` makes a page for them), and nothing to tell without:"
                " --swapped and --text name columns, and the rows are no samples of one prompt"
            )
        for section in sections:
            say([*section, ""])
    return ExitCode.DONE
