"""One input file: its place, its format, and its content, decompressed."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pyarrow as pa

from operators.sources.places import BUFFER_BYTES, Place, Stamp
from pipeline.api.errors import InputError

CODECS: Mapping[str, str] = {".gz": "gzip", ".zst": "zstd"}
"""Compression by the last extension of a file."""
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
    """An input file.

    Args:
        path: its path in `place`.
        place: the disks or the store that has it.
        format: parquet, jsonl, csv, arrow or lines.
    """

    path: str
    place: Place = field(default_factory=Place, compare=False)
    format: str = ""

    def __str__(self) -> str:
        return self.place.shown(self.path)

    @property
    def name(self) -> str:
        """The name without its directory, and without the query of a URL."""
        shown = str(self)
        return PurePosixPath(shown.partition("?")[0] if shown.startswith(("http:", "https:")) else shown).name

    @property
    def codec(self) -> str | None:
        """The compression, by the last extension: gzip, zstd or None."""
        return CODECS.get(PurePosixPath(self.name).suffix.lower())

    @property
    def suffix(self) -> str:
        """The extension that tells the format, in lower case: .jsonl for rows.jsonl.gz."""
        name = PurePosixPath(self.name)
        return (name.with_suffix("") if self.codec else name).suffix.lower()

    @property
    def local(self) -> Path | None:
        """The file on this machine; None if it is remote."""
        return self.place.local(self.path)

    def open(self) -> io.BufferedReader:
        """Open the raw bytes."""
        return self.place.open(self.path)

    @contextmanager
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
                unpacked = pa.CompressedInputStream(pa.PythonFile(raw, "r"), self.codec)
                yield io.BufferedReader(unpacked, BUFFER_BYTES), raw
            except OSError as error:
                if error.errno is not None:  # Arrow's own errors have no errno
                    raise
                raise InputError(
                    f"{self} is damaged or cut off near byte {raw.tell():,}: {error}; it begins like"
                    f" {self.looks_like()}. Make or fetch it again and run the same command"
                ) from error

    def stamp(self) -> Stamp:
        """Return the current stamp of the file."""
        return self.place.stamp(self.path)

    def content_id(self, stamp: Stamp | None = None) -> str:
        """Return a name of the content for the fingerprint. `stamp`: that of the file, if it is known."""
        return self.place.content_id(self.path, stamp or self.stamp())

    def looks_like(self) -> str:
        """Guess the kind of file by its first bytes, for error messages."""
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
