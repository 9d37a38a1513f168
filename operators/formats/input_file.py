"""One input file, and the storage that has it: the local disks here, object stores and the web in remote.py.

Local files do not go through fsspec: it would become a dependency of every run, it makes relative paths absolute (they
stand in rejects/ and in messages as they were given), and its globs match files in hidden directories.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from operators.formats.encodings import UTF_8, encoding_of
from operators.formats.unpack import CODECS, DAMAGED, unpack
from operators.rows.content import SAMPLED, content_id
from pipeline.api.errors import InputError

BUFFER_BYTES = 1 << 16
HEAD_BYTES = 512
EMPTY = "nothing: it is empty"
BOM = b"\xef\xbb\xbf"
TEXT_MAGIC = (b"{", b"[")
PAGES = "operators.pages.Pages makes a row of each page of data.path='papers/*.pdf' data.format=images (docs/images.md)"
MAGIC: Mapping[bytes, str] = {
    b"PAR1": "Parquet",
    b"ARROW1": "an Arrow IPC file",
    b"\xff\xff\xff\xff": "an Arrow IPC stream",
    b"\x1f\x8b": "gzip, which is unpacked where the name ends in .gz",
    b"\x28\xb5\x2f\xfd": "zstd, which is unpacked where the name ends in .zst",
    b"PK\x03\x04": "a zip archive; unpack it first, or, if it is an Excel file, name it .xlsx or .ods",
    b"\xd0\xcf\x11\xe0": "an older Excel file, which is read where the name ends in .xls, or one with a password",
    b"BZh": "bzip2, which is unpacked where the name ends in .bz2",
    b"\xfd7zXZ\0": "xz, which is unpacked where the name ends in .xz",
    b"7z\xbc\xaf": "a 7z archive; unpack it first",
    b"FEA1": "Feather 1, which is not read; write it again as Feather 2, Arrow or Parquet",
    b"GGUF": "a GGUF model",
    b"%PDF-": f"a PDF; {PAGES}",
    b"{": "JSON",
    b"[": "a JSON array, as data.format=json reads it",
}

FILE, DIRECTORY = "file", "directory"
KINDS = (
    (stat.S_ISREG, FILE),
    (stat.S_ISDIR, DIRECTORY),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class Stamp(NamedTuple):
    """The size of a file as stored, and a tag: its time of change, or an object store's ETag or checksum. At least one
    changes when the file is written to; both are cheap to get."""

    size_bytes: int
    tag: str


class Storage:
    """The local disks; a subclass is an object store or a server.

    Every method may raise InputError, and SourceError where a network is in between.
    """

    def shown(self, path: str) -> str:
        """Return the path for messages: the URL if it is one, without credentials. What is not UTF-8 is escaped."""
        return path.encode(errors="surrogateescape").decode(errors="backslashreplace")

    def kind(self, path: str) -> str | None:
        """Return FILE, DIRECTORY, or in words what else `path` is; None if there is nothing."""
        found = Path(path)
        try:
            mode = found.stat().st_mode
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return f"a link to {found.readlink()}, where no file is" if found.is_symlink() else None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return "a link to itself"
            raise
        return next((kind for test, kind in KINDS if test(mode)), "no regular file")

    def listing(self, path: str) -> Mapping[str, str | None]:
        """Return the paths in a directory, unordered, each with its kind."""
        return {str(p): self.kind(str(p)) for p in Path(path).iterdir()}

    def matches(self, pattern: str) -> Mapping[str, str | None]:
        """Return the paths that match a glob, each with its kind. Raises OSError for a folder that may not be read,
        which `glob` takes for an empty one."""
        for step in (Path(pattern), *Path(pattern).parents):
            needed = os.X_OK | (os.R_OK if glob.has_magic(step.name) else 0)
            for folder in glob.iglob(str(step.parent), recursive=True):  # noqa: PTH207 - absolute patterns too
                if Path(folder).is_dir() and not os.access(folder, needed, effective_ids=True):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return {path: self.kind(path) for path in glob.iglob(pattern, recursive=True)}  # noqa: PTH207

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


def unreadable(shown: object, error: OSError) -> InputError:
    """Return the error for a local input that is gone or may not be read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{shown} is not there any more; put it back as it was and run the same command again")
    remedy = "let this user read it, or narrow data.path," if isinstance(error, PermissionError) else "see to the disk"
    why = os.strerror(error.errno) if error.errno else str(error)  # Arrow's messages repeat the file's name
    return InputError(f"{shown} cannot be read: {why}; {remedy} and run the same command again")


@dataclass(frozen=True)
class InputFile:
    """An input file: its path in its storage, and its format (`data.format`).

    Args:
        folders: those KEY=VALUE that it lies in, if they are columns (`data.partitions`).
    """

    path: str
    storage: Storage = field(default_factory=Storage, compare=False)
    format: str = ""
    folders: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return self.storage.shown(self.path)

    @property
    def name(self) -> str:
        """The name without its directory, and without the query of a URL."""
        shown = str(self)
        return PurePosixPath(shown.partition("?")[0] if shown.startswith(("http:", "https:")) else shown).name

    @property
    def codec(self) -> str | None:
        """The compression, by the last extension; None: there is none."""
        return CODECS.get(PurePosixPath(self.name).suffix.lower())

    @property
    def suffix(self) -> str:
        """The extension that tells the format, in lower case: .jsonl for rows.jsonl.gz."""
        name = PurePosixPath(self.name)
        return (name.with_suffix("") if self.codec else name).suffix.lower()

    @property
    def local(self) -> Path | None:
        return self.storage.local(self.path)

    def open(self) -> io.BufferedReader:
        """Open the raw bytes."""
        return self.storage.open(self.path)

    @contextlib.contextmanager
    def unpacked(self) -> Iterator[tuple[io.BufferedReader, io.BufferedReader]]:
        """Open the decompressed content, and the raw file, whose `tell` gives the progress.

        Raises:
            InputError: the file is an archive that is damaged, cut off or none; names the byte.
        """
        with self.open() as raw:
            if self.codec is None:
                yield raw, raw
                return
            if not raw.peek(1):
                raise InputError(f"{self} is empty, which no {self.codec} archive is; make or fetch it again")
            try:
                yield io.BufferedReader(unpack(raw, self.codec), BUFFER_BYTES), raw
            except DAMAGED as error:
                if isinstance(error, OSError) and error.errno is not None:  # those of archives have no errno
                    raise
                with self.open() as file:
                    like = _likeness(file.read(HEAD_BYTES))
                raise InputError(
                    f"{self} is damaged or cut off near byte {raw.tell():,}: {error}; it begins like {like}. Make or"
                    " fetch it again and run the same command"
                ) from error

    def stamp(self) -> Stamp:
        return self.storage.stamp(self.path)

    def changed(self, before: Stamp, first: int = 0, last: int | None = None) -> tuple[InputFile, int, int] | None:
        """Compare with the stamp of before.

        Args:
            before: what `stamp` gave.
            first, last: the rows that count, [first, last), where each is a file of its own; others count whole.

        Returns:
            The file that has changed, its bytes then and now; None if none has.
        """
        now = self.stamp()
        return None if now == before else (self, before.size_bytes, now.size_bytes)

    def content_id(self, stamp: Stamp) -> str:
        return self.storage.content_id(self.path, stamp)

    def head(self) -> bytes:
        """Return the first bytes of the content; of an archive that is damaged, its own."""
        with contextlib.suppress(InputError), self.unpacked() as (content, _):
            return content.read(HEAD_BYTES)
        with self.open() as file:
            return file.read(HEAD_BYTES)

    def looks_like(self) -> str:
        """Guess the kind of file by its first bytes, for error messages."""
        try:
            return _likeness(self.head())
        except OSError as error:
            return f"nothing that can be read ({error.strerror})"

    def is_text(self) -> bool:
        """Return True unless the first bytes are of a binary file."""
        start = _start(self.head())[0]
        return b"\0" not in start and not start.startswith(tuple(MAGIC.keys() - set(TEXT_MAGIC)))


def is_hopeless(like: str) -> bool:
    """Return True if a file that looks like this is read in no format, and what it looks like says what to do."""
    return like in MAGIC.values() and "; " in like


def _start(head: bytes) -> tuple[bytes, str]:
    """Return a file's first bytes, as UTF-8 if they are a text of another encoding, and that encoding."""
    encoding, _ = encoding_of(head, None)
    text = head if encoding == UTF_8 else head.decode(encoding, "replace").encode()
    return text.removeprefix(BOM).lstrip(), encoding


def _likeness(head: bytes) -> str:
    if not head:
        return EMPTY
    start, encoding = _start(head)
    like = next((name for magic, name in MAGIC.items() if start.startswith(magic)), None)
    if like is None and b"\0" in start:
        return "binary data"
    like = like or (f"text: {start[:40].decode('utf-8', 'replace')!r}" if start else "blank lines")
    like += f", in {encoding}" if encoding != UTF_8 else ""
    one_line = b"\r" in head.rstrip() and b"\n" not in head
    return f"{like}, in lines that end in CR alone; make them end in LF (tr '\\r' '\\n')" if one_line else like
