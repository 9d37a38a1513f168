"""Where input files lie: what finding, naming and opening them needs of this machine's disks, or of an object store."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from operators.rows.content import SAMPLED, Stamp, content_id
from pipeline.api.errors import InputError


class Place:
    """The disks of this machine, and what `RemotePlace` does for an object store.

    Every method may raise InputError, and SourceError where a network is in between.
    """

    def shown(self, path: str) -> str:
        """The path as messages name it: a URL where it is one, never with credentials."""
        return path

    def kind(self, path: str) -> str | None:
        """What is there: "file" (a regular one), "directory", "other", or None for nothing."""
        found = Path(path)
        if found.is_file():
            return "file"
        return "directory" if found.is_dir() else "other" if found.exists() else None

    def listing(self, path: str) -> Mapping[str, bool]:
        """What a directory holds, in no order: each path, and whether it is a regular file."""
        return {str(p): p.is_file() for p in Path(path).iterdir()}

    def matches(self, pattern: str) -> Mapping[str, bool]:
        """The same of all that a glob matches."""
        found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - absolute patterns too
        return {path: Path(path).is_file() for path in found}

    def open(self, path: str) -> BinaryIO:
        """The bytes of a file; can seek."""
        return Path(path).open("rb")

    def stamp(self, path: str) -> Stamp:
        """What changes when the file is written to: here size and modification time."""
        try:
            return Stamp.of(Path(path))
        except OSError as error:
            raise unreadable(path, error) from error

    def content_id(self, path: str, stamp: Stamp) -> str:
        """What names the content for the fingerprint: here a hash of it, so that a copied or touched file is the same.

        Where the content is only sampled the modification time counts too: to the sample an edit may be invisible.
        """
        try:
            content = content_id(Path(path))
        except OSError as error:
            raise unreadable(path, error) from error
        return f"{content}, changed {stamp.changed_utc}" if content.startswith(SAMPLED) else content

    def local(self, path: str) -> Path | None:
        """The file on this machine, where it is there."""
        return Path(path)


def in_order(path: str) -> tuple[str, ...]:
    """The key by which files are sorted: folder by folder, so that a/b comes before a-b."""
    return PurePosixPath(path).parts


def unreadable(shown: object, error: OSError) -> InputError:
    """The error for an input on a disk that is not there any more, or may not be read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{shown} is not there any more; put it back as it was and run the same command again")
    remedy = "let this user read it" if isinstance(error, PermissionError) else "see to the disk"
    why = os.strerror(error.errno) if error.errno else str(error)  # the text of Arrow's errors names the file once more
    return InputError(f"{shown} cannot be read: {why}; {remedy} and run the same command again")
