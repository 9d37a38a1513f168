"""Folders KEY=VALUE (Hive partitions), as Spark, polars and pyarrow write them: columns of the files below them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from operators.formats.input_file import DIRECTORY, InputFile, Storage
from operators.formats.reader import TEXT
from operators.rows.arrow_types import SCALARS, is_whole, parse_type
from operators.settings import DataSettings
from pipeline.api.errors import ConfigError, InputError, SchemaError

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of a folder that stands for null."""
REMEDY = "data.partitions=true reads folders KEY=VALUE and makes columns of them"
_NAME = re.compile(r"(?!\.)[^=]+=.*")


def is_partition(name: str) -> bool:
    """Return True if a folder's name is KEY=VALUE."""
    return _NAME.fullmatch(name) is not None


def partitions_of(path: str, above: int) -> list[str]:
    """Return the folders KEY=VALUE of a file's path, but for the first `above` parts of it."""
    return [name for name in PurePosixPath(path).parts[above:-1] if is_partition(name)]


def with_partitions(storage: Storage, paths: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return `paths`, and what is in those of them that are folders KEY=VALUE, in such folders in these, and so on."""
    found = dict(paths)
    parents = {str(PurePosixPath(path).parent) for path in paths}
    for path, kind in paths.items():
        pure = PurePosixPath(path)
        if kind == DIRECTORY and is_partition(pure.name) and str(pure) not in parents:
            found |= with_partitions(storage, storage.listing(path))
    return found


class FolderColumns:
    """The columns that folders make: text, or int64 where each value is written as Python writes that number, or what
    `data.types` or `data.schema` says.

    Args:
        files: the input.
        data: its settings.

    Raises:
        ConfigError: `data.partitions` is set and no file lies in such a folder, or a type is none of a single value.
        InputError: a name is not UTF-8, has a key twice, or does not fit its type.
        SchemaError: a file has other keys than the others, without `data.union`.
    """

    def __init__(self, files: Sequence[InputFile], data: DataSettings) -> None:
        read = {file: _read(file) for file in files} if data.partitions else {}
        keys = list(dict.fromkeys(key for values in read.values() for key in values))
        if read and not keys:
            raise ConfigError("data.partitions=true, and no file below data.path lies in a folder KEY=VALUE")
        for file, values in read.items():
            if not data.union and (odd := [key for key in keys if key not in values]):
                raise SchemaError(f"{file} lies in no folder {odd[0]}=..., as others do; data.union=true makes it null")
        self._keys, self._is_types = keys, data.schema is None
        given, setting = (data.types, "data.types") if data.schema is None else (data.schema, "data.schema")
        if data.schema is not None:  # all columns are named there, and only these are read
            keys = [key for key in keys if key in data.schema]
        texts = {key: [values.get(key) for values in read.values()] for key in keys}
        types = {key: _type(key, texts[key], given, setting) for key in keys}
        self.schema = pa.schema(list(types.items()))
        self._values = {
            file: {key: _value(file, key, values.get(key), kind) for key, kind in types.items()}
            for file, values in read.items()
        }

    def of(self, file: InputFile) -> Mapping[str, pa.Scalar]:
        """Return the values of the columns in all rows of `file`."""
        return self._values.get(file, {})

    def others(self, types: Any) -> Any:
        """Return `data.types` or `data.schema` for the columns in the files."""
        if not self._keys or not isinstance(types, Mapping):
            return types
        others = {name: kind for name, kind in types.items() if name not in self._keys}
        return others or (None if self._is_types else others)


def _read(file: InputFile) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for name in file.folders:
        try:
            key, value = (unquote(text, errors="strict") for text in name.split("=", 1))
        except UnicodeDecodeError as error:
            raise InputError(f"the folder {name} of {file} is not UTF-8 once it is decoded; rename it") from error
        if key in values:
            raise InputError(f"{file} lies in two folders {key}=...; rename one")
        values[key] = None if value == NULL else value
    return values


def _type(key: str, texts: Sequence[str | None], given: Any, setting: str) -> pa.DataType:
    if isinstance(given, Mapping) and key in given:
        kind = parse_type(given[key], f"{setting}.{key}")
        if kind not in SCALARS.values():
            raise ConfigError(f"{setting}.{key}={kind} is no type of a folder's value, which is one of text")
        return kind
    values = [text for text in texts if text is not None]
    return pa.int64() if values and given != TEXT and all(map(is_whole, values)) else pa.string()


def _value(file: InputFile, key: str, text: str | None, kind: pa.DataType) -> pa.Scalar:
    try:
        return pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowInvalid as error:
        remedy = f"data.types={{{key}: string}} keeps it"
        raise InputError(f"{file}: the folder {key}={text} is no {kind}; {remedy}") from error
