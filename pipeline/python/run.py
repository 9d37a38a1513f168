"""Run, plan and estimate jobs from Python."""

from __future__ import annotations

import atexit
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.api.forecast import Forecast, Range
from pipeline.api.runtime import Resources
from pipeline.cluster.segments import places
from pipeline.config.build import build_graph
from pipeline.dry_run.estimate import dry_run_lines
from pipeline.python.compose import settings_from, with_rows
from pipeline.python.job import Job
from pipeline.python.result import Result
from pipeline.runs.control import Control, Progress
from pipeline.runs.run import run_job
from pipeline.settings import PLAN, JobSettings
from pipeline.system.signals import staying
from pipeline.system.terminal import complain, silent

QUIET = "none"
TURN_S = 0.2
_models = Resources()
"""Models and contexts, kept from run to run."""
_one_at_a_time = threading.RLock()
_counting = threading.Lock()
_calls, _path = 0, list[str]()
"""Calls that are under way, and sys.path before the first of them."""
atexit.register(_models.close)


@dataclass(frozen=True)
class Plan:
    """The plan of a job.

    Args:
        text: its nodes with the columns that each adds, the memory that they need, the place of the results and what is
            there already; as `dry_run=plan` prints it.
        graph: in Mermaid's notation.

    Example:
        >>> from pipeline import plan
        >>> plan("quickstart").graph.splitlines()[0]
        'flowchart LR'
    """

    text: str
    graph: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Estimate:
    """The estimate of a run.

    Args:
        text: as `dry_run=true` prints it.
        forecast: rows, tokens, seconds, bytes on disk, each with a low, a likely and a high value; None: the run is
            finished.
        memory: bytes at the peak.

    Example:
        >>> from pipeline import estimate
        >>> found = estimate("quickstart", {"data.limit": 4, "sampling.max_tokens": 4})
        >>> found.memory.likely > 1e6
        True
    """

    text: str
    forecast: Forecast | None
    memory: Range | None

    def __str__(self) -> str:
        return self.text


def run(
    job: str | Path | Job = "generate",
    settings: Mapping[str, Any] | None = None,
    *,
    rows: Any = None,
    directory: str | Path | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    **groups: Any,
) -> Result:
    """Run a job, or go on with one that was interrupted; find one that is finished.

    The same as `python -m pipeline job=...`, with the same bytes in the same directory. Models stay loaded for the next
    run that uses them. One run at a time: another thread waits. Ctrl-C, or the stop button of a notebook, ends it after
    its step; the same call goes on.

    Args:
        job: the name of a job (`python -m pipeline --help` lists them), the path of a job file, or a Job.
        settings: what differs from the job: `{"sampling.max_tokens": 8}`.
        rows: the input instead of the job's: a polars or pandas frame, a pyarrow table or reader, a Hugging Face
            dataset, or an iterable of dicts or of prompts. They are kept in the run's directory.
        directory: of the results; the same directory goes on with the same run. None: a new temporary one, which is
            printed.
        on_progress: is called about once a second while rows flow, and at the end, in the thread that calls `run`. What
            it raises ends the run and is raised; the same call goes on.
        groups: settings by keyword: `model="my.gguf"`, `sampling={"temperature": 0.7}`, `seed=3`, `overwrite=True`,
            `progress="none"`. A config group takes the name of an option, or a mapping.

    Raises:
        ConfigError: the job, a setting or the input cannot work.
        Interrupted: it was stopped; what is committed is kept.
        PipelineError: it failed (NodeFailed, StorageError ...); the same call goes on.

    Example:
        >>> from pipeline import run
        >>> result = run(
        ...     "generate", rows=["Reverse these items: pear, fig"], model="tiny",
        ...     sampling={"max_tokens": 8}, progress="none",
        ... )
        >>> result.rows().collect().select("prompt", "completion").height
        1
    """
    return run_controlled(job, given(settings, groups, directory), rows, Control(on_progress))


def run_controlled(job: str | Path | Job, values: dict[str, Any], rows: Any, control: Control) -> Result:
    """Run a job as `run` does, with the settings of the call in one mapping."""
    temporary: list[str] = []

    def make(name: str) -> str:
        temporary.append(tempfile.mkdtemp(prefix=f"{name}-"))
        return temporary[0]

    if asked := [key for key in ("dry_run", "show") if values.get(key)]:
        raise ConfigError(f"run(..., {asked[0]}=...) would run the job; use pipeline.plan or pipeline.estimate instead")
    outcomes = control.outcomes
    with _turn(control), staying(), path_kept(), ExitStack() as quiet:
        composed = settings_from(job, values, make)
        compose = partial(with_rows, job, values, composed, rows, composed.directory) if rows is not None else None
        if composed.progress == QUIET:
            quiet.enter_context(silent())
        elif temporary:
            complain(f"the results go to {composed.directory}; name a directory to keep them")
        control.directory = composed.directory.absolute()
        try:
            code = run_job(composed, _models, outcomes, compose, control)
        finally:
            _models.close_unused()
        if outcomes and outcomes[-1].error is not None:
            raise outcomes[-1].error
        if outcomes:
            control.tell_end(outcomes[-1])
    return Result(control.directory, ExitCode(code))


@contextmanager
def _turn(control: Control) -> Iterator[None]:
    """Wait until no other thread runs a job, or the run is cancelled."""
    while not _one_at_a_time.acquire(timeout=TURN_S):
        control.refuse_cancelled()
    try:
        control.refuse_cancelled()
        yield
    finally:
        _one_at_a_time.release()


def plan(
    job: str | Path | Job = "generate",
    settings: Mapping[str, Any] | None = None,
    *,
    rows: Any = None,
    directory: str | Path | None = None,
    **groups: Any,
) -> Plan:
    """Check a job, as far as that needs no model, and return its plan. The arguments are those of `run`; nothing is
    written to `directory`, and what a run would find there is said.

    Raises:
        ConfigError: the job, a setting, the input or what is in `directory` cannot work.

    Example:
        >>> from pipeline import plan
        >>> print(str(plan("quickstart")).splitlines()[0])
        job quickstart: 7 nodes, chunks of 4096 rows, seed 0
    """
    with _dry_run(job, given(settings, groups, directory), rows, PLAN) as composed:
        graph = build_graph(composed)
        return Plan(
            "\n".join(dry_run_lines(composed, graph, _models)),
            graph.to_mermaid(places(graph) if composed.cluster else None),
        )


def estimate(
    job: str | Path | Job = "generate",
    settings: Mapping[str, Any] | None = None,
    *,
    rows: Any = None,
    directory: str | Path | None = None,
    **groups: Any,
) -> Estimate:
    """Load the model, compute for at most half a minute, and return an estimate of the run, or of what is left of it.
    The arguments are those of `run`; nothing is written to `directory`.

    Raises:
        ConfigError: as of `plan`, or every row of the sample is rejected.

    Example:
        >>> from pipeline import estimate
        >>> found = estimate("quickstart", {"data.limit": 8, "sampling.max_tokens": 4})
        >>> found.forecast.rows_out.likely
        8
    """
    lines: list[str] = []
    with _one_at_a_time, staying(), _dry_run(job, given(settings, groups, directory), rows, True) as composed:
        steps = dry_run_lines(composed, build_graph(composed), _models)
        try:
            while True:
                lines.append(next(steps))
        except StopIteration as end:
            forecast = end.value or (None, None)
        finally:
            _models.close_unused()
    return Estimate("\n".join(lines), *forecast)


@contextmanager
def _dry_run(job: str | Path | Job, values: dict[str, Any], rows: Any, mode: str | bool) -> Iterator[JobSettings]:
    """Yield the settings of a dry run, whose files are in a temporary folder."""
    with path_kept(), tempfile.TemporaryDirectory(prefix="dry-run-") as folder:
        values = {**values, "dry_run": mode}
        composed = settings_from(job, values, lambda name: f"{folder}/{name}")
        yield composed if rows is None else with_rows(job, values, composed, rows, Path(folder))


@contextmanager
def path_kept() -> Iterator[None]:
    """Have sys.path be as it was once no call is left that may import modules beside its job."""
    global _calls, _path
    with _counting:
        _calls += 1
        _path = list(sys.path) if _calls == 1 else _path
    try:
        yield
    finally:
        with _counting:
            _calls -= 1
            if not _calls:
                sys.path[:] = _path


def given(
    settings: Mapping[str, Any] | None, groups: Mapping[str, Any], directory: str | Path | None
) -> dict[str, Any]:
    """Return the settings of a call as one mapping."""
    place = {} if directory is None else {"output_dir": str(directory)}
    return {**(settings or {}), **groups, **place}
