"""One run at a time in an output directory."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from pipeline.api.errors import ConfigError
from pipeline.system.disk_errors import storage_error, writing
from pipeline.system.failpoints import Failpoint, reached

LOCK_FILE = ".lock"
LOOK_S = 0.005
log = logging.getLogger(__name__)


@contextmanager
def locked(directory: Path, wait: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Hold the lock of `directory`, which is made if need be.

    The kernel drops the lock when its holder dies, however it dies; who held it stands in the file. Those that only
    look (`is_held`) have it for a moment and are waited for with `wait`.

    Raises:
        ConfigError: another run holds it (named in the message), or the directory cannot be made or written.
        StorageError: there is no room for it.
    """
    with _opened(directory) as file:
        try:
            if not _taken(file, wait):
                raise ConfigError(_held(directory, _holder(file)))
        except OSError as error:
            raise ConfigError(
                f"{directory / LOCK_FILE} cannot be locked: {error.strerror}; give an output_dir= elsewhere"
            ) from error
        if before := _holder(file):
            log.info("an earlier run here ended without a word (%s); its lock is void", _named(before))
        since = datetime.now().isoformat("T", "seconds")
        with writing(directory / LOCK_FILE):
            _write(file, {"pid": os.getpid(), "host": socket.gethostname(), "since": since})
        reached(Failpoint.LOCK_TAKEN)
        try:
            yield
        finally:
            with suppress(OSError):  # the kernel's lock goes with the file; a name that stays behind is void
                os.ftruncate(file.fileno(), 0)


def is_held(directory: Path) -> bool:
    """Whether a process works in `directory`. To look keeps nobody out."""
    try:
        file = (directory / LOCK_FILE).open("rb", buffering=0)
    except OSError:
        return False
    with file:
        return not _locks(file, fcntl.LOCK_SH)


def holder(directory: Path) -> Mapping[str, Any]:
    """`pid`, `host` and `since` of who took the lock last and has not given it back; empty where nobody has."""
    try:
        with (directory / LOCK_FILE).open("rb", buffering=0) as file:
            return _holder(file)
    except OSError:
        return {}


def _taken(file: IO[bytes], wait: Callable[[float], None]) -> bool:
    """Take the lock for this process; False where another one has it."""
    while not _locks(file, fcntl.LOCK_EX):
        if not _locks(file, fcntl.LOCK_SH):
            return False
        fcntl.flock(file, fcntl.LOCK_UN)
        wait(LOOK_S)
    return True


def _locks(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(directory: Path) -> IO[bytes]:
    """The lock's file, unbuffered: what a full disk did not take must not be written once more when it is closed."""
    path = directory / LOCK_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Neither truncated nor ever deleted: it may be the lock of a run that lives.
        return path.open("a+b", buffering=0)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise storage_error(path, error) from error
        raise ConfigError(
            f"output directory {directory} cannot be used: {error.strerror};"
            " make it writable for this user or give another output_dir="
        ) from error


def _write(file: IO[bytes], holder: dict[str, Any]) -> None:
    os.ftruncate(file.fileno(), 0)
    os.write(file.fileno(), json.dumps(holder).encode())


def _holder(file: IO[bytes]) -> dict[str, Any]:
    file.seek(0)
    try:
        holder = json.loads(file.read())
    except ValueError:  # empty, or written at this moment
        return {}
    return holder if isinstance(holder, dict) else {}


def _held(directory: Path, holder: dict[str, Any]) -> str:
    who = f"another run ({_named(holder)})" if holder else "another run"
    return f"{who} works in {directory}; wait for it, stop it, or give another output_dir="


def _named(holder: dict[str, Any]) -> str:
    return f"pid {holder.get('pid')} on {holder.get('host')}, since {holder.get('since')}"


def holder_of(directory: Path) -> str | None:
    """Which run works in `directory`, in words; None if none does. Only looks: it keeps nobody out.

    A killed run leaves its name in the file: a process of this machine that is not there any more holds nothing.
    """
    try:
        with (directory / LOCK_FILE).open("rb", buffering=0) as file:
            holder = _holder(file)
    except OSError:  # no run was ever here, or it may not be looked at
        return None
    if not holder or (holder.get("host") == socket.gethostname() and not _lives(holder.get("pid"))):
        return None
    return _named(holder)


def _lives(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True
