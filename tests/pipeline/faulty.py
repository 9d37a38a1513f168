"""faulty://: a file system in memory that notes what is done to it, fails when it is told to, and can wait."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from operators.settings import OutputSettings

URL = "faulty://place"
WRONG_KEY = "hunter3-hunter3"


class Faulty(MemoryFileSystem):
    """What the tests say about it is the class's: fsspec makes the instances."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    written: ClassVar[list[str]] = []
    """Paths in the order in which they were written."""
    before: ClassVar[Callable[[str], object]]
    """Called with the path before anything is written; raises what is to go wrong."""

    def __init__(self, key: str = "", **options: Any) -> None:
        if key == WRONG_KEY:
            raise ValueError(f"{key} is no key")
        super().__init__(**options)

    @classmethod
    def reset(cls) -> None:
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.written.clear()
        cls.before = staticmethod(lambda path: None)

    @classmethod
    def files(cls) -> dict[str, bytes]:
        """What is at URL."""
        return {name.removeprefix("/place/"): bytes(file.getvalue()) for name, file in cls.store.items()}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("faulty://", "memory://")))

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        self._write(rpath, Path(lpath).read_bytes())

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        self._write(path, value)

    def _write(self, path: str, value: bytes) -> None:
        name = path.removeprefix("/place/")
        type(self).before(name)
        super().pipe_file(path, value)
        type(self).written.append(name)


def register() -> None:
    """Make it known to fsspec, empty."""
    fsspec.register_implementation("faulty", Faulty, clobber=True)
    Faulty.reset()


def to(url: str, **settings: Any) -> OutputSettings:
    """The output settings of a run that is published to `url` and tries nothing twice."""
    return OutputSettings(**{"publish": url, "retries": 0, "card": False, **settings})


def fails(*names: str, error: Exception | None = None) -> Callable[[str], None]:
    """Writing a path that has one of these in it fails; without one, any."""

    def before(path: str) -> None:
        if not names or any(name in path for name in names):
            raise error or OSError("the network is gone")

    return before


def waits_for(file: Path) -> Callable[[str], None]:
    """Writing data waits until `file` is there, and fails after two minutes."""

    def before(path: str) -> None:
        waited = threading.Event()
        for _ in range(12_000):
            if file.exists() or not path.startswith("data/"):
                return
            waited.wait(0.01)
        raise OSError(f"{file.name} did not come")

    return before


def interrupts(path: str) -> None:
    """Writing the manifest of a finished run sends the process a SIGINT and then fails."""
    if path == "manifest.json" and Faulty.written:
        os.kill(os.getpid(), signal.SIGINT)
        raise OSError("the network is gone")
