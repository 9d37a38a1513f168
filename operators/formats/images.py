"""Folders of images, of which each file is a row: where it is. What is in it is read where a model needs it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pyarrow as pa

from operators.formats.format import Format
from operators.formats.input_file import InputFile, Stamp
from operators.formats.reader import Reader, RowBlock
from operators.images.columns import IMAGE
from operators.rows.content import WHOLE_UP_TO_BYTES
from pipeline.api.errors import InputError
from pipeline.api.records import Reject

BLOCK_ROWS = 1024
SIZE_LENGTH, MARK_LENGTH = 16, 32
"""Characters of a file's size, and of its whole mark, in the stamp of a folder."""
SCHEMA = pa.schema([("image", IMAGE), ("path", pa.string())])


@dataclass(frozen=True)
class InputImages(InputFile):
    """Files of images that are read as one input file of many rows.

    Args:
        path: of the first.
        files: all of them.
        above: parts of their paths that are left out in the column `path`.
    """

    files: tuple[InputFile, ...] = field(default=(), compare=False)
    above: int = field(default=0, compare=False)

    @classmethod
    def of(cls, files: Sequence[InputFile], above: int) -> list[InputFile]:
        """Return `files` as one for each of their folders KEY=VALUE, if these are columns.

        Raises:
            InputError: they are not on this machine.
        """
        groups: dict[tuple[str, ...], list[InputFile]] = {}
        for file in files:
            if file.local is None:
                raise InputError(
                    f"{file}: images are read from folders of this machine; fetch them, or read a table with their URLs"
                    " (data.image_column, data.image_domains)"
                )
            groups.setdefault(file.folders, []).append(file)
        return [
            cls(group[0].path, group[0].storage, IMAGES.name, folders, tuple(group), above)
            for folders, group in groups.items()
        ]

    def __str__(self) -> str:
        more = f" and {len(self.files) - 1:,} more" if len(self.files) > 1 else ""
        return f"{super().__str__()}{more}"

    def stamp(self) -> Stamp:
        """Return the sum of the sizes, and the marks of all files, one after the other."""
        stamps = [file.stamp() for file in self.files]
        return Stamp(sum(stamp.size_bytes for stamp in stamps), "".join(map(_mark, stamps)))

    def changed(self, before: Stamp, first: int = 0, last: int | None = None) -> tuple[InputFile, int, int] | None:
        for at, file in enumerate(self.files[first:last], first):
            now, mark = file.stamp(), before.tag[at * MARK_LENGTH : (at + 1) * MARK_LENGTH]
            if _mark(now) != mark:
                return file, int(mark[:SIZE_LENGTH], 16), now.size_bytes
        return None

    def content_id(self, stamp: Stamp) -> str:
        """Return a name of all files; of many bytes by the files' sizes and times of change."""
        whole = stamp.size_bytes <= WHOLE_UP_TO_BYTES
        names = hashlib.sha256()
        for file in self.files:
            its = file.stamp()
            content = file.content_id(its) if whole else f"{its.size_bytes} {its.tag}"
            names.update(f"{self.below(file)}\0{content}\n".encode("utf-8", "surrogateescape"))
        return f"{len(self.files)} images {names.hexdigest()}"

    def below(self, file: InputFile) -> str:
        """Return the path of a file without the folders that were named."""
        return str(PurePosixPath(*PurePosixPath(file.path).parts[self.above :]))


def _mark(stamp: Stamp) -> str:
    """Return the size of a file and a digest of its tag, in MARK_LENGTH characters."""
    return f"{stamp.size_bytes:0{SIZE_LENGTH}x}{hashlib.blake2b(stamp.tag.encode(), digest_size=8).hexdigest()}"


class ImagesReader(Reader):
    """Makes a row of each image: `image`, a struct {bytes, path} without bytes, with the absolute path, and `path`,
    that below the folder that was named. A name that is not UTF-8 is a bad row."""

    def schema(self, sample_rows: int) -> pa.Schema:
        return SCHEMA

    def total_rows(self) -> int:
        return len(self._files.files)

    def blocks(self, schema: pa.Schema, first: int, start: int) -> Iterator[RowBlock]:
        files = self._files.files
        for at in range(0, len(files), BLOCK_ROWS):
            part = files[at : at + BLOCK_ROWS]
            bad = tuple(Reject(first + at + i, why) for i, file in enumerate(part) if (why := _not_named(file)))
            rows = [
                {"image": {"bytes": None, "path": str(Path(file.path).absolute())}, "path": self._files.below(file)}
                for file in part
                if _not_named(file) is None
            ]
            data = pa.RecordBatch.from_pylist(rows, SCHEMA).select(schema.names)
            yield RowBlock(first + at, len(part), data, bad)

    @property
    def _files(self) -> InputImages:
        assert isinstance(self.file, InputImages)
        return self.file


def _not_named(file: InputFile) -> str | None:
    """Return why no row can name a file; None if one can."""
    try:
        str(Path(file.path).absolute()).encode()
    except UnicodeEncodeError:
        return f"the name of {file} is not UTF-8; rename it"
    return None


IMAGES = Format(
    "images",
    ImagesReader,
    (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    alone=True,
)
"""Read only."""
