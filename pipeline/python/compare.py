"""Compare runs: what the command `compare` says, and its numbers as frames."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.api.errors import ConfigError
from pipeline.python.result import Result
from pipeline.results.compare import figures_by_name, joined
from pipeline.results.comparison import letters_of, sections
from pipeline.results.reader import Results, read_results
from pipeline.run_dir.names import DATA

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs, which are called A, B, C ... in their order.

    Args:
        text: as `python -m pipeline compare` prints it.
        figures: a row for each number of the runs (rows, tokens, times), a column for each run.
        paired: a row for each column of booleans (`kind` share) and numbers (mean) of each run but the first, over the
            `rows` in which both have a value: `first` and `other`, `difference`, its `standard_error`; of booleans how
            many are true in one alone (`only_first`, `only_other`), and `p` of McNemar's exact test. With samples `p`
            and `standard_error` are over prompts.

    Example:
        >>> from pipeline import compare, run
        >>> few = {"data.limit": 4, "sampling.max_tokens": 4}
        >>> runs = [run("quickstart", few, seed=seed, progress="none") for seed in (0, 1)]
        >>> compare(*runs).figures.row(0)
        ('rows done', 4.0, 4.0)
    """

    text: str
    figures: pl.DataFrame
    paired: pl.DataFrame

    def __str__(self) -> str:
        return self.text


def compare(
    first: Result | str | Path,
    *others: Result | str | Path,
    labels: str | Path | Iterable[str | Path] = (),
    verdict: str | None = None,
    folder: str = DATA,
) -> Comparison:
    """Compare runs, each against the first. They are results, or directories of runs.

    Args:
        labels, verdict, folder: a file of people's labels, or several, and the column and the folder of the rows that
            they are about: `text` then ends with which run's verdicts people agree with more (docs/judges.md).

    Raises:
        ConfigError: there is only one, a directory is not that of a run, or the labels are of no row of both.

    Example:
        >>> from pipeline import compare, run
        >>> few = {"data.limit": 4, "sampling.max_tokens": 4}
        >>> runs = [run("quickstart", few, seed=seed, progress="none") for seed in (0, 1, 2)]
        >>> compare(*runs).paired.select("run", "column", "rows", "p").row(0)
        ('B', 'correct', 4, 1.0)
    """
    import polars as pl

    if not others:
        raise ConfigError("compare takes two runs or more, as results or directories")
    named = [str(run.directory if isinstance(run, Result) else run) for run in (first, *others)]
    runs, letters = [read_results(Path(name)) for name in named], letters_of(len(named))
    values = figures_by_name(runs)
    names = [name for name, known in values.items() if any(figure.value is not None for figure in known)]
    numbers = {letter: [values[name][i].value for name in names] for i, letter in enumerate(letters)}
    columns = {"figure": pl.Series(names, dtype=pl.String)}
    columns |= {letter: pl.Series(each, dtype=pl.Float64) for letter, each in numbers.items()}
    rows = [
        line for letter, other in zip(letters[1:], runs[1:], strict=True) for line in _paired(runs[0], other, letter)
    ]
    kinds: dict[str, type[pl.DataType]] = dict.fromkeys(("run", "folder", "column", "kind"), pl.String)
    kinds |= {"rows": pl.Int64}
    kinds |= dict.fromkeys(("first", "other", "difference", "standard_error", "p"), pl.Float64)
    kinds |= dict.fromkeys(("only_first", "only_other"), pl.Int64)
    said = list(sections(runs, named))
    files = [Path(labels)] if isinstance(labels, str | Path) else [Path(file) for file in labels]
    if bool(files) != bool(verdict):
        raise ConfigError("labels and verdict go together: the labels are of rows, not of a column")
    if verdict:
        from pipeline.labels.paired_labels import by_labels

        pairs = zip(letters[1:], runs[1:], strict=True)
        said += [by_labels(runs[0], other, files, verdict, folder, letter) for letter, other in pairs]
    text = "\n\n".join("\n".join(section) for section in said)
    return Comparison(text, pl.DataFrame(columns), pl.DataFrame(rows, schema=kinds))


def _paired(first: Results, other: Results, letter: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for folder in [folder for folder in first.folders if folder in other.folders]:
        found = joined(first, other, folder)
        if found is None:
            continue
        about = {"run": letter, "folder": folder}
        for s in found.shares:
            a, b = (n / s.rows if s.rows else None for n in (s.true_a, s.true_b))
            difference = None if a is None or b is None else b - a
            line = {"column": s.column, "kind": "share", "rows": s.rows, "first": a, "other": b, "p": s.p}
            lines.append(about | line | {"difference": difference, "only_first": s.only_a, "only_other": s.only_b})
        for m in found.means:
            line = {"column": m.column, "kind": "mean", "rows": m.rows, "first": m.mean_a, "other": m.mean_b}
            lines.append(about | line | {"difference": m.difference, "standard_error": m.standard_error})
    return lines
