"""A folder of large files that can be made again: made once, shared by processes, bounded in bytes."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.api.errors import ConfigError
from pipeline.system.atomic_files import TEMPORARY_SUFFIX, removed_on_failure
from pipeline.system.disk_errors import writing

PLACE, BOUND = "LLAMA_PIPELINE_CACHE", "LLAMA_PIPELINE_CACHE_GIB"
"""Environment variables: the folder of all caches, and the bound of converted weights."""
USUAL_GIB = 100.0
_LOOK_S = 0.1
_GIB = 1 << 30


def cache_folder() -> Path:
    """Return the folder for what can be measured or made again: $LLAMA_PIPELINE_CACHE, or one in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get(PLACE) or f"{home}/llama-pipeline").expanduser().absolute()


def weights_cache() -> FileCache:
    """Return the cache of converted weights. Raises ConfigError if its bound is no number."""
    bound = os.environ.get(BOUND) or USUAL_GIB
    try:
        most = float(bound)
    except ValueError:
        raise ConfigError(f"{BOUND}={bound} cannot work: it is a number of GiB") from None
    return FileCache(cache_folder() / "weights", int(most * _GIB))


@dataclass(frozen=True)
class FileCache:
    """The files of a folder, of `most_bytes` together; those that were not used for longest go first.

    One process at a time adds a file. A file that is in use stays readable when it goes: its name is removed.
    """

    folder: Path
    most_bytes: int

    def find(self, name: str) -> Path | None:
        """Return the file `name`, which counts as used now; None if there is none."""
        path = self.folder / name
        try:
            changed = path.stat().st_mtime_ns  # kept: what is known of a file is keyed by it
            with suppress(PermissionError):  # of another user
                os.utime(path, ns=(time.time_ns(), changed))
        except FileNotFoundError:
            return None
        return path

    def make(self, name: str, size: int, write: Callable[[Path], None], waits: Callable[[], None]) -> Path:
        """Return the file `name`; if there is none, have `write` make it under a temporary name.

        Args:
            size: bytes that it will have, about.
            waits: called once if another process adds a file, which is waited for.

        Raises:
            ConfigError: it does not fit into the bound, or on the disk.
            StorageError: the folder cannot be written.
        """
        with self._locked(waits):
            if (found := self.find(name)) is not None:  # the other process made it
                return found
            for left in self.folder.glob(f"*{TEMPORARY_SUFFIX}"):  # by a process that was killed
                left.unlink(missing_ok=True)
            path, temporary = self.folder / name, self.folder / f"{name}{TEMPORARY_SUFFIX}"
            with writing(path), removed_on_failure(temporary):
                self._make_room(name, size)
                write(temporary)
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                temporary.replace(path)
            return path

    def files(self) -> list[Path]:
        """Return the files, those first that were not used for longest."""
        files = [path for path in self.folder.glob("*") if path.is_file() and not path.name.startswith(".")]
        return sorted((path for path in files if path.suffix != TEMPORARY_SUFFIX), key=lambda p: p.stat().st_atime_ns)

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files())

    def _make_room(self, name: str, size: int) -> None:
        if size > self.most_bytes:
            raise ConfigError(
                f"{name} takes {size / _GIB:.1f} GiB, and {self.folder} may take {self.most_bytes / _GIB:g} GiB:"
                f" set {BOUND}={size // _GIB + 1} or more"
            )
        total, free = self.size_bytes, shutil.disk_usage(self.folder).free
        if size > free + total:
            raise ConfigError(
                f"no room for {name}: it takes {size:,} bytes, and {free:,} are free in {self.folder};"
                f" make room there, or set {PLACE} to a folder on another disk"
            )
        too_many = max(total + size - self.most_bytes, size - free)
        for oldest in self.files():
            if too_many <= 0:
                break
            too_many -= oldest.stat().st_size
            oldest.unlink()

    @contextmanager
    def _locked(self, waits: Callable[[], None]) -> Iterator[None]:
        """Hold the lock of the folder. It is the kernel's (flock), so it ends with its holder."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / ".lock").open("ab")
        with file:
            has_told = False
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not has_told:
                        waits()
                    has_told = True
                    time.sleep(_LOOK_S)
            yield
