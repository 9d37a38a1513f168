"""The columns of an input: of each file, as its format tells them or its rows let them be inferred, and of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa

from operators.prompts.template import Template
from operators.rows.arrow_types import parse_schema
from operators.settings import DataSettings
from operators.sources.files import some
from operators.sources.input_file import EMPTY, HEAD_BYTES, InputFile, Stamp, is_hopeless, unreadable
from operators.sources.jsonl import LINE, TEXT, LinesReader
from operators.sources.reader import NoRowFitsError, Reader, common_schema
from pipeline.api.errors import InputError
from pipeline.api.records import ROW

T = TypeVar("T")
SAMPLE_ROWS = 10_000
"""Rows of the first file to infer types from, if the format has none."""
FURTHER_ROWS = 1_000
"""Rows of every further file to infer types from: a directory may have thousands of files."""
UNREADABLE = (pa.ArrowException, OSError, ValueError, OverflowError)
"""Exceptions of the libraries for bytes of another format."""


def columns_of(
    stamps: Mapping[InputFile, Stamp], readers: Sequence[Reader], data: DataSettings, warn: Callable[[str], None]
) -> pa.Schema:
    """Return the columns of all files, under their names there; none where no file has any.

    Args:
        stamps: of the files.
        warn: takes a sentence on files that are read in another way than the others, or not.

    Raises:
        InputError: a file is not of its format, or no row of all files is.
        ConfigError, SchemaError: what `common_schema` raises.
    """
    found: dict[Reader, pa.Schema] = {}
    blank: list[str] = []
    useless: list[NoRowFitsError] = []
    for i, reader in enumerate(readers):
        try:
            schema = asked(reader, partial(reader.schema, FURTHER_ROWS if i else SAMPLE_ROWS))
        except NoRowFitsError as error:
            if not reader.file.is_text():
                raise
            useless.append(error)
            continue
        if schema.names or not reader.packable:
            found[reader] = schema
        is_small = stamps[reader.file].size_bytes < HEAD_BYTES
        if reader.packable and is_small and reader.file.is_blank():
            blank.append(str(reader.file))
    if useless and not found:
        raise useless[0]
    for none in useless:
        warn(f"{none}. Lines of it that are no rows are rejects, and the other files are read")
    if blank and len(blank) < len(readers):
        warn(f"{some(blank)}: empty, {len(blank)} of {len(readers)} files; there are no rows in them")
    if not any(schema.names for schema in found.values()):
        return parse_schema(data.schema) if data.schema else pa.schema([])
    return common_schema([*found], [*found.values()], data.rename or {})


def assumed_columns(data: DataSettings) -> list[pa.Field]:
    """Return the columns of an input that has none, and no rows: those that `data` names, as text."""
    if data.format == LinesReader.format:
        return [TEXT, LINE]
    prompt = frozenset({data.messages_column or data.prompt_column})
    if data.prompt_template is not None:
        prompt = Template(data.prompt_template, "data.prompt_template", strict=True).unknown
    others = {data.template_kwargs_column, data.tools_column, data.id_column}
    return [pa.field(name, pa.string()) for name in sorted(filter(None, {*prompt, *others} - {ROW.name}))]


def asked(reader: Reader, ask: Callable[[], T]) -> T:
    """Return what the reader answers; raises InputError for content that is not of its format."""
    try:
        return ask()
    except UNREADABLE as error:
        like = reader.file.looks_like()
        if like == EMPTY:
            what = f"{reader.file} is empty, which no {reader.format} file is"
            raise InputError(f"{what}; make or fetch it again, or take it away") from error
        remedy = "" if is_hopeless(like) else ". If it is another format, write data.format="
        remedy = f"it begins like {like}{remedy}"
        raise explained(reader.file, error, f"as {reader.format}", remedy) from error


def explained(file: InputFile, error: Exception, how: str, remedy: str) -> InputError:
    """Return the error for content that a library could not read `how`."""
    if isinstance(error, OSError) and error.errno is not None:  # Arrow's own errors have no errno
        return unreadable(file, error)
    return InputError(f"{file} cannot be read {how}: {error}; {remedy}")
