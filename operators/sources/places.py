"""Places of input files: the local disks here, object stores and the web in remote.py.

Local files do not go through fsspec: it would become a dependency of every run, it makes relative paths absolute (they
stand in rejects/ and in messages as they were given), and its globs match files in hidden directories.
"""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from operators.rows.content import SAMPLED, content_id
from pipeline.api.errors import InputError

BUFFER_BYTES = 1 << 16


class Stamp(NamedTuple):
    """The size and a tag of a file, of which at least one changes when it is written to; cheap to get.

    Args:
        size_bytes: of the file as stored.
        tag: its time of change, or an object store's ETag or checksum.
    """

    size_bytes: int
    tag: str


class Place:
    """The local disks. A subclass is another place.

    Every method may raise InputError, and SourceError where a network is in between.
    """

    def shown(self, path: str) -> str:
        """Return the path for messages: the URL if it is one, without credentials."""
        return path

    def kind(self, path: str) -> str | None:
        """Return the kind of `path`: "file" (a regular one), "directory", "other", or None if there is nothing."""
        found = Path(path)
        if found.is_file():
            return "file"
        return "directory" if found.is_dir() else "other" if found.exists() else None

    def listing(self, path: str) -> Mapping[str, bool]:
        """Return the paths in a directory, unordered, each with True for a regular file."""
        return {str(p): p.is_file() for p in Path(path).iterdir()}

    def matches(self, pattern: str) -> Mapping[str, bool]:
        """Return the paths that match a glob, each with True for a regular file."""
        found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - absolute patterns too
        return {path: Path(path).is_file() for path in found}

    def open(self, path: str) -> io.BufferedReader:
        return io.BufferedReader(io.FileIO(path), BUFFER_BYTES)

    def stamp(self, path: str) -> Stamp:
        """Return the current stamp of a file."""
        try:
            status = Path(path).stat()
        except OSError as error:
            raise unreadable(path, error) from error
        changed = datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC)
        return Stamp(status.st_size, f"changed {changed.isoformat(timespec='microseconds')}")

    def content_id(self, path: str, stamp: Stamp) -> str:
        """Return a name of the content for the fingerprint: a hash, so that a copied or touched file keeps its name.

        Where the content is only sampled, the time of change is part of the name, since a sample may miss an edit.
        """
        try:
            content = content_id(Path(path))
        except OSError as error:
            raise unreadable(path, error) from error
        return f"{content}, {stamp.tag}" if content.startswith(SAMPLED) else content

    def local(self, path: str) -> Path | None:
        """Return the file on this machine; None if it is remote."""
        return Path(path)


def in_order(path: str) -> tuple[str, ...]:
    """Return the sort key of a path: folder by folder, so that a/b comes before a-b."""
    return PurePosixPath(path).parts


def unreadable(shown: object, error: OSError) -> InputError:
    """Return the error for a local input that is gone or may not be read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{shown} is not there any more; put it back as it was and run the same command again")
    remedy = "let this user read it" if isinstance(error, PermissionError) else "see to the disk"
    why = os.strerror(error.errno) if error.errno else str(error)  # Arrow's messages repeat the file's name
    return InputError(f"{shown} cannot be read: {why}; {remedy} and run the same command again")
