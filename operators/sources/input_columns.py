"""The columns of an input: of each file, as its format tells them or its rows let them be inferred, and of all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import pyarrow as pa

from operators.formats.input_file import EMPTY, HEAD_BYTES, InputFile, Stamp, is_hopeless, unreadable
from operators.formats.lines import LINE, LINES, TEXT
from operators.formats.reader import NoRowFitsError, Reader
from operators.formats.text_file import TextReader
from operators.prompts.template import Template
from operators.rows.arrow_types import merge_types, parse_schema
from operators.settings import DataSettings
from operators.sources.files import some
from operators.sources.union import own_schema
from pipeline.api.errors import ConfigError, InputError, SchemaError
from pipeline.api.records import LINEAGE, ROW, holds_nothing, without_null

T = TypeVar("T")
SAMPLE_ROWS = 10_000
"""Rows of the first file to infer types from, if the format has none."""
FURTHER_ROWS = 1_000
"""Rows of every further file to infer types from: a directory may have thousands of files."""
RESERVED = (ROW.name, LINEAGE.name)
"""Names that the rows of a run need for themselves."""
UNREADABLE = (pa.ArrowException, OSError, ValueError, OverflowError)
"""Exceptions of the libraries for bytes of another format."""


class InputColumns(NamedTuple):
    """The columns of an input.

    Args:
        all: their names in the files, and their types; those of folders come last.
        in_files: without those of folders.
        in_file: those of a file, and the types under which it is read, where these may be others (`data.union`).
    """

    all: pa.Schema
    in_files: pa.Schema
    in_file: Mapping[Reader, pa.Schema] = MappingProxyType({})


def columns_of(
    stamps: Mapping[InputFile, Stamp],
    readers: Sequence[Reader],
    data: DataSettings,
    folders: pa.Schema,
    warn: Callable[[str], None],
    reserved: Collection[str] = RESERVED,
) -> InputColumns:
    """Return the columns of all files, under their names there; none where no file has any.

    Args:
        stamps: of the files.
        folders: the columns that folders make, which come last.
        warn: takes a sentence on files that are read in another way than the others, or not.
        reserved: names that no column may have.

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
    for sentence in _notes(readers, useless, blank):
        warn(sentence)
    if not any(schema.names for schema in schemas.values()):
        named = parse_schema(data.schema) if data.schema else pa.schema([])
        return InputColumns(named, named)
    merged = common_schema(schemas, data)
    if twice := [(name, reader) for reader, own in schemas.items() for name in own.names if name in folders.names]:
        raise ConfigError(
            f"'{twice[0][0]}' is a folder's key and a column of {twice[0][1].file}; leave data.partitions out, which"
            " reads the column, or rename one of them"
        )
    columns = pa.schema([*merged, *folders])
    rename = data.rename or {}
    for reader, own in schemas.items():
        _check_names(pa.schema([*own, *folders]), reader.file, rename, reserved)
    if unknown := sorted(rename.keys() - set(columns.names)):
        raise ConfigError(f"data.rename names '{unknown[0]}'; the columns are {', '.join(columns.names) or 'none'}")
    in_files = {reader: own_schema(reader, own, merged) for reader, own in schemas.items()} if data.union else {}
    return InputColumns(columns, merged, in_files)


def _notes(readers: Sequence[Reader], useless: Sequence[NoRowFitsError], blank: Sequence[str]) -> Iterator[str]:
    """Yield sentences on files that are read in another way than the others, by a guess, or not."""
    for none in useless:
        yield f"{none}. Lines of it that are no rows are rejects, and the other files are read"
    for guess in sorted({guess for reader in readers for guess in reader.guesses.items()}):
        key, how = guess
        files = [str(reader.file) for reader in readers if guess in reader.guesses.items()]
        yield f"{some(files)}: {how}; {key} sets it"
    if blank and len(blank) < len(readers):
        yield f"{some(blank)}: empty, {len(blank)} of {len(readers)} files; there are no rows in them"


def assumed_columns(data: DataSettings) -> list[pa.Field]:
    """Return the columns of an input that has none, and no rows: those that `data` names, as text."""
    if data.format == LINES.name:
        return [TEXT, LINE]
    prompt = frozenset({data.messages_column or data.prompt_column})
    if data.prompt_template is not None:
        prompt = Template(data.prompt_template, "data.prompt_template", strict=True).unknown
    others = {data.template_kwargs_column, data.tools_column, data.id_column, data.image_column}
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


def common_schema(schemas: Mapping[Reader, pa.Schema], data: DataSettings) -> pa.Schema:
    """Return one schema for all files; a column without any value becomes a string column.

    Raises:
        SchemaError: a file differs, beyond what `data.union` allows where it is set; names the file and the column.
        ConfigError: a column is typed that is in no file.
    """
    merged: dict[str, pa.DataType] = {}
    first = next(iter(schemas)).file
    only_texts = all(reader.texts for reader in schemas)
    for reader, schema in schemas.items():
        types = {f.name: f.type for f in schema}
        may_lack = reader.optional_columns or data.union
        if merged and not may_lack and (odd := types.keys() ^ merged.keys()):
            has, lacks = (reader.file, first) if min(odd) in types else (first, reader.file)
            raise SchemaError(
                f"column '{min(odd)}' is in {has} but not in {lacks}; all files need the same columns;"
                " data.union=true reads them together, with nulls"
            )
        for name, kind in types.items():
            before = merged.get(name, pa.null())
            as_text = reader.texts and name not in reader.types and (only_texts or not data.union)
            both = merge_types(before, kind, json=reader.optional_columns, union=data.union and not as_text)
            if both is None and as_text:
                both = pa.string()
            if both is None:
                raise _differing(name, kind, before, reader, union=data.union)
            merged[name] = both
    for reader in schemas:
        if unknown := [name for name in reader.types if name not in merged]:
            raise ConfigError(f"{reader.key} names '{unknown[0]}'; the columns are {', '.join(merged)}")
    if nothing := [name for name, kind in merged.items() if holds_nothing(kind)]:
        raise SchemaError(f"column '{nothing[0]}' has structs without fields, which Parquet cannot hold; leave it out")
    return pa.schema([(name, without_null(kind)) for name, kind in merged.items()])


def _differing(name: str, kind: pa.DataType, before: pa.DataType, reader: Reader, *, union: bool) -> SchemaError:
    """Return the error for a column that has another type in a file than in those before it."""
    remedy = f"data.types={{{name}: ...}} names one" if reader.takes_types else "write one of them again"
    if not union and merge_types(before, kind, union=True) is not None:
        remedy = "data.union=true reads them as the wider one"
    return SchemaError(
        f"column '{name}' is {kind} in {reader.file} but {before} in the files before it; all files need the same"
        f" types: {remedy}"
    )


def _check_names(schema: pa.Schema, file: InputFile, rename: Mapping[str, str], reserved: Collection[str]) -> None:
    """Raise ConfigError for column names that are reserved or doubled once they are renamed."""
    names = [rename.get(name, name) for name in schema.names]
    for old, name in zip(schema.names, names, strict=True):
        if name in reserved:
            raise ConfigError(
                f"{file} has a column '{name}', a name that the pipeline needs for itself; give it another one:"
                f" 'data.rename={{{old}: source_{name}}}'"
            )
        if schema.names.count(old) > 1:
            raise ConfigError(f"{file} has two columns '{old}'; rename one in the file: data.rename takes both for one")
        if names.count(name) > 1:
            raise ConfigError(f"with data.rename {file} has two columns '{name}'; give one of them another name")
