"""One run at a time in an output directory."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from pipeline.errors import ConfigError
from pipeline.failpoints import Failpoint, reached

LOCK_FILE = ".lock"
log = logging.getLogger(__name__)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of `directory`, which is made if need be.

    The kernel drops the lock when its holder dies, however it dies; who held it stands in the file.

    Raises:
        ConfigError: another run holds it (named in the message), or the directory cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Neither truncated nor ever deleted: it may be the lock of a run that lives.
        file = (directory / LOCK_FILE).open("a+", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"output directory {directory}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(_held(directory, _holder(file))) from error
        if before := _holder(file):
            log.info("an earlier run here ended without a word (%s); its lock is void", _named(before))
        _write(
            file, {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now().isoformat("T", "seconds")}
        )
        reached(Failpoint.LOCK_TAKEN)
        try:
            yield
        finally:
            _write(file, None)


def _write(file: IO[str], holder: dict[str, Any] | None) -> None:
    file.seek(0)
    file.truncate()
    if holder is not None:
        json.dump(holder, file)
    file.flush()


def _holder(file: IO[str]) -> dict[str, Any]:
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
