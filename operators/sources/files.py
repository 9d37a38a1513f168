"""Find the input files of `data.path` or `data.dataset`, and their formats."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from operators.settings import DataSettings
from operators.settings.checks import check
from operators.sources.arrow import ArrowReader
from operators.sources.csv import CsvReader
from operators.sources.input_file import CODECS, InputFile
from operators.sources.jsonl import JsonlReader
from operators.sources.lines import LinesReader
from operators.sources.parquet import ParquetReader
from operators.sources.places import Place, in_order, unreadable
from pipeline.api.errors import ConfigError, InputError, did_you_mean

READERS = {reader.format: reader for reader in (ParquetReader, JsonlReader, CsvReader, ArrowReader, LinesReader)}
"""The reader of each `data.format`. To add a format, write such a module and add its class here."""
EXTENSIONS = {extension: reader.format for reader in READERS.values() for extension in reader.extensions}
LINES = "lines"
"""The format that any text file can be read as."""
URL = re.compile(r"[a-z][a-z0-9+.-]*(::|://)", re.IGNORECASE)
WEB = re.compile(r"https?://", re.IGNORECASE)
"""URLs in which `?` begins a query instead of matching a character."""
ON_DISK = ("file://", "local://")


def find_files(data: DataSettings) -> list[InputFile]:
    """Find the files of `data.path`, path by path in the order given and sorted in each; or those of `data.dataset`.

    A directory stands for the files in it, a glob for those that it matches; both without hidden files, names that
    begin with `_` or end in `.tmp`, and files of unknown extensions (unless `data.format` says what a glob's files
    are). As lines any file can be read.

    Raises:
        ConfigError: no path is set, a file is meant twice, or there is no such `data.format`.
        InputError: there is no such file, it may not be read, or its format is not known; says what was found.
        SourceError: a network does not answer.
    """
    formats = ("auto", *READERS)
    check(data.format in formats, "data.format", data.format, f"it is one of {', '.join(formats)}")
    if data.dataset is not None:
        from operators.sources.hub_dataset import resolve  # an extra

        paths, data = resolve(data)
    else:
        paths = [data.path] if isinstance(data.path, str) else list(data.path or ())
    if not paths:
        raise ConfigError(
            "data.path is not set; write data.path=prompts.jsonl (a file, a directory, a glob or a URL), or data=hf"
            " data.dataset=owner/name"
        )
    files = [file for path in paths for file in _files_of(path, data)]
    named = [str(file) for file in files]
    if len(set(named)) < len(named):
        twice = next(name for i, name in enumerate(named) if name in named[:i])
        raise ConfigError(f"data.path={data.path} means {twice} twice; name it once, or narrow a glob")
    return files


def _files_of(path: str, data: DataSettings) -> list[InputFile]:
    place = Place()
    if URL.match(path) and not path.startswith(ON_DISK):
        from operators.sources.remote import remote  # an extra

        place, path = remote(path, data.storage_options or {})
    else:
        prefix = next((p for p in ON_DISK if path.startswith(p)), "")
        path = str(Path(path.removeprefix(prefix)).expanduser())
    try:
        found = _files_at(place, path, data.format)
    except OSError as error:
        raise unreadable(place.shown(path), error) from error
    for file in found:
        if file.codec and not READERS[file.format].packable:
            raise InputError(f"{file} is compressed as a whole, which {file.format} files do inside; unpack it")
    return found


def _files_at(place: Place, path: str, wanted: str) -> list[InputFile]:
    shown = place.shown(path)
    kind = place.kind(path)
    if kind == "directory":
        return _of_several(place, place.listing(path), f"the directory {shown}", wanted, trust_format=wanted == LINES)
    if kind == "file":
        return [_one(InputFile(path, place), wanted)]
    if kind is not None:
        raise InputError(f"data.path={shown} is no regular file; write what it gives into a file first")
    if glob.has_magic(path.partition("?")[0] if WEB.match(path) else path):
        return _of_several(place, place.matches(path), f"the pattern {shown}", wanted, trust_format=True)
    raise InputError(f"data.path={shown} does not exist{_near(place, path)}")


def _one(file: InputFile, wanted: str) -> InputFile:
    kind = EXTENSIONS.get(file.suffix) if wanted == "auto" else wanted
    if kind is None:
        raise InputError(
            f"{file} has none of the extensions {', '.join(EXTENSIONS)}; it begins like {file.looks_like()}:"
            f" say what it is with data.format={', '.join(READERS)}"
        )
    return replace(file, format=kind)


def _of_several(
    place: Place, found: Mapping[str, bool], where: str, wanted: str, *, trust_format: bool
) -> list[InputFile]:
    files = [InputFile(path, place) for path in sorted(found, key=in_order) if found[path]]
    files = [f for f in files if not f.name.startswith((".", "_")) and not f.name.endswith(".tmp")]
    kinds = {file: _format(file, wanted, trust_format) for file in files}
    chosen = [replace(file, format=kind) for file, kind in kinds.items() if kind is not None]
    formats = sorted({file.format for file in chosen})
    if not chosen:
        names = [PurePosixPath(path).name for path in sorted(found, key=in_order)]
        raise InputError(f"{where} has no file ending in {_endings(wanted)}; found {_some(names)}")
    if len(formats) > 1:
        raise InputError(f"{where} has files of several formats ({', '.join(formats)}); choose with data.format")
    return chosen


def _format(file: InputFile, wanted: str, trust_format: bool) -> str | None:
    if wanted != "auto" and trust_format:
        return wanted
    kind = EXTENSIONS.get(file.suffix)
    if kind is None or wanted not in ("auto", kind) or (file.codec and not READERS[kind].packable):
        return None
    return kind


def _endings(wanted: str) -> str:
    known = [e for e, kind in EXTENSIONS.items() if wanted in ("auto", kind)]
    packed = f" (or {', '.join(CODECS)} behind it)" if wanted == "auto" or READERS[wanted].packable else ""
    return ", ".join(known) + packed


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "nothing"


def _near(place: Place, path: str) -> str:
    parent = str(Path(path).parent) if place.local(path) is not None else path.rpartition("/")[0]
    if not parent:
        return ""
    if place.kind(parent) != "directory":
        return f"; nor does the directory {place.shown(parent)}"
    names = [PurePosixPath(p).name for p in sorted(place.listing(parent), key=in_order)]
    names = [name for name in names if not name.startswith(".")]
    own = PurePosixPath(path).name
    begin = place.shown(path).removesuffix(own)
    hint = did_you_mean(own, names, f"data.path={begin}")
    return f"; the directory {place.shown(parent)} has {_some(names)}{hint}"
