"""Admission: decide if and how a job may run in its output directory, for runs and dry runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.api.errors import ConfigError, DamagedError
from pipeline.api.meter import StageMeter
from pipeline.api.protocols import Concludes, Stateful
from pipeline.api.runtime import Resources, RunContext, Runtime
from pipeline.config.build import CheckedJob, build_graph
from pipeline.config.expand import typed_key
from pipeline.config.fingerprint import differences
from pipeline.dataflow.new_rows import NewRows
from pipeline.dataflow.target import NODE as TARGET
from pipeline.run_dir.integrity import missing_or_cut
from pipeline.run_dir.lock import holder
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.run_dir.names import parts, refuse_foreign
from pipeline.run_dir.replacing import Replacing
from pipeline.run_dir.state import STATE_FILE, RunState, RunStatus
from pipeline.run_dir.state_reading import reading
from pipeline.system.terminal import say

MAX_NAMED = 8
_silent = logging.Logger("silent", logging.CRITICAL)


class Admission(StrEnum):
    """The action of a run in its directory."""

    BEGIN = "begin"
    """Begin: there is no run yet."""
    REPLACE = "replace"
    """Remove the run that is there and begin: `overwrite` is set, or it has other settings and committed nothing."""
    RESUME = "resume"
    """Continue after the last committed chunk."""
    DONE = "done"
    """Do nothing: all rows are committed; of a job with `append`, also those that its input has by now."""


def admit(job: CheckedJob, state: RunState) -> Admission:
    """Decide what a run of `job` does in its directory. `state`: of that directory. Changes nothing. Raises ConfigError
    if the directory holds results with another fingerprint, or invalid ones (`RunState.defect`); DamagedError if
    committed files are missing or have another size, or the state was lost."""
    _check_same_job(job, state)
    if state.fingerprint is None:
        _check_no_orphans(job)
        return Admission.BEGIN
    if job.settings.overwrite or state.fingerprint != job.fingerprint:
        return Admission.REPLACE
    _check_whole(job.directory, state)
    return Admission.DONE if state.status is RunStatus.DONE and not has_new_rows(job, state) else Admission.RESUME


def has_new_rows(job: CheckedJob, state: RunState) -> bool:
    """Return True if the input of a job with `append` has rows that the run in `state` has not taken."""
    if not job.settings.append:
        return False
    graph, states = build_graph(job.settings), state.operator_states()
    source = graph.nodes[graph.source].op
    assert isinstance(source, NewRows)
    source.seek(state.committed_chunks)
    for name in {graph.source, TARGET} & states.keys():
        op = graph.nodes[name].op
        assert isinstance(op, Stateful)
        op.restore(states[name])
    with TemporaryDirectory(prefix="new-rows-") as folder, closing(Resources()) as process, closing(source):
        context = RunContext(Path(folder), process, MetricsTables(Path(folder)).get)
        runtime = Runtime(context, graph.source, 0, StageMeter(graph.source))
        runtime.log = _silent  # the run says it, if there is one
        source.open(runtime)
        has_new = source.has_new()
    if not has_new:
        say(f"warning: {note}" for note in source.notes())
    return has_new


@contextmanager
def admitted(job: CheckedJob, results: Replacing) -> Iterator[tuple[RunState, Admission]]:
    """Open the state of the run, begun anew if there is none or it is replaced, and yield it with the decision."""
    path = job.directory / STATE_FILE
    state = RunState(path)
    try:
        admission = admit(job, state)
        if admission in (Admission.BEGIN, Admission.REPLACE):
            if admission is Admission.REPLACE or results.keeps or parts(job.directory):
                state.close()
                results.set_aside(name for op in job.graph.with_role(Concludes).values() for name in op.concluded)
                state = RunState(path)
            results.undo = True  # what is made from now on
            state.begin(job.fingerprint, job.settings.name)
        yield state, admission
    finally:
        state.close()


def standing_lines(job: CheckedJob) -> Generator[str, None, tuple[int, int] | None]:
    """Yield the lines that a dry run prints about the run of `job` that is there. Return its committed chunks and rows,
    which a run would keep; None if it is finished. Writes nothing.

    Raises:
        ConfigError: as `admit`, or the directory is not writable.
        DamagedError: as `admit`.
    """
    directory = job.directory
    refuse_foreign(directory)
    nearest = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(
            f"output directory {directory} cannot be used: {nearest} may not be written by this user;"
            " make it writable or give another output_dir="
        )
    at_work = holder(directory)
    with reading(directory) as state:
        admission = admit(job, state)
        chunks, rows = state.committed_chunks, state.committed_rows
    if at_work is not None:
        yield f"warning: another run works there now ({at_work}); a dry run is about what it has not committed"
    if admission is Admission.DONE:
        yield f"it is finished already, with {rows:,} rows: a run does nothing (overwrite=true begins anew)"
        return None
    if admission is not Admission.RESUME:
        return 0, 0
    if chunks:
        yield f"{chunks:,} chunks, {rows:,} rows, are committed there: a run would go on behind them"
    return chunks, rows


def _check_same_job(job: CheckedJob, state: RunState) -> None:
    if job.settings.overwrite:
        return
    if state.defect is not None:
        raise ConfigError(
            f"the results in {job.directory} cannot be trusted: {state.defect}\n"
            "Mend the operator and add overwrite=true"
        )
    fingerprint = state.fingerprint
    if fingerprint is not None and fingerprint != job.fingerprint and state.committed_chunks:
        changes = differences(fingerprint, job.fingerprint, typed=partial(typed_key, steps=job.graph.steps))
        changed = "\n".join(f"  {line}" for line in changes)
        raise ConfigError(
            f"{job.directory} holds a run with other settings:\n{changed}\n"
            "To replace its results add overwrite=true; to keep them give another output_dir="
        )


def _check_no_orphans(job: CheckedJob) -> None:
    """Check that a directory with an empty state has no results: a run writes its state first, so it must be lost."""
    shards = parts(job.directory)
    if shards and not job.settings.overwrite:
        raise DamagedError(
            f"{job.directory / STATE_FILE} is empty, but there are results"
            f" ({shards[0].relative_to(job.directory)} ...). python -m pipeline verify {job.directory} repair=true"
            " makes it again; overwrite=true begins anew"
        )


def _check_whole(directory: Path, state: RunState) -> None:
    """Check existence and size of the committed files; only `verify` reads them."""
    damages = missing_or_cut(directory, state.shards())
    if damages:
        named = [f"  {path} {damage}" for path, damage in list(damages.items())[:MAX_NAMED]]
        named += [f"  and {len(damages) - MAX_NAMED} more"] if len(damages) > MAX_NAMED else []
        raise DamagedError(
            "\n".join([f"committed files in {directory} are not as they were written:", *named])
            + f"\npython -m pipeline verify {directory} repair=true makes them again"
        )
