"""Results that a run replaces: set aside until it has begun to work, and put back if it is refused or killed before.

Each step is one rename, so what is where tells how far a killed process came: files in GATHERED are on their way (there
is nothing new yet), SET_ASIDE has all of the old run beside the new one, GONE is to be removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.api.errors import ConfigError
from pipeline.run_dir.lock import holder
from pipeline.run_dir.names import GATHERED, GONE, INPUT_PARTS, SET_ASIDE, files_of_run, wipe
from pipeline.system.atomic_files import sync_directory
from pipeline.system.disk_errors import writing
from pipeline.system.failpoints import Failpoint, reached

HALF_MOVED = (
    "a run that was to replace these results was killed before it worked, and they are set aside;"
    " python -m pipeline verify {} puts them back, and so does the next run"
)


class Replacing:
    """What a run replaces in `directory`, whose lock the caller holds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._placed: list[Path] = []
        self.keeps = False
        """True once there are results of a run before that will be put back."""
        self.undo = False
        """True once the files of a run are the new one's, which go if it is refused though nothing is put back."""

    def set_aside(self, others: Iterable[str] = ()) -> None:
        """Move the files of the run, and `others` by name, out of the way; only `others` if the files are already."""
        aside = self._directory / SET_ASIDE
        if aside.exists():
            for path in filter(Path.exists, (self._directory / name for name in others)):
                _move(path, aside / path.name)
            return
        paths = [path for path in files_of_run(self._directory, others) if path.exists()]
        for path in paths:
            _move(path, self._directory / GATHERED / path.relative_to(self._directory))
        if paths:
            with writing(self._directory):
                _rename(self._directory / GATHERED, aside)
        self.keeps = bool(paths)

    def place(self, new: Path, path: Path) -> None:
        """Give the file `new` its name `path`."""
        with writing(path):
            new.replace(path)
        self._placed.append(path)

    def begun(self) -> None:
        """Remove what was set aside: the new run works."""
        aside, gone = self._directory / SET_ASIDE, self._directory / GONE
        with writing(self._directory):
            if aside.exists():
                _rename(aside, gone)
            self._placed.clear()
            self.undo = self.keeps = False
            if gone.exists():
                shutil.rmtree(gone)

    def put_back(self) -> None:
        """Make the directory what it was."""
        for path in self._placed:
            path.unlink(missing_ok=True)
        if self.undo and not (self._directory / SET_ASIDE).exists():
            wipe(self._directory)
        put_back(self._directory)


@contextmanager
def replacing(directory: Path) -> Iterator[Replacing]:
    """Yield what a run replaces in `directory`. It is put back after an exception, and where there were results and the
    run ends without having begun."""
    put_back(directory)  # of a process that was killed
    results = Replacing(directory)
    try:
        yield results
    except BaseException:
        results.put_back()
        raise
    if results.keeps:
        results.put_back()


def half_moved(directory: Path) -> bool:
    """Return True if results in `directory` are set aside, by a run that was killed before it worked."""
    is_set_aside = any((directory / name).exists() for name in (GATHERED, SET_ASIDE))
    return is_set_aside and holder(directory) is None


def refuse_half_moved(directory: Path) -> None:
    """Refuse to read results that are not in their place; raises ConfigError."""
    if half_moved(directory):
        raise ConfigError(f"{directory}: {HALF_MOVED.format(directory)}")


def put_back(directory: Path) -> None:
    """Put back what a killed process has set aside, and remove what it was removing or writing. The caller holds the
    lock."""
    gathered, aside, gone = (directory / name for name in (GATHERED, SET_ASIDE, GONE))
    with writing(directory):
        for name in INPUT_PARTS:
            (directory / name).unlink(missing_ok=True)
        if gone.exists():
            shutil.rmtree(gone)
        if aside.exists():
            wipe(directory)
            _rename(aside, gathered)
        if gathered.exists():
            for path in sorted(gathered.rglob("*")):
                target = directory / path.relative_to(gathered)
                if path.is_file() or (path.is_dir() and not target.exists()):
                    _move(path, target)
            shutil.rmtree(gathered)


def _move(path: Path, target: Path) -> None:
    if not path.exists():  # inside of a folder that was moved
        return
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _rename(path, target)


def _rename(path: Path, target: Path) -> None:
    path.rename(target)
    sync_directory(target.parent)
    reached(Failpoint.RESULTS_MOVED)
