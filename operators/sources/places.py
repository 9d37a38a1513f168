"""Where input files lie: what finding, naming and opening them needs of this machine's disks, or of an object store."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from operators.rows.content import SAMPLED, Stamp, content_id
from pipeline.api.errors import InputError


class Place(Protocol):
    """Files by their paths. Every method may raise InputError, and SourceError where a network is in between."""

    def shown(self, path: str) -> str:
        """The path as messages name it: a URL where it is one, never with credentials."""

    def is_dir(self, path: str) -> bool:
        """Whether there is a directory."""

    def exists(self, path: str) -> bool:
        """Whether there is anything."""

    def is_file(self, path: str) -> bool:
        """Whether there is a regular file."""

    def listing(self, path: str) -> Mapping[str, bool]:
        """What a directory holds, in no order: each path, and whether it is a regular file."""

    def matches(self, pattern: str) -> Mapping[str, bool]:
        """The same of all that a glob matches."""

    def open(self, path: str) -> BinaryIO:
        """The bytes of a file; can seek."""

    def stamp(self, path: str) -> Stamp:
        """What changes when the file is written to."""

    def content_id(self, path: str, stamp: Stamp) -> str:
        """What names the content of the file for the fingerprint."""

    def local(self, path: str) -> Path | None:
        """The file on this machine, where it is there."""


class LocalPlace:
    """The disks of this machine; see Place."""

    def shown(self, path: str) -> str:
        """See Place.shown."""
        return path

    def is_dir(self, path: str) -> bool:
        """See Place.is_dir."""
        return Path(path).is_dir()

    def exists(self, path: str) -> bool:
        """See Place.exists."""
        return Path(path).exists()

    def is_file(self, path: str) -> bool:
        """See Place.is_file."""
        return Path(path).is_file()

    def listing(self, path: str) -> Mapping[str, bool]:
        """See Place.listing."""
        return {str(p): p.is_file() for p in Path(path).iterdir()}

    def matches(self, pattern: str) -> Mapping[str, bool]:
        """See Place.matches."""
        found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - absolute patterns too
        return {path: Path(path).is_file() for path in found}

    def open(self, path: str) -> BinaryIO:
        """See Place.open."""
        return Path(path).open("rb")

    def stamp(self, path: str) -> Stamp:
        """See Place.stamp: size and modification time."""
        try:
            return Stamp.of(Path(path))
        except OSError as error:
            raise unreadable(path, error) from error

    def content_id(self, path: str, stamp: Stamp) -> str:
        """See Place.content_id: a hash of what the file holds, so that a copied or touched file is the same.

        Where the content is only sampled the modification time counts too: to the sample an edit may be invisible.
        """
        try:
            content = content_id(Path(path))
        except OSError as error:
            raise unreadable(path, error) from error
        return f"{content}, changed {stamp.changed_utc}" if content.startswith(SAMPLED) else content

    def local(self, path: str) -> Path | None:
        """See Place.local."""
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
