"""The columns of an input: of each file, as its format tells them or its rows let them be inferred, and of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa

from operators.formats.input_file import EMPTY, HEAD_BYTES, InputFile, Stamp, is_hopeless, unreadable
from operators.formats.lines import LINE, LINES, TEXT
from operators.formats.reader import NoRowFitsError, Reader
from operators.formats.text_file import TextReader
from operators.prompts.template import Template
from operators.rows.arrow_types import merge_types, parse_schema
from operators.settings import DataSettings
from operators.sources.files import some
from pipeline.api.errors import ConfigError, InputError, SchemaError
from pipeline.api.records import LINEAGE, ROW, holds_nothing, without_null

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
    schemas: dict[Reader, pa.Schema] = {}
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
        is_text = isinstance(reader, TextReader)
        if schema.names or not is_text:
            schemas[reader] = schema
        if isinstance(reader, TextReader) and stamps[reader.file].size_bytes < HEAD_BYTES and reader.is_blank():
            blank.append(str(reader.file))
    if useless and not schemas:
        raise useless[0]
    for none in useless:
        warn(f"{none}. Lines of it that are no rows are rejects, and the other files are read")
    for guess in sorted({guess for reader in readers for guess in reader.guesses.items()}):
        key, how = guess
        files = [str(reader.file) for reader in readers if guess in reader.guesses.items()]
        warn(f"{some(files)}: {how}; {key} sets it")
    if blank and len(blank) < len(readers):
        warn(f"{some(blank)}: empty, {len(blank)} of {len(readers)} files; there are no rows in them")
    if not any(schema.names for schema in schemas.values()):
        return parse_schema(data.schema) if data.schema else pa.schema([])
    return common_schema([*schemas], [*schemas.values()], data.rename or {})


def assumed_columns(data: DataSettings) -> list[pa.Field]:
    """Return the columns of an input that has none, and no rows: those that `data` names, as text."""
    if data.format == LINES.name:
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
            problem = f"{reader.file} is empty, which no {reader.file.format} file is"
            raise InputError(f"{problem}; make or fetch it again, or take it away") from error
        remedy = "" if is_hopeless(like) else ". If it is another format, write data.format="
        remedy = f"it begins like {like}{remedy}"
        raise explained(reader.file, error, f"as {reader.file.format}", remedy) from error


def explained(file: InputFile, error: Exception, how: str, remedy: str) -> InputError:
    """Return the error for content that a library could not read `how`."""
    if isinstance(error, OSError) and error.errno is not None:  # Arrow's own errors have no errno
        return unreadable(file, error)
    return InputError(f"{file} cannot be read {how}: {error}; {remedy}")


def common_schema(readers: Sequence[Reader], schemas: Sequence[pa.Schema], rename: Mapping[str, str]) -> pa.Schema:
    """Return one schema for all files; a column without any value becomes a string column.

    `rename`: how columns will be called later. Here they have the names of the files.

    Raises:
        SchemaError: a file differs; names the file and the column.
        ConfigError: a column has a name that the pipeline needs for itself, two columns have one name, or `rename`
            names one that is not there.
    """
    merged: dict[str, pa.DataType] = {}
    for reader, schema in zip(readers, schemas, strict=True):
        _check_names(schema, reader.file, rename)
        types = {f.name: f.type for f in schema}
        if merged and not reader.optional_columns and (odd := types.keys() ^ merged.keys()):
            first = readers[0].file
            has, lacks = (reader.file, first) if odd & types.keys() else (first, reader.file)
            raise SchemaError(f"column '{min(odd)}' is in {has} but not in {lacks}; all files need the same columns")
        for name, kind in types.items():
            both = merge_types(merged.get(name, pa.null()), kind, json=reader.optional_columns)
            if both is None and reader.texts and name not in reader.types:
                both = pa.string()
            if both is None:
                raise SchemaError(
                    f"column '{name}' is {kind} in {reader.file} but {merged[name]} in the files before it;"
                    " all files need the same types"
                )
            merged[name] = both
    if unknown := sorted(rename.keys() - merged.keys()):
        raise ConfigError(f"data.rename names '{unknown[0]}'; the columns are {', '.join(merged) or 'none'}")
    if nothing := [name for name, kind in merged.items() if holds_nothing(kind)]:
        raise SchemaError(f"column '{nothing[0]}' has structs without fields, which Parquet cannot hold; leave it out")
    return pa.schema([(name, without_null(kind)) for name, kind in merged.items()])


def _check_names(schema: pa.Schema, file: InputFile, rename: Mapping[str, str]) -> None:
    """Raise ConfigError for column names that are reserved or doubled once they are renamed."""
    names = [rename.get(name, name) for name in schema.names]
    for old, name in zip(schema.names, names, strict=True):
        if name in (ROW.name, LINEAGE.name):
            raise ConfigError(
                f"{file} has a column '{name}', a name that the pipeline needs for itself; give it another one:"
                f" 'data.rename={{{old}: source_{name}}}'"
            )
        if schema.names.count(old) > 1:
            raise ConfigError(f"{file} has two columns '{old}'; rename one in the file: data.rename takes both for one")
        if names.count(name) > 1:
            raise ConfigError(f"with data.rename {file} has two columns '{name}'; give one of them another name")
