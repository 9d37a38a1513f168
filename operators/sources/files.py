"""Which files a `data.path` means, in which format."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from operators.settings import DataSettings
from pipeline.errors import ConfigError, InputError

EXTENSIONS: Mapping[str, str] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
KNOWN = ", ".join(EXTENSIONS)
MAGIC: Mapping[bytes, str] = {
    b"PAR1": "Parquet",
    b"ARROW1": "an Arrow IPC file",
    b"\xff\xff\xff\xff": "an Arrow IPC stream",
    b"\x1f\x8b": "gzip; unpack it first",
    b"\x28\xb5\x2f\xfd": "zstd; unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"GGUF": "a GGUF model",
    b"\xff\xfe": "UTF-16 text; convert it to UTF-8",
    b"{": "JSON",
    b"[": "a JSON array; make lines of it with `jq -c '.[]'`",
}


def find_files(data: DataSettings) -> tuple[list[Path], str]:
    """The files of `data.path`, sorted, and their format.

    A directory means the files in it, a glob those that it matches; both without hidden files, names that begin with
    `_` or end in `.tmp`, and files of unknown extensions (unless `data.format` says what a glob's files are). As lines
    any file can be read.

    Raises:
        ConfigError: no path is set.
        InputError: there is no such file, it may not be read, or its format is not known; says what was found.
    """
    if data.path is None:
        raise ConfigError("data.path is not set; write data.path=prompts.jsonl (a file, a directory or a glob)")
    path = Path(data.path).expanduser()
    try:
        return _files_at(path, data)
    except OSError as error:
        raise unreadable(path, error) from error


def _files_at(path: Path, data: DataSettings) -> tuple[list[Path], str]:
    if path.is_dir():
        trusted = data.format == "lines"  # any file has lines
        return _of_several(sorted(path.iterdir()), f"the directory {path}", data.format, trust_format=trusted)
    if path.exists() and not path.is_file():
        raise InputError(f"data.path={data.path} is no regular file; write what it gives into a file first")
    if path.exists():
        return [path], _format_of(path) if data.format == "auto" else data.format
    if glob.has_magic(str(path)):
        matches = sorted(Path(p) for p in glob.glob(str(path), recursive=True))  # noqa: PTH207 - absolute patterns too
        return _of_several(matches, f"the pattern {path}", data.format, trust_format=True)
    raise InputError(f"data.path={data.path} does not exist{_near(path)}")


def _format_of(path: Path) -> str:
    if path.suffix.lower() not in EXTENSIONS:
        raise InputError(
            f"{path} has none of the extensions {KNOWN}; it begins like {looks_like(path)}:"
            " say what it is with data.format=parquet, jsonl, csv or arrow"
        )
    return EXTENSIONS[path.suffix.lower()]


def _of_several(found: Sequence[Path], where: str, wanted: str, *, trust_format: bool) -> tuple[list[Path], str]:
    files = [p for p in found if p.is_file() and not p.name.startswith((".", "_")) and p.suffix != ".tmp"]
    if wanted != "auto" and trust_format:
        chosen = dict.fromkeys(files, wanted)
    else:
        chosen = {p: kind for p in files if (kind := EXTENSIONS.get(p.suffix.lower())) and wanted in ("auto", kind)}
    formats = sorted(set(chosen.values()))
    if not chosen:
        raise InputError(f"{where} has no file ending in {_endings(wanted)}; found {_some(found)}")
    if len(formats) > 1:
        raise InputError(f"{where} has files of several formats ({', '.join(formats)}); choose with data.format")
    return list(chosen), formats[0]


def _endings(wanted: str) -> str:
    return ", ".join(e for e, kind in EXTENSIONS.items() if wanted in ("auto", kind))


def _some(found: Sequence[Path]) -> str:
    names = [p.name for p in found[:5]]
    return ", ".join(names) + (f" and {len(found) - 5} more" if len(found) > 5 else "") if names else "nothing"


def _near(path: Path) -> str:
    parent = path.parent
    if not parent.is_dir():
        return f"; nor does the directory {parent}"
    return f"; the directory {parent} has {_some(sorted(parent.iterdir()))}"


def unreadable(path: Path, error: OSError) -> InputError:
    """The error for an input that is not there any more, or may not be read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path} is not there any more; put it back as it was and run the same command again")
    remedy = "let this user read it" if isinstance(error, PermissionError) else "see to the disk"
    why = os.strerror(error.errno) if error.errno else str(error)  # the text of Arrow's errors names the file once more
    return InputError(f"{path} cannot be read: {why}; {remedy} and run the same command again")


def looks_like(path: Path) -> str:
    """What the file's first bytes say it is, for error messages."""
    try:
        with path.open("rb") as file:
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
