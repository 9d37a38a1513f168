"""What a run would find in its output directory, without touching it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.api.errors import ConfigError
from pipeline.run.job import refuse_damaged, refuse_orphans, refuse_other
from pipeline.run_dir.lock import holder_of
from pipeline.run_dir.names import refuse_foreign
from pipeline.run_dir.state import STATE_FILE, RunState, RunStatus
from pipeline.settings import JobSettings


@dataclass(frozen=True)
class Standing:
    """How far the run is.

    Args:
        chunks, rows: committed, and not to be done again; none where the run would begin anew.
        done: it has ended, and would not be run again.
        holder: which process works in the directory now, None if none does.
    """

    chunks: int = 0
    rows: int = 0
    done: bool = False
    holder: str | None = None


def standing_of(directory: Path, fingerprint: Mapping[str, Any], settings: JobSettings) -> Standing:
    """How far the run of `fingerprint` in `directory` is.

    The state is read from a copy: to open a database of SQLite may write beside it.

    Raises:
        ConfigError: the run would be refused, in the same words, or may not write there.
        DamagedError: the same.
    """
    refuse_foreign(directory)
    there = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"output directory {directory} cannot be used: {there} may not be written by this user;"
            " make it writable or give another output_dir="
        )
    holder = holder_of(directory)
    if not (directory / STATE_FILE).is_file():
        return Standing(holder=holder)
    with tempfile.TemporaryDirectory(prefix="dry-run-") as folder:
        copy = Path(folder) / STATE_FILE
        for end in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(directory / f"{STATE_FILE}{end}", f"{copy}{end}")
        try:
            state = RunState(copy)
        except ConfigError as error:
            raise type(error)(str(error).replace(str(copy), str(directory / STATE_FILE))) from error
        try:
            return _read(directory, state, fingerprint, settings, holder)
        finally:
            state.close()


def standing_lines(standing: Standing) -> Iterator[str]:
    """What a dry run says of it."""
    if standing.holder is not None:
        yield f"warning: another run works there now ({standing.holder}); a dry run is about what it has not committed"
    if standing.done:
        yield f"it is finished already, with {standing.rows:,} rows: a run does nothing (overwrite=true begins anew)"
    elif standing.chunks:
        yield f"{standing.chunks:,} chunks, {standing.rows:,} rows, are committed there: a run would go on behind them"


def _read(
    directory: Path, state: RunState, fingerprint: Mapping[str, Any], settings: JobSettings, holder: str | None
) -> Standing:
    refuse_other(directory, state, fingerprint, settings)
    if settings.overwrite or state.fingerprint != fingerprint:
        if state.fingerprint is None:
            refuse_orphans(directory, settings)
        return Standing(holder=holder)
    refuse_damaged(directory, state)
    return Standing(state.committed_chunks, state.committed_rows, state.status is RunStatus.DONE, holder)
