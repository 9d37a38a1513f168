"""Run a job for each combination of some values of its settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.api.errors import ConfigError, ExitCode, Interrupted, exit_code_of, worst
from pipeline.config.jobs import find_job
from pipeline.config.sweeps import place_of, typed
from pipeline.python.compose import settings_from
from pipeline.python.job import Job, options_and_values, plain_value
from pipeline.python.result import Result
from pipeline.python.run import QUIET, given, path_kept, run_controlled
from pipeline.results.sweep_table import SweptRun, keep_table, sweep_lines, table_of
from pipeline.runs.control import Control, Progress
from pipeline.settings import OUTPUTS
from pipeline.system.terminal import complain, say, silent, terminal_width

if TYPE_CHECKING:
    import polars as pl


class Sweep:
    """What a sweep has made; `sweep` returns it.

    Args:
        runs: the jobs, as the table has them.
        results: of each job, in order; None of one that was refused, or failed before it began.
        errors: of each job what ended it, else None.

    Example:
        >>> import tempfile
        >>> from pipeline import sweep
        >>> few = {"data.limit": 2, "sampling.max_tokens": 4, "progress": "none"}
        >>> found = sweep("quickstart", {"chunk_rows": [0, 2]}, few, directory=f"{tempfile.mkdtemp()}/few")
        >>> [error is None for error in found.errors], found.outcome.name
        ([False, True], 'CONFIG')
    """

    def __init__(
        self, runs: Sequence[SweptRun], results: Sequence[Result | None], errors: Sequence[Exception | None]
    ) -> None:
        self.results = list(results)
        self.errors = list(errors)
        self.outcome: ExitCode = worst([run.code for run in runs if run.code is not None])
        """The most severe of all outcomes, with which a sweep of the command line ends."""
        self.shown = table_of(runs)
        self.path: Path | None = keep_table(self.shown, runs)
        """The table as Parquet; None if no job has run."""

    def __repr__(self) -> str:
        return f"<Sweep of {len(self.results)} jobs, {self.outcome.name}, in {self.path}>"

    def __str__(self) -> str:
        return "\n".join(sweep_lines(self.shown, self.path, None))

    def table(self) -> pl.DataFrame:
        """Return a row for each job: the swept settings, `exit_code`, rows and rejects, `mean_COLUMN` of the columns of
        booleans (the share of true) and numbers, tokens, seconds, `error`, `directory`."""
        return self.shown.frame


def sweep(
    job: str | Path | Job,
    values: Mapping[str, Sequence[Any]],
    settings: Mapping[str, Any] | None = None,
    *,
    rows: Any = None,
    directory: str | Path | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    **groups: Any,
) -> Sweep:
    """Run a job once for each combination of values, one after the other, the last key fastest. The same as `-m` on the
    command line, with the same bytes in the same directories; the same call goes on with what was interrupted, and
    finds what is finished. A job that fails does not keep the others from running: `errors` and the table say why.

    Args:
        job: as of `run`.
        values: by key, the values that it takes: `{"sampling.temperature": [0, 1.0], "seed": [1, 2]}`.
        settings, groups: as of `run`, for all jobs.
        rows: as of `run`, but nothing that can be read only once.
        directory: begins the names of the directories of the jobs; None for outputs/NAME, as on the command line.
        on_progress: as of `run`, of one job after the other.

    Raises:
        ConfigError: there is nothing to sweep, or `rows` can be read only once.
        Interrupted: it was stopped; what is committed is kept.

    Example:
        >>> import tempfile
        >>> from pipeline import sweep
        >>> few, place = {"data.limit": 3, "progress": "none"}, f"{tempfile.mkdtemp()}/few"
        >>> found = sweep("quickstart", {"sampling.max_tokens": [1, 4]}, few, directory=place)
        >>> found.table()["tokens_out"].to_list()
        [3, 12]
    """
    common = given(settings, groups, directory)
    _check(values, common, rows)
    runs: list[SweptRun] = []
    results: list[Result | None] = []
    errors: list[Exception | None] = []
    with ExitStack() as quiet:
        if common.get("progress") == QUIET:
            quiet.enter_context(silent())
        for combination in itertools.product(*values.values()):
            swept, control = dict(zip(values, combination, strict=True)), Control(on_progress)
            place, result, error = _run_one(job, common, swept, values, rows, control)
            code = result.outcome if result is not None else exit_code_of(error)
            shown = {key: plain_value(value) for key, value in swept.items()}
            ran = result is not None
            runs.append(SweptRun(shown, code, place, ran, "" if error is None else str(error)))
            results.append(result)
            errors.append(error)
        found = Sweep(runs, results, errors)
        say(["", *sweep_lines(found.shown, found.path, terminal_width())])
    return found


def _check(values: Mapping[str, Sequence[Any]], common: Mapping[str, Any], rows: Any) -> None:
    for key, each in values.items():
        if isinstance(each, str | bytes | Mapping) or not isinstance(each, Sequence) or not each:
            raise ConfigError(f"{key} is swept over {each!r}; give a list of values, as [0, 1.0]")
    if not values:
        raise ConfigError('nothing is swept; give the values of a key, as {"seed": [1, 2]}')
    if twice := next((key for key in ("output_dir", "dry_run", "show") if key in values), None):
        raise ConfigError(f"{twice} cannot be swept; `directory` begins the names of all directories")
    if asked := next((key for key in ("dry_run", "show") if common.get(key)), None):
        raise ConfigError(f"sweep(..., {asked}=...) would run the jobs; use pipeline.plan or pipeline.estimate instead")
    if isinstance(rows, Iterator | pa.RecordBatchReader):
        raise ConfigError(
            f"rows is a {type(rows).__name__}, which only the first job could read; give a list or a table"
        )


def _run_one(
    job: str | Path | Job,
    common: Mapping[str, Any],
    swept: Mapping[str, Any],
    values: Mapping[str, Sequence[Any]],
    rows: Any,
    control: Control,
) -> tuple[Path | None, Result | None, Exception | None]:
    """Run one job. Returns its directory, if its settings can work, its results, if it began, and its error."""
    place: Path | None = None
    try:
        settings, place = _composed(job, common, swept, values)
        return place, run_controlled(job, {**settings, "output_dir": str(place)}, rows, control), None
    except Interrupted:
        raise
    except Exception as error:
        if error is control.raised:
            raise
        if place is None or not control.outcomes:
            complain(f"error: {error}")  # of others the run has said it
            return place, None, error
        return place, Result(place.absolute(), exit_code_of(error)), error


def _composed(
    job: str | Path | Job, common: Mapping[str, Any], swept: Mapping[str, Any], values: Mapping[str, Sequence[Any]]
) -> tuple[dict[str, Any], Path]:
    """Return the settings of a job of the sweep, and the directory that the command line gives for them."""
    options, named = options_and_values(common)
    swept_options, swept_values = options_and_values(swept)
    options, named = options | swept_options, named | swept_values
    with path_kept():
        directory = settings_from(job, {**named, **options}, lambda name: f"{OUTPUTS}/{name}").directory
    several = {key for key in (*swept_options, *swept_values) if len(values.get(key, values.get("model", ()))) > 1}
    overrides = [f"job={job.name if isinstance(job, Job) else find_job(str(job)).key}"]
    overrides += [f"{key}={option}" for key, option in options.items()]
    overrides += [typed(key, plain_value(value)) for key, value in named.items()]
    return {**named, **options}, Path(place_of(directory, overrides, several.__contains__))
