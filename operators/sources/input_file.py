"""One file of the input: where it lies, in which format, and its content, unpacked where it is compressed."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import pyarrow as pa

from operators.rows.content import Stamp
from operators.sources.places import Place
from pipeline.api.errors import InputError

CODECS: Mapping[str, str] = {".gz": "gzip", ".zst": "zstd"}
"""The last extension of a compressed file, and how it is compressed."""
MAGIC: Mapping[bytes, str] = {
    b"PAR1": "Parquet",
    b"ARROW1": "an Arrow IPC file",
    b"\xff\xff\xff\xff": "an Arrow IPC stream",
    b"\x1f\x8b": "gzip, which is unpacked where the name ends in .gz",
    b"\x28\xb5\x2f\xfd": "zstd, which is unpacked where the name ends in .zst",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"GGUF": "a GGUF model",
    b"\xff\xfe": "UTF-16 text; convert it to UTF-8",
    b"{": "JSON",
    b"[": "a JSON array; make lines of it with `jq -c '.[]'`",
}


@dataclass(frozen=True)
class InputFile:
    """A file that is read.

    Args:
        path: as its place knows it.
        place: where it lies.
        format: parquet, jsonl, csv, arrow or lines.
    """

    path: str
    place: Place = field(default_factory=Place, compare=False)
    format: str = ""

    def __str__(self) -> str:
        return self.place.shown(self.path)

    @property
    def name(self) -> str:
        """Without its directory, and without what stands behind `?` on the web."""
        shown = str(self)
        return PurePosixPath(shown.partition("?")[0] if shown.startswith(("http:", "https:")) else shown).name

    @property
    def codec(self) -> str | None:
        """How it is compressed, by its last extension: gzip, zstd or None."""
        return CODECS.get(PurePosixPath(self.name).suffix.lower())

    @property
    def suffix(self) -> str:
        """The extension that says its format, in lower case: .jsonl of rows.jsonl.gz."""
        name = PurePosixPath(self.name)
        return (name.with_suffix("") if self.codec else name).suffix.lower()

    @property
    def local(self) -> Path | None:
        """The file on this machine, where it is there."""
        return self.place.local(self.path)

    def open(self) -> BinaryIO:
        """The bytes that lie there."""
        return self.place.open(self.path)

    def stamp(self) -> Stamp:
        """What changes when it is written to."""
        return self.place.stamp(self.path)

    def content_id(self, stamp: Stamp | None = None) -> str:
        """What names its content for the fingerprint; `stamp`, if it is known already."""
        return self.place.content_id(self.path, stamp or self.stamp())

    def looks_like(self) -> str:
        """What the first bytes say it is, for error messages."""
        try:
            with self.open() as file:
                head = file.read(512)
        except OSError as error:
            return f"nothing that can be read ({error.strerror})"
        if not head:
            return "nothing: it is empty"
        start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        for magic, name in MAGIC.items():
            if start.startswith(magic):
                return name
        return "binary data" if b"\0" in head else f"text: {start[:40].decode('utf-8', 'replace')!r}"


class Content(io.RawIOBase):
    """What a file holds, from its beginning, unpacked as it is read.

    Raises:
        InputError: from `read`: an archive that is damaged, cut off or none; names the byte.
    """

    def __init__(self, file: InputFile) -> None:
        super().__init__()
        self._name = file
        self._raw = file.open()
        codec = file.codec
        self._unpacked = None if codec is None else pa.CompressedInputStream(pa.PythonFile(self._raw, "r"), codec)

    @property
    def position(self) -> int:
        """How far into the file, in bytes as they lie there; of an archive up to 64 KiB ahead."""
        return self._raw.tell()

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: object) -> int:
        """Fill `buffer`; how many bytes that were, 0 at the end."""
        into = memoryview(buffer).cast("B")  # type: ignore[arg-type]  # typeshed: any object with the buffer protocol
        data = self.read(len(into))
        into[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, or fewer; none at the end. All that are left where none is given."""
        if self._unpacked is None:
            return self._raw.read(size)
        try:
            data: bytes = self._unpacked.read(None if size < 0 else size)
        except OSError as error:
            if error.errno is not None:  # Arrow's own have none
                raise
            raise InputError(
                f"{self._name} is damaged or cut off near byte {self.position:,}: {error}; it begins like"
                f" {self._name.looks_like()}. Make or fetch it again and run the same command"
            ) from error
        if not data and not self.position:
            raise InputError(f"{self._name} is empty, which no {self._name.codec} archive is; make or fetch it again")
        return data

    def close(self) -> None:
        """Close the file."""
        self._raw.close()
        super().close()
