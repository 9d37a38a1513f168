"""Admission: decides whether a job may run in its output directory, and how, for runs and dry runs alike."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pipeline.api.errors import ConfigError, DamagedError
from pipeline.config.build import Job
from pipeline.config.fingerprint import differences
from pipeline.run_dir.integrity import missing_or_cut
from pipeline.run_dir.lock import Holder, holder
from pipeline.run_dir.names import parts, refuse_foreign
from pipeline.run_dir.state import STATE_FILE, RunState, RunStatus

MAX_NAMED = 8


class Admission(StrEnum):
    """The action of a run in its directory."""

    BEGIN = "begin"
    """There is no run yet."""
    REPLACE = "replace"
    """Remove what is there and begin: `overwrite` is set, or a run with other settings has committed nothing."""
    RESUME = "resume"
    """Go on behind the last committed chunk."""
    DONE = "done"
    """All rows are committed."""


def admit(job: Job, state: RunState) -> Admission:
    """Decide what a run of `job` does in its directory, whose state is `state`. Changes nothing.

    Raises:
        ConfigError: the directory holds results of a run with another fingerprint, or of one that lost rows.
        DamagedError: files that were committed are not there, or not whole; or the state was lost.
    """
    _check_same_job(job, state)
    if state.fingerprint is None:
        _check_no_orphans(job)
        return Admission.BEGIN
    if job.settings.overwrite or state.fingerprint != job.fingerprint:
        return Admission.REPLACE
    _check_whole(job.directory, state)
    return Admission.DONE if state.status is RunStatus.DONE else Admission.RESUME


@dataclass(frozen=True)
class Standing:
    """The progress of a run.

    Args:
        admission: what a run of the job would do.
        chunks, rows: committed, and not to be done again; none where the run would begin anew.
        holder: which process works in the directory now, None if none does.
    """

    admission: Admission
    chunks: int = 0
    rows: int = 0
    holder: Holder | None = None


def standing(job: Job) -> Standing:
    """Return the progress of the run of `job`. Writes nothing: opening a SQLite database may, so a copy is read.

    Raises:
        ConfigError: the run would be refused, in the same words, or may not write there.
        DamagedError: the same.
    """
    directory = job.directory
    refuse_foreign(directory)
    there = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"output directory {directory} cannot be used: {there} may not be written by this user;"
            " make it writable or give another output_dir="
        )
    at_work = holder(directory)
    with tempfile.TemporaryDirectory(prefix="dry-run-") as folder:
        copy = Path(folder) / STATE_FILE
        for end in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(directory / f"{STATE_FILE}{end}", f"{copy}{end}")
        try:
            state = RunState(copy)
        except ConfigError as error:
            raise type(error)(str(error).replace(str(copy), str(directory / STATE_FILE))) from error
        with closing(state):
            admission = admit(job, state)
            kept = admission in (Admission.RESUME, Admission.DONE)
            chunks, rows = (state.committed_chunks, state.committed_rows) if kept else (0, 0)
            return Standing(admission, chunks, rows, at_work)


def standing_lines(standing: Standing) -> Iterator[str]:
    """Yield the lines of a dry run about it."""
    if standing.holder is not None:
        yield f"warning: another run works there now ({standing.holder}); a dry run is about what it has not committed"
    if standing.admission is Admission.DONE:
        yield f"it is finished already, with {standing.rows:,} rows: a run does nothing (overwrite=true begins anew)"
    elif standing.chunks:
        yield f"{standing.chunks:,} chunks, {standing.rows:,} rows, are committed there: a run would go on behind them"


def _check_same_job(job: Job, state: RunState) -> None:
    """Check that a run goes on with the settings that it was begun with.

    Raises:
        ConfigError: it was begun with others and has committed something, or it lost rows; and `overwrite` is not set.
    """
    if job.settings.overwrite:
        return
    if state.defect is not None:
        raise ConfigError(
            f"the results in {job.directory} cannot be trusted: {state.defect}\n"
            "Mend the operator and add overwrite=true"
        )
    before = state.fingerprint
    if before is not None and before != job.fingerprint and state.committed_chunks:
        changed = "\n".join(f"  {line}" for line in differences(before, job.fingerprint))
        raise ConfigError(
            f"{job.directory} holds a run with other settings:\n{changed}\n"
            "To replace its results add overwrite=true; to keep them give another output_dir="
        )


def _check_no_orphans(job: Job) -> None:
    """Check that there are no files of results: a run writes its state before its first file, so it would be lost.

    Raises:
        DamagedError: there are such files.
    """
    found = parts(job.directory)
    if found and not job.settings.overwrite:
        raise DamagedError(
            f"{job.directory / STATE_FILE} is empty, but there are results ({found[0].relative_to(job.directory)} ...)."
            f" python -m pipeline verify {job.directory} repair=true makes it again; overwrite=true begins anew"
        )


def _check_whole(directory: Path, state: RunState) -> None:
    """Check names and sizes of the committed files; `verify` reads them.

    Raises:
        DamagedError: one is missing or has another size.
    """
    found = missing_or_cut(directory, state.shards())
    if found:
        named = [f"  {path} {what}" for path, what in list(found.items())[:MAX_NAMED]]
        named += [f"  and {len(found) - MAX_NAMED} more"] if len(found) > MAX_NAMED else []
        raise DamagedError(
            "\n".join([f"committed files in {directory} are not as they were written:", *named])
            + f"\npython -m pipeline verify {directory} repair=true makes them again"
        )
