"""Call: applies a function of the user to each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.rows.arrow_types import parse_type
from operators.rows.lineage import IDENTITY, append_to_lineage, refuse_identity, repeated, with_lineage
from pipeline.api import LINEAGE, ROW, Batch, Operator, Output, RejectKind, Scope, name_row, require_column
from pipeline.api.by_batch import why_rejected
from pipeline.api.errors import HALF_A_CHARACTER
from pipeline.api.machine_errors import of_machine
from pipeline.api.records import python_rows, python_values

Row = dict[str, Any]


class Call(Operator):
    """Calls a Python function for each row, with the row as a dict. What it returns decides what becomes of the row:

    - a dict: the row with these values. What is not in it stays as it was.
    - None: the row becomes a reject of kind `filtered`.
    - with `many: true` an iterable of dicts: a row for each. Their number, from 0, is appended to `lineage`. Without
      any the row becomes a reject of kind `filtered`.

    The same row must give the same values, whenever it is called: a row may be computed again after a restart. What the
    function raises is treated as the node's `on_error` says. The files that the function comes from are part of the
    run's fingerprint.

    Args:
        function: module.name; a module beside the job file or on PYTHONPATH is found.
        columns: name to type of the columns that it adds, or whose type it changes.
        arguments: further keyword arguments for it.
        many: it returns several rows for one.

    Raises:
        ConfigError: a type is misspelt, or a column is `row` or `lineage`.

    Example:
        score:
          inputs: generate
          on_error: reject
          op:
            _target_: operators.call.Call
            function: my_functions.score
            columns: {score: double}
    """

    scope = Scope.ROW

    def __init__(
        self,
        function: Callable[..., Any],
        columns: dict[str, str] | None = None,
        arguments: dict[str, Any] | None = None,
        many: bool = False,
    ) -> None:
        self._function = function
        self._name = getattr(function, "__qualname__", type(function).__name__)
        refuse_identity(columns or (), "computed; use another name")
        self._declared = {name: parse_type(text, f"columns.{name}") for name, text in (columns or {}).items()}
        self._arguments = arguments or {}
        self._many = many

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, ROW.name, [ROW.type])
        added = dict(self._declared)
        fields = [f.with_type(added.pop(f.name, f.type)) for f in schema]
        fields += [pa.field(name, kind) for name, kind in added.items()]
        self._schema = with_lineage(fields) if self._many else pa.schema(fields)
        return self._schema

    def process(self, batch: Batch) -> Iterable[Output]:
        inputs = python_rows(batch.data)
        failed: dict[int, str] = {}
        results: dict[int, list[Row]] = {}
        for i, row in enumerate(inputs):
            with self._blamed(batch, i, failed):
                results[i] = self._results(dict(row))
        if failed:
            yield batch.reject(list(failed), list(failed.values()))
        dropped = [i for i, rows in results.items() if not rows]
        if dropped:
            yield batch.reject(dropped, f"{self._name} returned nothing", RejectKind.FILTERED)
        kept = [i for i, rows in results.items() if rows]
        if not kept and (failed or dropped):
            return
        try:
            yield self._made(batch, inputs, results, kept)
        except (ValueError, pa.ArrowException):  # a value does not fit its column; the function is not called again
            for i in kept:
                refused: dict[int, str] = {}
                with self._blamed(batch, i, refused):
                    yield self._made(batch, inputs, results, [i])
                if refused:
                    yield batch.reject([i], refused[i])

    @contextmanager
    def _blamed(self, batch: Batch, index: int, failed: dict[int, str]) -> Iterator[None]:
        """Note in `failed` why row `index` is a reject, or name it in what the block raises."""
        try:
            yield
        except Exception as error:  # of the user's function, which is called once for a row, whatever it raises
            if not self.on_error.ends_run and not of_machine(error):
                failed[index] = why_rejected(error)
                return
            name_row(error, batch, index)
            raise

    def _made(self, batch: Batch, inputs: list[Row], results: Mapping[int, list[Row]], kept: list[int]) -> Batch:
        """Return the rows that the function has made of the rows `kept`."""
        parents, numbers = repeated(np.array([len(results[i]) for i in kept], np.int64))
        of = [kept[at] for at in parents]
        outputs = [row for i in kept for row in results[i]]
        rows = batch.data.take(pa.array(of, pa.int64()))
        data = self._data(rows, [inputs[i] for i in of], outputs, numbers)
        return batch.with_data(data, expanded=len(outputs) - len(kept))

    def _results(self, row: Row) -> list[Row]:
        """Call the function, which may change `row` in place. Return one dict for each row that it makes of `row`."""
        identity = {name: copy(row[name]) for name in IDENTITY if name in row}
        result = self._function(row, **self._arguments)
        if result is None:
            return []
        if self._many and (isinstance(result, Mapping | str) or not isinstance(result, Iterable)):
            raise TypeError(
                f"{self._name} returned {type(result).__name__}; with many: true it returns a list of dicts"
            )
        return [self._checked(one, identity) for one in (result if self._many else [result])]

    def _checked(self, result: object, identity: Row) -> Row:
        """Return a copy of `result`, a dict of columns that leaves `row` and `lineage` as they are."""
        if not isinstance(result, Mapping):
            more = "; to return several rows write many: true" if isinstance(result, list | tuple) else ""
            raise TypeError(f"{self._name} returned {type(result).__name__}; it returns a dict or None{more}")
        unknown = [key for key in result if key not in self._schema.names]
        if unknown:
            raise ValueError(
                f"{self._name} returned the key '{unknown[0]}', which is no column; declare it:"
                f" columns: {{{unknown[0]}: string}}"
            )
        if any(result.get(name, value) != value for name, value in identity.items()):
            raise ValueError(f"{self._name} changed 'row' or 'lineage', which say which row it is")
        return dict(result)

    def _data(
        self, kept: pa.RecordBatch, inputs: list[Row], outputs: list[Row], numbers: npt.NDArray[np.int32]
    ) -> pa.RecordBatch:
        """Make the output columns. `kept` has, for each new row, the row it was made from, and `inputs` what of it the
        function got. Columns that the function did not return, or as they were, are taken from `kept` unchanged: not
        every Arrow value survives a round trip through Python."""
        returned = {
            name
            for row, old in zip(outputs, inputs, strict=True)
            for name in row
            if not _as_it_was(row[name], old, name)
        }.difference(IDENTITY)
        columns = []
        for field in self._schema:
            source = kept.column(field.name) if field.name in kept.schema.names else None
            if field.name == LINEAGE.name and self._many:
                columns.append(append_to_lineage(source, numbers))
            elif source is not None and source.type == field.type and field.name not in returned:
                columns.append(source)
            else:
                columns.append(self._column(field, source, inputs, outputs))
        return pa.record_batch(columns, schema=self._schema)

    def _column(self, field: pa.Field, source: pa.Array | None, inputs: list[Row], outputs: list[Row]) -> pa.Array:
        """Make a column of the returned values; rows with none, or with the value as it was, keep that of `source`."""
        name = field.name
        kept = source if source is not None and source.type == field.type else None
        same = [
            kept is not None and (name not in row or _as_it_was(row[name], old, name))
            for row, old in zip(outputs, inputs, strict=True)
        ]
        had = [None] * len(outputs) if source is None or kept is not None else python_values(source)
        values = [None if stays else row.get(name, old) for stays, row, old in zip(same, outputs, had, strict=True)]
        try:
            if (fraction := _fraction(values, pa.list_(field.type))) is not None:
                raise ValueError(f"{fraction!r} is no whole number")  # Arrow would truncate it
            column = pa.array(values, field.type)
            if not any(same):
                return column
            places = np.arange(len(outputs)) + np.where(same, 0, len(outputs))
            return pa.concat_arrays([kept, column]).take(pa.array(places))
        except UnicodeEncodeError as error:
            raise ValueError(f"{self._name}: column '{name}' has {HALF_A_CHARACTER}") from error
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{self._name}: column '{name}' is {field.type}: {error}") from error


def _as_it_was(value: Any, old: Row, name: str) -> bool:
    """Return True for the value that the function got; a list or a dict may have been changed in place."""
    return name in old and value is old[name] and not isinstance(value, list | dict)


def _fraction(value: Any, kind: pa.DataType) -> float | None:
    """Return the first number in `value` that has a fraction where `kind` has an integer type, or None."""
    if isinstance(value, float | np.floating):
        return float(value) if pa.types.is_integer(kind) and value != value // 1 else None
    inner: Iterable[tuple[Any, pa.DataType]] = ()
    if isinstance(value, list | tuple | np.ndarray) and hasattr(kind, "value_type"):
        inner = ((item, kind.value_type) for item in value)
    elif isinstance(value, Mapping) and pa.types.is_struct(kind):
        inner = ((value.get(field.name), field.type) for field in kind)
    return next((fraction for item, type_ in inner if (fraction := _fraction(item, type_)) is not None), None)
