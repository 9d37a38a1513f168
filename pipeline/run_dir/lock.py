"""Lock of an output directory: one run at a time."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

from pipeline.api.errors import ConfigError
from pipeline.system.atomic_files import make_directory
from pipeline.system.disk_errors import storage_error, writing
from pipeline.system.failpoints import Failpoint, reached

LOCK_FILE = ".lock"
LOOK_S = 0.005
log = logging.getLogger(__name__)


class OccupiedError(ConfigError):
    """Another run works in the directory."""


@dataclass(frozen=True)
class Holder:
    """Process that holds the lock, as recorded in the lock file; all None until it has written its entry."""

    pid: int | None = None
    host: str | None = None
    since: str | None = None

    def __str__(self) -> str:
        return "just begun" if self.pid is None else f"pid {self.pid} on {self.host}, since {self.since}"


@contextmanager
def locked(directory: Path, wait: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Hold the lock of `directory`, which is created if it does not exist.

    The kernel (flock) releases the lock when its holder dies; the file's content only names the holder. A process that
    calls `holder` has a shared lock for a moment: `wait` between the tries until it is gone.

    Raises:
        OccupiedError: another run holds the lock (named in the message).
        ConfigError: the directory cannot be created or written.
        StorageError: the disk is full.
    """
    path = directory / LOCK_FILE
    with _open(path) as file:
        try:
            while not _try_lock(file, fcntl.LOCK_EX):
                if not _try_lock(file, fcntl.LOCK_SH):
                    raise OccupiedError(
                        f"another run ({_read(file) or Holder()}) works in {directory}; wait for it, stop it, or give"
                        " another output_dir="
                    )
                fcntl.flock(file, fcntl.LOCK_UN)
                wait(LOOK_S)
        except OSError as error:
            raise ConfigError(f"{path} cannot be locked: {error.strerror}; give an output_dir= elsewhere") from error
        if killed := _read(file):
            log.info("an earlier run here (%s) was killed; taking over its lock", killed)
        us = Holder(os.getpid(), socket.gethostname(), datetime.now().isoformat("T", "seconds"))
        with writing(path):
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), json.dumps(asdict(us)).encode())
        reached(Failpoint.LOCK_TAKEN)
        try:
            yield
        finally:
            with suppress(OSError):  # the kernel's lock goes with the file; a name that stays behind is void
                os.ftruncate(file.fileno(), 0)


def holder(directory: Path) -> Holder | None:
    """Return the process that holds the lock of `directory`; None if none does. Does not keep a run from starting."""
    with beside(directory) as who:
        return who


@contextmanager
def beside(directory: Path) -> Iterator[Holder | None]:
    """Give the process that holds the lock of `directory` or, if none does, None; a run that begins waits then until
    the block has ended."""
    try:
        file = (directory / LOCK_FILE).open("rb", buffering=0)
    except OSError:  # no run was ever here, or it may not be looked at
        yield None
        return
    with file:
        yield None if _try_lock(file, fcntl.LOCK_SH) else _read(file) or Holder()


def _try_lock(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> IO[bytes]:
    """Open the lock file unbuffered: with a buffer, closing it would retry a write that failed on a full disk."""
    try:
        make_directory(path.parent)
        # Neither truncated nor ever deleted: it may be the lock of a run that lives.
        return path.open("a+b", buffering=0)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise storage_error(path, error) from error
        raise ConfigError(
            f"output directory {path.parent} cannot be used: {error.strerror};"
            " make it writable for this user or give another output_dir="
        ) from error


def _read(file: IO[bytes]) -> Holder | None:
    """Return the holder that the file names; None if it is empty."""
    file.seek(0)
    try:
        return Holder(**json.loads(file.read()))
    except (ValueError, TypeError):  # empty, or written at this moment
        return None
