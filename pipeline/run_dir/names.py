"""Names of the files in an output directory, and functions that remove them. These raise StorageError where the
directory cannot be written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path

from pipeline.api.errors import ConfigError
from pipeline.run_dir.lock import LOCK_FILE
from pipeline.run_dir.state import STATE_FILE
from pipeline.settings import OUTPUTS
from pipeline.system.atomic_files import TEMPORARY_SUFFIX
from pipeline.system.disk_errors import writing
from pipeline.system.failpoints import Failpoint, reached
from pipeline.system.result_files import formats

DATA, REJECTS, METRICS = "data", "rejects", "metrics"
RUN_LOG, CONFIG, MANIFEST, STATUS, REPORT = "run.log", "config.yaml", "manifest.json", "status.json", "report.html"

REVIEW = "review.html"
"""The page on which people label a sample of the rows."""

CARD = "README.md"
"""The dataset card. Users may edit it; pipeline.publish.dataset_card has the rule for replacing it."""

CALIBRATION, LABELS = "calibration.parquet", "labels.parquet"
"""What `calibrate` writes: figures, and people's labels beside the verdicts of their rows."""

CHOICES = "autotune.json"
"""Settings that an operator chose by measurement; a resumed run uses them again."""

INPUT = "input.parquet"
"""The rows that a run from Python was given."""

INPUT_PARTS = (f"{INPUT}{TEMPORARY_SUFFIX}", f"{INPUT}{TEMPORARY_SUFFIX}.before")
"""Files that INPUT is made of; a process that is killed while it writes rows leaves them."""

COMPLETIONS = "completions.sqlite"
"""The completion store, unless the job keeps it elsewhere. Overwriting a run keeps it."""

GATHERED, SET_ASIDE, GONE = ".replaced.tmp", ".replaced", ".replaced.old"
"""Folders of results that are being replaced; pipeline.run_dir.replacing says what they tell."""

_PART = re.compile(r"part-\d+(?:-(?P<split>\w+))?(\.defused)?\.\w+(\.(gz|zst))?(\.tmp)?")
_WITH_DATABASE = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files that make up one SQLite database."""
_REPLACED = (CONFIG, MANIFEST, STATUS, REPORT, REVIEW, CALIBRATION, LABELS, CHOICES)
"""Files that are written under a temporary name, which a killed process leaves."""
_OUTLIVES = {
    LOCK_FILE,
    CARD,
    INPUT,
    *INPUT_PARTS,
    GATHERED,
    SET_ASIDE,
    GONE,
    *(COMPLETIONS + end for end in _WITH_DATABASE),
}


@cache
def _ours() -> Sequence[str]:
    """Return the names of the files of a run, in the order of removal. The state comes last and its log before it:
    SQLite would replay an old log into a new file."""
    made_of_others = [name for name, form in formats().items() if form.parts != name]
    final = [f"results{marks}.{name}" for name in made_of_others for marks in ("", ".defused")]
    replaced = [*_REPLACED, *final]
    temporary = [f"{name}{TEMPORARY_SUFFIX}" for name in replaced]
    return (RUN_LOG, *replaced, *temporary, *(STATE_FILE + end for end in ("-wal", "-shm", "")))


def refuse_foreign(directory: Path) -> None:
    """Refuse a directory that holds anything but a run. Raises ConfigError if `directory` is a file, cannot be read, or
    is not empty and has no state.sqlite."""
    try:
        if not directory.exists():
            return
        if not directory.is_dir():
            raise ConfigError(f"output_dir={directory} is a file; give a directory")
        names = {entry.name for entry in directory.iterdir() if not _is_hollow(entry)}
    except OSError as error:
        raise ConfigError(
            f"output directory {directory} cannot be read: {error.strerror}; give another output_dir="
        ) from error
    others = names - _OUTLIVES
    if not others or names & {STATE_FILE, GATHERED, SET_ASIDE}:
        return
    if is_headless(others):
        raise ConfigError(
            f"{directory} holds the results of a run, but its {STATE_FILE} is gone;"
            f" make it again with python -m pipeline verify {directory} repair=true, or give another output_dir="
        )
    raise ConfigError(
        f"{directory} holds files that are not a run's (for example {min(others)}); give an empty output_dir="
    )


def refuse_unremovable(directory: Path) -> None:
    """Refuse to overwrite a run, before any of it is removed, if something else has the name of one of its files.
    Raises ConfigError if a folder of results in `directory` is a symbolic link, or one of its files a folder."""
    for name in (DATA, REJECTS, METRICS):
        if (path := directory / name).is_symlink():
            raise ConfigError(
                f"{path} is a symbolic link to {path.readlink()}, and overwrite=true removes nothing outside of"
                " output_dir; remove the link, or give another output_dir="
            )
    if folder := next((path for name in _ours() if (path := directory / name).is_dir()), None):
        raise ConfigError(f"{folder} is a folder, where a run has a file; move it away, or give another output_dir=")


def _is_hollow(folder: Path) -> bool:
    """Return True for data/, rejects/ or metrics/ without files, as a process leaves them that is killed in `wipe`."""
    return folder.name in (DATA, REJECTS, METRICS) and not any(path.is_file() for path in folder.rglob("*"))


def is_headless(names: Collection[str]) -> bool:
    """Return True if `names`, the entries of a directory, are those of a run that has lost its state.sqlite."""
    return STATE_FILE not in names and CONFIG in names and RUN_LOG in names


def set_aside(path: Path) -> None:
    """Rename a damaged file, and the log files of a database, to `<name>.damaged`, replacing an older one."""
    for end in _WITH_DATABASE:
        part, aside = path.with_name(path.name + end), path.with_name(f"{path.name}.damaged{end}")
        with writing(part):
            aside.unlink(missing_ok=True)
            if part.exists():
                part.replace(aside)


def files_of_run(directory: Path, others: Iterable[str] = ()) -> list[Path]:
    """Return the files and folders that `wipe` removes, and `others` by name, whether they exist or not."""
    return [*parts(directory), *(directory / name for name in (METRICS, *others, *_ours()))]


def wipe(directory: Path) -> None:
    """Remove the files of a run, except the completion store: it is keyed by content and stays valid."""
    remove_parts(directory, keep=())
    shutil.rmtree(directory / METRICS, ignore_errors=True)
    for name in _ours():
        with writing(directory / name):
            (directory / name).unlink(missing_ok=True)


def remove_parts(directory: Path, keep: Collection[str], *, temporary_only: bool = False) -> int:
    """Remove the shards that are not in `keep` (paths relative to `directory`). Returns their number.

    A killed run leaves shards under temporary names, or renamed and not committed; `temporary_only` removes the former.
    """
    gone = 0
    for path in parts(directory):
        if path.relative_to(directory).as_posix() in keep or (temporary_only and path.suffix != TEMPORARY_SUFFIX):
            continue
        with writing(path):
            path.unlink()
        gone += 1
        reached(Failpoint.LEFTOVER_REMOVED)
    return gone


def parts(directory: Path) -> list[Path]:
    """Return all files with the name of a shard, temporary names included."""
    paths = (path for folder in (DATA, REJECTS) for path in sorted((directory / folder).rglob("part-*")))
    return [path for path in paths if _PART.fullmatch(path.name)]


def is_part(path: str) -> bool:
    """Return True if `path`, relative to the output directory, is the name of a shard."""
    return path.startswith((f"{DATA}/", f"{REJECTS}/")) and _PART.fullmatch(path.rpartition("/")[2]) is not None


def split_of(path: str) -> str | None:
    """Return the split whose rows the shard at `path` has; None if it is of no split."""
    found = _PART.fullmatch(path.rpartition("/")[2])
    return None if found is None else found["split"]


def near_run(directory: Path) -> str:
    """Return `; did you mean outputs/NAME?` if `directory` is the NAME of a run in outputs/, else nothing."""
    meant = Path(OUTPUTS) / directory
    return f"; did you mean {meant}?" if (meant / STATE_FILE).is_file() else ""
