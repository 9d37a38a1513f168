"""ParseJson: parses a column of JSON texts into columns."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import pyarrow as pa

from operators.rows.json_values import Misfit, declared_fields, schema_fields
from operators.settings.checks import check_one_of
from operators.settings.structured import read_schema
from pipeline.api.errors import ConfigError, install
from pipeline.api.protocols import BaseOperator
from pipeline.api.records import Batch, Output, RejectKind, add_columns, require_column

_FENCED = re.compile(r"```(?:json|JSON)?[ \t]*\n(.*?)```", re.S)
_MAX_MESSAGE = 200
"""Characters kept of a jsonschema message: it quotes the value, which may be long."""
Validate = Callable[[Any], str | None]


class ParseJson(BaseOperator):
    """Parses a column of texts as JSON objects and adds their keys as columns. A text that does not parse, or is not
    what is asked for, makes its row a reject with the reason and the place. Keys that are not asked for are left out.

    Args:
        column: the texts.
        fields: name to type (string, int64, double, bool, list<type>, struct<name: type>; json for any value, kept as
            text). These are the columns that are added.
        optional: those of `fields` that may be missing or null.
        schema: a JSON schema that an object must keep: a mapping, JSON text or the path of a file. Without `fields` its
            properties are the columns. Needs the extra `json`.
        fenced: where the text as a whole is no JSON, take the first block between ``` fences.
        invalid: the kind of the rejects: error (they count against max_error_rate) or filtered.
        as_: prefix of the new columns (`as` in a job file).

    Raises:
        ConfigError: neither `fields` nor `schema` is given, a type is misspelt, the schema is none or leaves the type
            of a column open, or jsonschema is not installed.
        InputError: the file of the schema cannot be read.

    Example:
        parse:
          inputs: generate
          op:
            _target_: operators.parse_json.ParseJson
            column: completion
            fields: {name: string, age: int64, tags: list<string>}
            optional: [age]
    """

    def __init__(
        self,
        column: str,
        fields: dict[str, str] | None = None,
        optional: list[str] | None = None,
        schema: dict[str, Any] | str | None = None,
        fenced: bool = True,
        invalid: str = "error",
        as_: str | None = None,
    ) -> None:
        if not fields and schema is None:
            raise ConfigError("give fields or schema; fields: {name: string, age: int64} adds two columns")
        check_one_of("invalid", invalid, [kind.value for kind in RejectKind])
        self._column = column
        self._schema_given = read_schema(schema, "schema")
        self._breach: Validate = _validator(self._schema_given) if schema is not None else lambda value: None
        self._fields = declared_fields(fields, optional or []) if fields else schema_fields(self._schema_given)
        self._fenced = fenced
        self._kind = RejectKind(invalid)
        self._prefix = f"{as_}_" if as_ else ""

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, self._column, [pa.string()])
        self._schema = add_columns(schema, *(pa.field(self._prefix + f.name, f.type) for f in self._fields))
        return self._schema

    def fingerprint(self) -> dict[str, Any]:
        text = json.dumps(self._schema_given, sort_keys=True)
        return {"json_schema": hashlib.sha256(text.encode()).hexdigest()}

    def process(self, batch: Batch) -> Iterable[Output]:
        rows: list[dict[str, Any]] = []
        failed: dict[int, str] = {}
        for i, text in enumerate(batch.data.column(self._column).to_pylist()):
            try:
                rows.append(self._parsed(text))
            except Misfit as error:
                failed[i] = f"{self._column}: {error}"
        data = batch.data
        if failed:
            yield batch.reject(list(failed), list(failed.values()), self._kind)
            data = data.take(pa.array([i for i in range(batch.num_rows) if i not in failed], pa.int64()))
        if rows or not failed:
            made = [pa.array([row[f.name] for row in rows], f.type) for f in self._fields]
            yield batch.with_data(pa.record_batch([*data.columns, *made], schema=self._schema))

    def _parsed(self, text: str | None) -> dict[str, Any]:
        if text is None:
            raise Misfit("it is null")
        try:
            found = _load(text)
        except Misfit:
            block = _FENCED.search(text) if self._fenced else None
            if block is None:
                raise
            found = _load(block[1])
        if (breach := self._breach(found)) is not None:
            raise Misfit(breach)
        if not isinstance(found, Mapping):
            raise Misfit("$ is no object")
        return {field.name: field.value(found) for field in self._fields}


def _load(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise Misfit(f"no JSON: {error.msg}, at line {error.lineno}, column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # NaN, a number of thousands of digits; thousands of brackets
        raise Misfit(f"no JSON: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _validator(schema: Any) -> Validate:
    """Return a function that describes the most relevant error that jsonschema finds in a value, or returns None."""
    try:
        import jsonschema
        from referencing import Registry
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import specification_with
    except ImportError as error:
        raise ConfigError(f"schema needs the package jsonschema: {install('json')}; fields does without") from error
    cls = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        cls.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ConfigError(f"schema, at {error.json_path}: {error.message}") from error
    registry: Any = Registry()  # empty, so nothing is fetched from the web
    root = specification_with(cls.META_SCHEMA["$schema"]).create_resource(schema)
    for reference, lookup in _references(registry.resolver_with_root(root), root):
        try:
            lookup(reference)
        except Unresolvable as error:
            raise ConfigError(
                f"schema: $ref {reference!r} leads out of it or nowhere; write it out in $defs"
            ) from error
    validator = cls(schema, registry=registry)

    def breach(value: Any) -> str | None:
        try:
            found = jsonschema.exceptions.best_match(validator.iter_errors(value))
        except RecursionError:
            return "$ is nested too deeply for the schema"
        except OverflowError:
            return "$ has a number beyond what the schema can be held against"
        return None if found is None else f"{found.json_path}: {found.message[:_MAX_MESSAGE]}"

    return breach


def _references(resolver: Any, resource: Any) -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Yield each $ref of a schema (a resource of the package referencing) and of its subschemas, with a function that
    resolves it."""
    reference = resource.contents.get("$ref") if isinstance(resource.contents, Mapping) else None
    if isinstance(reference, str):
        yield reference, resolver.lookup
    for inner in resource.subresources():
        yield from _references(resolver.in_subresource(inner), inner)
