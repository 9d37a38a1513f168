"""Select and Rename: choose and rename columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from operators.rows.lineage import IDENTITY, refuse_identity
from pipeline.api import Batch, ConfigError, Operator, Output, SchemaError, Scope, require_column


class Select(Operator):
    """Keeps some columns, in the order in which they are named, or all but some. `row` and `lineage` always stay.

    Args:
        columns: those that stay.
        drop: those that go, instead.

    Raises:
        ConfigError: both or neither are given, or `drop` names `row` or `lineage`.

    Example:
        slim:
          inputs: generate
          op:
            _target_: operators.columns.Select
            columns: [id, prompt, completion]
    """

    scope = Scope.ROW

    def __init__(self, columns: list[str] | None = None, drop: list[str] | None = None) -> None:
        if (columns is None) == (drop is None):
            raise ConfigError("give columns, the names that stay, or drop, the names that go")
        refuse_identity(drop or (), "dropped")
        _refuse_twice(columns or drop or ())
        self._keep = columns
        self._drop = drop or []

    def plan(self, schema: pa.Schema) -> pa.Schema:
        for name in self._keep or self._drop:
            require_column(schema, name)
        chosen = [n for n in schema.names if n not in self._drop] if self._keep is None else self._keep
        identity = [n for n in schema.names if n in IDENTITY and n not in chosen]
        self._schema = pa.schema([schema.field(name) for name in (*identity, *chosen)])
        return self._schema

    def process(self, batch: Batch) -> Iterable[Output]:
        yield batch.with_data(batch.data.select(self._schema.names))


class Rename(Operator):
    """Gives columns other names, so that what one node writes is what another one reads. Two may change places.

    Args:
        columns: the name that a column has to the one that it gets.
        drop: columns that go.

    Raises:
        ConfigError: nothing is renamed, two columns get one name, or `row` or `lineage` is renamed or dropped.

    Example:
        second_round:
          inputs: generate
          op:
            _target_: operators.columns.Rename
            columns:
              prompt: first_prompt
              completion: prompt
    """

    scope = Scope.ROW

    def __init__(self, columns: dict[str, str], drop: list[str] | None = None) -> None:
        if not columns:
            raise ConfigError("columns is empty; write columns: {old_name: new_name}")
        refuse_identity((*columns, *columns.values()), "renamed, nor another column given their name")
        refuse_identity(drop or (), "dropped")
        _refuse_twice(list(columns.values()))
        self._names = dict(columns)
        self._drop = drop or []

    def plan(self, schema: pa.Schema) -> pa.Schema:
        for name in self._drop:
            require_column(schema, name)
        schema = pa.schema([f for f in schema if f.name not in self._drop])
        self._kept = schema.names
        for old, new in self._names.items():
            require_column(schema, old)
            if new in schema.names and new not in self._names:
                raise SchemaError(
                    f"there is a column '{new}' already, so '{old}' cannot become that; give one of the two another"
                    f" name ({new}: another_name), or drop '{new}' before (operators.columns.Select, drop: [{new}])"
                )
        self._schema = pa.schema([f.with_name(self._names.get(f.name, f.name)) for f in schema])
        return self._schema

    def process(self, batch: Batch) -> Iterable[Output]:
        yield batch.with_data(pa.record_batch([batch.data.column(n) for n in self._kept], schema=self._schema))


def _refuse_twice(names: Sequence[str]) -> None:
    if twice := [name for name in names if list(names).count(name) > 1]:
        raise ConfigError(f"'{twice[0]}' is named twice; each column has a name of its own")
