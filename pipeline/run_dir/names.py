"""The files of an output directory: their names, and which of them may be removed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from pipeline.api.errors import ConfigError
from pipeline.run_dir.lock import LOCK_FILE
from pipeline.run_dir.state import STATE_FILE
from pipeline.settings import OUTPUTS
from pipeline.system.atomic_files import TEMPORARY_SUFFIX
from pipeline.system.disk_errors import writing
from pipeline.system.failpoints import Failpoint, reached

DATA, REJECTS, METRICS = "data", "rejects", "metrics"
RUN_LOG, CONFIG, MANIFEST, STATUS, REPORT = "run.log", "config.yaml", "manifest.json", "status.json", "report.html"

CARD = "README.md"
"""The dataset card. Users may write into it, so it is not ours alone: pipeline.publish.dataset_card says when it is
replaced."""

CHOICES = "autotune.json"
"""Choices that an operator made by measuring, so that a resumed run does the same."""

COMPLETIONS = "completions.sqlite"
"""Finished completions, unless the job keeps them elsewhere. They outlive the run that made them."""

_PART = re.compile(r"part-\d+\.\w+(\.(gz|zst))?(\.tmp)?")
_WITH_DATABASE = ("", "-wal", "-shm", "-journal")
"""Endings of the files that make up one SQLite database."""
# The state comes last, and its log before it: a log beside a new database would be taken for that one's.
_OURS = (RUN_LOG, CONFIG, MANIFEST, STATUS, REPORT, CHOICES, f"{STATE_FILE}-wal", f"{STATE_FILE}-shm", STATE_FILE)
_OUTLIVES = {LOCK_FILE, CARD, *(COMPLETIONS + end for end in _WITH_DATABASE)}


def refuse_foreign(directory: Path) -> None:
    """Refuse a directory that holds something else.

    Raises:
        ConfigError: `directory` is a file, cannot be read, or is not empty and has no state.sqlite.
    """
    try:
        if not directory.exists():
            return
        if not directory.is_dir():
            raise ConfigError(f"output_dir={directory} is a file; give a directory")
        found = {entry.name for entry in directory.iterdir() if not _is_hollow(entry)} - _OUTLIVES
    except OSError as error:
        raise ConfigError(
            f"output directory {directory} cannot be read: {error.strerror}; give another output_dir="
        ) from error
    if not found or STATE_FILE in found:
        return
    if is_headless(found):
        raise ConfigError(
            f"{directory} holds the results of a run, but its {STATE_FILE} is gone;"
            f" make it again with python -m pipeline verify {directory} repair=true, or give another output_dir="
        )
    raise ConfigError(
        f"{directory} holds files that are not a run's (for example {min(found)}); give an empty output_dir="
    )


def _is_hollow(folder: Path) -> bool:
    """Return True for one of our folders without a file in it: a run that is killed while it is wiped leaves that."""
    return folder.name in (DATA, REJECTS, METRICS) and not any(path.is_file() for path in folder.rglob("*"))


def is_headless(names: Collection[str]) -> bool:
    """Return True if a directory with these entries has all of a run except its state.sqlite."""
    return STATE_FILE not in names and CONFIG in names and RUN_LOG in names


def set_aside(path: Path) -> None:
    """Rename a damaged file, and what belongs to it if it is a database, to `<name>.damaged`; an older one goes.

    Raises:
        StorageError: the directory cannot be written.
    """
    for end in _WITH_DATABASE:
        part, aside = path.with_name(path.name + end), path.with_name(f"{path.name}.damaged{end}")
        with writing(part):
            aside.unlink(missing_ok=True)
            if part.exists():
                part.replace(aside)


def wipe(directory: Path) -> None:
    """Remove what a run wrote, except its finished completions: they are keyed by content and never wrong.

    Raises:
        StorageError: something cannot be removed.
    """
    remove_parts(directory, keep=())
    shutil.rmtree(directory / METRICS, ignore_errors=True)
    for name in _OURS:
        with writing(directory / name):
            (directory / name).unlink(missing_ok=True)


def remove_parts(directory: Path, keep: Collection[str], *, temporary_only: bool = False) -> int:
    """Remove the shards that are not in `keep` (paths relative to `directory`). Returns how many.

    A killed run leaves shards under temporary names, or renamed and not committed.

    Args:
        temporary_only: let those with a final name be.

    Raises:
        StorageError: one cannot be removed.
    """
    gone = 0
    for path in parts(directory):
        if path.relative_to(directory).as_posix() not in keep:
            if temporary_only and path.suffix != TEMPORARY_SUFFIX:
                continue
            with writing(path):
                path.unlink()
            gone += 1
            reached(Failpoint.LEFTOVER_REMOVED)
    return gone


def parts(directory: Path) -> list[Path]:
    """Return every file that is named like a shard, also under its temporary name."""
    found = (path for folder in (DATA, REJECTS) for path in sorted((directory / folder).rglob("part-*")))
    return [path for path in found if _PART.fullmatch(path.name)]


def is_part(path: str) -> bool:
    """Return True if `path`, relative to the output directory, is named like a shard."""
    return path.startswith((f"{DATA}/", f"{REJECTS}/")) and _PART.fullmatch(path.rpartition("/")[2]) is not None


def near_run(directory: Path) -> str:
    """Return `; did you mean outputs/NAME?` where no run is in `directory`, but one of that name among the outputs."""
    meant = Path(OUTPUTS) / directory
    return f"; did you mean {meant}?" if (meant / STATE_FILE).is_file() else ""
