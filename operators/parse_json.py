"""ParseJson: parses a column of JSON texts into columns."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import pyarrow as pa

from operators.rows.batches import set_apart
from operators.rows.json_schema import Validate, validator
from operators.rows.json_values import Misfit, declared_fields, no_lost_number, schema_fields, unique_keys
from operators.rows.sql import Where
from operators.settings.checks import check_one_of
from operators.settings.structured import read_schema
from pipeline.api import Batch, ConfigError, Operator, Output, RejectKind, Scope, add_columns, require_column

_FENCED = re.compile(r"```(?:json|JSON)?[ \t]*\n(.*?)```", re.S)


class ParseJson(Operator):
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
        where: a condition in SQL on a row's columns. Rows for which it is false or null pass by as they are, with null
            in the new columns.

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

    scope = Scope.ROW

    def __init__(
        self,
        column: str,
        fields: dict[str, str] | None = None,
        optional: list[str] | None = None,
        schema: dict[str, Any] | str | None = None,
        fenced: bool = True,
        invalid: str = "error",
        as_: str | None = None,
        where: str | None = None,
    ) -> None:
        if not fields and schema is None:
            raise ConfigError("give fields or schema; fields: {name: string, age: int64} adds two columns")
        check_one_of("invalid", invalid, [kind.value for kind in RejectKind])
        self._column = column
        self._schema_given = read_schema(schema, "schema")
        self._breach: Validate = validator(self._schema_given, "schema") if schema is not None else lambda value: None
        self._fields = declared_fields(fields, optional or []) if fields else schema_fields(self._schema_given)
        self._fenced = fenced
        self._kind = RejectKind(invalid)
        self._prefix = f"{as_}_" if as_ else ""
        self._where = Where(where)

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, self._column, [pa.string()])
        self._where.plan(schema)
        self._kept = schema.names
        self._schema = add_columns(schema, *(pa.field(self._prefix + f.name, f.type) for f in self._fields))
        return self._schema

    def fingerprint(self) -> dict[str, Any]:
        text = json.dumps(self._schema_given, sort_keys=True)
        return {"json_schema": hashlib.sha256(text.encode()).hexdigest()}

    def process(self, batch: Batch) -> Iterable[Output]:
        batch, beside = self._where.chosen(batch, self._kept, self._schema)
        yield from beside
        rows: list[dict[str, Any]] = []
        failed: dict[int, str] = {}
        for i, text in enumerate(batch.data.column(self._column).to_pylist()):
            try:
                rows.append(self._parsed(text))
            except Misfit as error:
                failed[i] = f"{self._column}: {error}"
        rejects, batch = set_apart(batch, failed, self._kind)
        yield from rejects
        if rows or not (failed or beside):
            values = [pa.array([row[f.name] for row in rows], f.type) for f in self._fields]
            yield batch.with_data(pa.record_batch([*batch.data.columns, *values], schema=self._schema))

    def _parsed(self, text: str | None) -> dict[str, Any]:
        if text is None:
            raise Misfit("it is null")
        try:
            value = _load(text)
        except Misfit:
            block = _FENCED.search(text) if self._fenced else None
            if block is None:
                raise
            value = _load(block[1])
        if (breach := self._breach(value)) is not None:
            raise Misfit(breach)
        if not isinstance(value, Mapping):
            raise Misfit("$ is no object")
        return {field.name: field.value(value) for field in self._fields}


def _load(text: str) -> Any:
    try:
        return json.loads(
            text, object_pairs_hook=unique_keys, parse_float=no_lost_number, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        raise Misfit(f"no JSON: {error.msg}, at line {error.lineno}, column {error.colno}") from error
    except KeyError as error:
        raise Misfit(f"it has the key {error} twice") from error
    except (ValueError, RecursionError) as error:  # NaN, a number of thousands of digits; thousands of brackets
        raise Misfit(f"no JSON: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
