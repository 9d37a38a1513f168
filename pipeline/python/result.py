"""Result: the rows, rejects, metrics and report of a run."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from pipeline.api.errors import ConfigError, ExitCode, install
from pipeline.api.records import REJECT_SCHEMA
from pipeline.results.batches import committed_batches, no_rows
from pipeline.results.reader import Results, read_results
from pipeline.results.report import write_report
from pipeline.run_dir.lock import holder
from pipeline.run_dir.names import DATA

if TYPE_CHECKING:
    import datasets
    import polars as pl
    import pyarrow as pa

    from pipeline.python.calibration import JudgeCalibration


class Report:
    """The report of a run. A notebook shows it.

    Args:
        path: of report.html.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Report({str(self.path)!r})"

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="600" style="border: 0"></iframe>'


class CalibrationKeys(TypedDict, total=False):
    """Options of `Result.calibrate`, as of the command."""

    probability: str
    positive: str
    precision: float
    width: float
    swapped: str
    positions: Sequence[str]
    text: str
    folder: str


class Result:
    """What a run has made; `run` and `load` return it.

    Args:
        directory: of the run.
        outcome: DONE; REJECTS where too many rows were rejected; BUDGET where a budget was spent before the target was
            reached. None: it is not known, of a run that was loaded.

    Raises:
        ConfigError: `directory` is not that of a run.

    Example:
        >>> from pipeline import run
        >>> result = run("quickstart", {"data.limit": 3, "sampling.max_tokens": 8}, progress="none")
        >>> result.rows().select("id").collect()["id"].to_list()
        ['quick-000', 'quick-001', 'quick-002']
        >>> result.outcome.name
        'DONE'
    """

    def __init__(self, directory: str | Path, outcome: ExitCode | None = None) -> None:
        self.directory = Path(directory)
        self.outcome = outcome
        self._read()

    def __repr__(self) -> str:
        results = self._read()
        ended = "" if self.outcome is None else f", {self.outcome.name}"
        rows, errors, kept = (results.counts.get(k, 0) for k in ("data_rows", "error_rejects", "kept_with_error"))
        stay = f" ({kept:,} with an error)" if kept else ""
        return f"<Result of {results.job}: {rows:,} rows{stay}, {errors:,} errors{ended}, in {self.directory}>"

    @property
    def counts(self) -> dict[str, int]:
        """Rows of the source (`source_rows`), in data/ (`data_rows`), `error_rejects`, `filtered_rejects`; errors of
        rows that stay (`kept_with_error`); `chunks`."""
        return dict(self._read().counts)

    def rows(self, folder: str = DATA) -> pl.LazyFrame:
        """Return the rows, lazily: `.collect()` reads them.

        Args:
            folder: `data`, or `data/NAME` of a sink of that name.
        """
        results = self._read()
        rows = results.rows(folder)
        if rows is None:
            raise no_rows(results, folder)
        return rows

    def arrow(self, folder: str = DATA) -> pa.Table:
        """Return the rows as an Arrow table."""
        return self.rows(folder).collect().to_arrow()

    def dataset(self, folder: str = DATA) -> datasets.Dataset:
        """Return the rows as a dataset of Hugging Face's `datasets`. Raises ConfigError if that is not installed."""
        try:
            import datasets
        except ImportError as error:
            raise ConfigError(f"dataset() needs the package datasets: {install('datasets')}") from error
        return datasets.Dataset.from_polars(self.rows(folder).collect())

    def batches(self, folder: str = DATA, *, follow: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the rows in their order, chunk by chunk: together they are those of `rows`, and one chunk is in memory.

        Args:
            folder: as of `rows`.
            follow: of a run that is at work, in another thread or process, yield each chunk when it is committed, until
                the run ends.

        Raises:
            ConfigError: there is no such folder, or the format has no types before the run has ended.
            PipelineError: `follow`, and the run has ended before it was done.
        """
        return committed_batches(self.directory, folder, (lambda: holder(self.directory) is None) if follow else None)

    def rejects(self) -> pl.LazyFrame:
        """Return the rejected rows, lazily: their `node`, `kind`, `reason`, and the row as it was."""
        import polars as pl

        rejects = self._read().rejects()
        return pl.DataFrame(REJECT_SCHEMA.empty_table()).lazy() if rejects is None else rejects

    def metrics(self, name: str) -> pl.LazyFrame:
        """Return a table of metrics, lazily. `name`: steps, stages, rows, run ... (docs/metrics.md)."""
        table = self._read().metrics(name)
        if table is None:
            names = sorted(
                {path.stem for path in (self.directory / "metrics").glob("*") if path.suffix in ("", ".parquet")}
            )
            raise ConfigError(f"{self.directory} has no metrics '{name}'; there are {', '.join(names) or 'none'}")
        return table

    def report(self) -> Report:
        """Write report.html anew, and return it."""
        return Report(write_report(self.directory))

    def calibrate(
        self, labels: str | Path | Iterable[str | Path], verdict: str, **options: Unpack[CalibrationKeys]
    ) -> JudgeCalibration:
        """Say how far people agree with the verdicts of the run, and write it beside the rows as `python -m pipeline
        calibrate` does: calibration.parquet, labels.parquet, report.html.

        Args:
            labels: a file of labels, as `review` saves them, or several.
            verdict: the column of the judge's verdicts.
            options: `probability`, `positive`, `precision`, `width`, `swapped`, `positions`, `text` and `folder`, as of
                the command (docs/judges.md).

        Raises:
            ConfigError: a file or a column is not what it should be, or no label fits a row.
        """
        from pipeline.python.calibration import calibration_of

        return calibration_of(self._read(), labels, {"verdict": verdict, **options})

    def _read(self) -> Results:
        return read_results(self.directory)


def load(directory: str | Path) -> Result:
    """Return the results of a run, finished or not, from its directory.

    Raises:
        ConfigError: it is not that of a run.

    Example:
        >>> from pipeline import load, run
        >>> made = run("quickstart", {"data.limit": 2, "sampling.max_tokens": 4}, progress="none")
        >>> load(made.directory).counts["data_rows"]
        2
    """
    return Result(directory)
