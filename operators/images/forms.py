"""The forms in which rows have images: paths, bytes, structs {bytes, path}, `data:` URLs, URLs, and lists of these."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from operators.images.columns import IMAGE
from operators.images.read import BadImage
from operators.rows.json_values import noun
from pipeline.api.machine_errors import of_machine

WANTED = "a path, bytes, struct<bytes, path>, a `data:` URL as text, or a list of these"
BASE64 = "write data:image/jpeg;base64, and their base64"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_DATA_URL = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.IGNORECASE)
_LONGEST_PATH = 4096
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{64,}={0,2}\s*")
_OF_OTHERS = {"video": "videos are", "audio": "audio is", "text": "text is"}
URL = "url"
"""Key of an image that is still to be fetched, in the place of `bytes` and `path`."""
Image = dict[str, Any]
"""An image as `columns.IMAGE` has it, or {url: ...}."""


def holds_images(kind: pa.DataType) -> bool:
    """Return True for a type of a column that can hold images."""
    if pa.types.is_list(kind):
        return not pa.types.is_list(kind.value_type) and holds_images(kind.value_type)
    if pa.types.is_struct(kind):
        own = {field.name: field.type for field in kind}
        content, path = own.get("bytes", pa.null()), own.get("path", pa.null())
        return content in (pa.binary(), pa.null()) and (content == pa.binary() or path == pa.string())
    return kind in (pa.string(), pa.binary(), pa.null())


def type_of_paths(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of the paths of a column of images {bytes, path}, or of lists of these; None for others."""
    if pa.types.is_list(kind):
        return pa.list_(pa.string()) if type_of_paths(kind.value_type) == pa.string() else None
    return pa.string() if kind == IMAGE else None


def paths_of(column: pa.Array) -> pa.Array:
    """Return the paths of a column of images {bytes, path}, or of lists of these."""
    if pa.types.is_struct(column.type):
        return pc.struct_field(column, "path")
    paths = iter(pc.struct_field(pc.list_flatten(column), "path").to_pylist())
    lengths = pc.list_value_length(column).to_pylist()
    return pa.array([n if n is None else [next(paths) for _ in range(n)] for n in lengths], pa.list_(pa.string()))


class ImageForms:
    """Makes images of the values of rows.

    Args:
        root: `data.image_root`.
        folders: of the input. Relative paths are tried below `root`, below these, and where the run was started.
        domains: hosts from which images may be fetched (`data.image_domains`).

    A path leads below `root` or one of `folders`, or its row is a reject: also where it is absolute, or has `..` or
    links in it. So is one that is another file in another folder of the input.
    """

    def __init__(self, root: str | None, folders: Sequence[Path], domains: Collection[str] = ()) -> None:
        named = [] if root is None else [Path(root).expanduser()]
        self._folders = [Path(os.path.realpath(folder)) for folder in (*named, *folders)]
        self._tried = [self._folders[: len(named)], self._folders[len(named) :], [Path()]]
        self._domains = frozenset(domains)

    def images(self, value: Any) -> list[Image]:
        """Return the images in a value of a row, in order; none for null and what is empty.

        Raises:
            BadImage: it holds something else, or leads where no image may be read.
        """
        if isinstance(value, list):
            return [image for item in value if item is not None for image in self._one(item)]
        return self._one(value)

    def _one(self, value: Any) -> list[Image]:
        if isinstance(value, Mapping):
            content = value.get("bytes")
            if content is not None and not isinstance(content, bytes):
                raise BadImage(f"the `bytes` of an image are {noun(content)}; {BASE64} in the place of the struct")
            if content:
                return [{"bytes": content, "path": value.get("path")}]
            value = value.get("path")
        if value is None or value in ("", b""):
            return []
        if isinstance(value, bytes):
            return [{"bytes": value, "path": None}]
        if not isinstance(value, str):
            raise BadImage(f"{noun(value)} is no image, which is {WANTED}")
        return [self._of_text(value)]

    def _of_text(self, text: str) -> Image:
        scheme = match[0].lower() if (match := _SCHEME.match(text[:64])) else ""
        if scheme == "data:":
            return {"bytes": _of_data_url(text), "path": None}
        if scheme in ("http:", "https:"):
            self._refuse_domain(text)
            return {URL: text}
        if scheme == "file:":
            text = unquote(urlsplit(text).path)
        elif "://" in text[:64]:
            raise BadImage(
                f"{text[:200]} is no place that images are read from, which are files, `data:` URLs, and http(s) of"
                " data.image_domains; fetch it into a folder first"
            )
        return {"bytes": None, "path": self._path(text)}

    def _refuse_domain(self, url: str) -> None:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        if not self._domains & {host, parts.netloc.lower()}:
            raise BadImage(
                f"an image is at {parts.scheme}://{host}, from where none are fetched;"
                f" data.image_domains=[{host}] does, if that is what you want"
            )

    def _path(self, text: str) -> str:
        """Return the absolute path, without links, of the file that `text` names."""
        no_path = f"a text of {len(text):,} characters is no path; where it is base64, write data:image/jpeg;base64,"
        if len(text) > _LONGEST_PATH or "\0" in text:
            raise BadImage(f"{no_path} before it")
        outside = None
        for folders in self._tried:
            found = list(dict.fromkeys(real for folder in folders if (real := _there(folder / text)) is not None))
            inside = [real for real in found if any(Path(real).is_relative_to(each) for each in self._folders)]
            if len(inside) > 1:
                raise BadImage(
                    f"{text!r} is {inside[0]} and {inside[1]}; write absolute paths, or paths below data.image_root"
                )
            if inside:
                return _regular(inside[0], text)
            outside = outside or next(iter(found), None)
        below = " or ".join(map(str, self._folders)) or "no folder, since the rows come from none"
        if outside is not None:
            raise BadImage(
                f"{text!r} leads to {outside}, and images are read below {below}; data.image_root="
                f"{Path(outside).parent} allows it"
            )
        if _BASE64.fullmatch(text):
            raise BadImage(f"{no_path} before it")
        raise BadImage(f"{text!r} is not there (looked below {below}); data.image_root= says where images are")


def _there(path: Path) -> str | None:
    """Return the absolute path, without links, of what is at `path`; None if nothing is."""
    real = os.path.realpath(path)
    try:
        Path(real).stat()
    except (OSError, ValueError) as error:
        if of_machine(error):
            raise
        return None
    return real


def _regular(real: str, text: str) -> str:
    """Return `real`. Raises BadImage if it is no regular file."""
    if not Path(real).is_file():
        raise BadImage(f"{text!r} is {'a folder' if Path(real).is_dir() else 'no regular file'}, and no image")
    return real


def input_folders(paths: str | Sequence[str] | None) -> list[Path]:
    """Return the folders of the input files of `data.path` that are on this machine: a directory itself, the folder of
    a file, and of a glob the one below which it looks."""
    folders: dict[Path, None] = {}
    for text in [paths] if isinstance(paths, str) else paths or ():
        local = text.removeprefix("file://").removeprefix("local://")
        if "://" in local or "::" in local:
            continue
        path = Path(local).expanduser()
        while not path.is_dir() and path != path.parent:
            path = path.parent
        folders[path] = None
    return list(folders)


def _of_data_url(text: str) -> bytes:
    match = _DATA_URL.match(text[:1024])
    if match is None:
        raise BadImage("a `data:` URL has no comma, behind which the image is; write data:image/jpeg;base64,...")
    family = match[1].strip().lower().partition("/")[0]
    if family in _OF_OTHERS:
        raise BadImage(f"a `data:` URL is of the type {match[1].strip()}; {_OF_OTHERS[family]} not read as an image")
    content = text[match.end() :]
    if ";base64" not in match[2].lower():
        return unquote_to_bytes(content)
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadImage(f"a `data:` URL is no base64: {error}; encode the file's bytes again") from None
