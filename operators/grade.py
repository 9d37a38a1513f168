"""Grade: says of each row whether its answer is right, and at the end of a run how many are."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from operators.rows.batches import set_apart
from operators.scoring.accuracy import accuracy_lines
from operators.scoring.columns import named, require_options
from operators.scoring.metrics import groups_of, metrics
from operators.settings.checks import check, check_one_of
from pipeline.api import Batch, Concludes, ConfigError, Operator, Output, Scope, add_columns, require_column
from pipeline.api.errors import SchemaError
from pipeline.api.records import record_json

CHOICE, JUDGE, F1 = "choice", "judge", "f1"
METRICS = ("exact", "normalised", "number", "regex", "contains", F1, JUDGE, CHOICE)
EXPECTED = ("expected", "answer")
"""Columns of expected answers, where none is named: the first of them that there is."""
A_MAP = " a Map step before makes them (columns: {gold: answers.text}, or {gold: 'CAST(price AS DOUBLE)'})"
_VALUES = (pa.types.is_string, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
CORRECT = (pa.field("correct", pa.bool_()), pa.field(F1, pa.float64()))


class Grade(Operator, Concludes):
    """Adds `correct` (bool): whether an answer is the expected one, by a metric; with `f1` also `f1` (double). At the
    end of the run it prints the accuracy, by group, with its interval of 95 % (Wilson's).

    An answer that is null or empty is wrong. A row without an expected answer, or with one that cannot be read (no
    number, no regular expression), is a reject. It is not counted, and a line below the table says how many there are.

    | metric | right is |
    |---|---|
    | exact | the same text, but for white space at both ends |
    | normalised | the same in NFKC without case, punctuation, a, an, the, and white space (SQuAD's exact match) |
    | f1 | as normalised; and `f1` is the F1 of the words that both have (SQuAD's) |
    | number | the same number in English form (1,234.5): the last one of each text, or that of a line `#### 42` |
    | regex | an answer in which the expected pattern is found |
    | contains | an answer that has the expected text somewhere, without case |
    | choice | the chosen option, as Choose gives it: expected is its text, a letter (A) or its place, a number from 0 |
    | judge | a verdict, as a step with `choices` gives it, that is `positive` |

    Args:
        metric: one of the table.
        expected: column of what is right: texts or numbers, or lists of them, of which any will do. null: `expected`,
            or where there is none `answer`. By judge it is only looked at: what the prompt of the verdict showed.
        answer: column of what was answered.
        by: columns whose values, together, are the groups of the table.
        extract: a regular expression, in the syntax of Rust: its first group, or else all that it finds first in the
            answer, is what is compared. Where it finds nothing the answer is wrong.
        tolerance: how far a number may be from the expected one.
        options: with choice the options of Choose: a list of texts, or the column that has one.
        positive: with judge the verdict that says that an answer is right.
        as_: prefix of the new columns (`as` in a job file).

    Raises:
        ConfigError: there is no such metric, or `extract` is no regular expression.

    Example:
        grade:
          inputs: generate
          op:
            _target_: operators.grade.Grade
            metric: number
            expected: answer
            by: [subject]
    """

    scope = Scope.ROW

    def __init__(
        self,
        metric: str = "exact",
        expected: str | None = None,
        answer: str = "completion",
        by: list[str] | str | None = None,
        extract: str | None = None,
        tolerance: float = 0.0,
        options: list[str] | str | None = None,
        positive: str = "yes",
        as_: str | None = None,
    ) -> None:
        check_one_of("metric", metric, METRICS)
        check(tolerance >= 0, "tolerance", tolerance, "it is 0 or more")
        if (metric == CHOICE) != (options is not None):
            raise ConfigError("options are those of metric: choice, which needs them; give both or neither")
        try:
            self._group = 0 if extract is None else min(groups_of(extract), 1)
        except ValueError as error:
            raise ConfigError(f"extract {error}") from error
        self._metric, self._answer, self._extract = metric, answer, extract
        self._expected = expected
        self._by = [by] if isinstance(by, str) else by or []
        self._options, self._positive = options, positive
        self._fields = named(CORRECT[: 1 + (metric == F1)], as_)
        known = metrics(tolerance)
        self._metrics = [known["normalised"], known[F1]] if metric == F1 else [known.get(metric, known["exact"])]

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, self._answer, [pa.string()])
        for name in self._by:
            if pa.types.is_nested(require_column(schema, name).type):
                raise SchemaError(f"by: column '{name}' is {schema.field(name).type}, and a group has one value")
        if isinstance(self._options, str):
            require_options(schema, self._options)
        self._expected = self._expected or next((name for name in EXPECTED if name in schema.names), None)
        if self._expected is None:
            there = ", ".join(schema.names)
            raise SchemaError(f"say with expected: NAME which column has the expected answers; there are {there}")
        kind = require_column(schema, self._expected).type
        kind = kind.value_type if pa.types.is_list(kind) else kind
        if not any(is_one(kind) for is_one in _VALUES):
            raise SchemaError(
                f"expected: column '{self._expected}' is {kind}, not texts, numbers or lists of them;" + A_MAP
            )
        self._schema = add_columns(schema, *self._fields)
        return self._schema

    def process(self, batch: Batch) -> Iterable[Output]:
        data = batch.data
        answers = data.column(self._answer).to_pylist()
        if self._extract is not None:
            answers = pl.Series(answers, dtype=pl.String).str.extract(self._extract, self._group).to_list()
        expected = data.column(self._expected).to_pylist()
        options = data.column(self._options).to_pylist() if isinstance(self._options, str) else repeat(self._options)
        failed: dict[int, str] = {}
        grades: list[tuple[bool, float]] = []
        for i, (answer, value, texts) in enumerate(zip(answers, expected, options, strict=False)):
            try:
                right = _texts(value, texts)
                grades.append(self._grade(answer or "", [self._positive] if self._metric == JUDGE else right))
            except ValueError as error:
                failed[i] = f"column '{self._expected}' {error}"
        rejects, batch = set_apart(batch, failed)
        yield from rejects
        if grades or not failed:
            columns = list(zip(*grades, strict=True)) or [(), ()]
            new = [pa.array(column, field.type) for column, field in zip(columns, self._fields, strict=False)]
            yield batch.with_data(pa.record_batch([*batch.data.columns, *new], schema=self._schema))

    def report(self, directory: Path, node: str) -> Iterable[str]:
        """The accuracy by group."""
        yield f"{node}: {self._metric}, {self._answer} against {self._expected}"
        yield from accuracy_lines(directory, self._by, *(field.name for field in self._fields))

    def _grade(self, answer: str, expected: Sequence[str]) -> tuple[bool, float]:
        """Return whether `answer` is right, and its F1 (any number by other metrics). Raises ValueError if `expected`
        cannot be read."""
        wanted = [(metric, [metric.read(text) for text in expected]) for metric in self._metrics]
        if not answer.strip():
            return False, 0.0
        scores = [max(metric.score(each, answer) for each in read) for metric, read in wanted]
        return scores[0] == 1, scores[-1]


def _texts(value: Any, options: Sequence[str] | None) -> list[str]:
    """Return the expected answers of a row as texts, each of them one of `options` if there are any. Raises ValueError
    if there is none."""
    each_value = value if isinstance(value, list) else [value]
    values = [each for each in each_value if each is not None and str(each).strip()]
    if not values:
        raise ValueError("has no expected answer: it is null or empty")
    if options is None:
        return [text for each in values for text in _written(each)]
    return [_option(each, options) for each in values]


def _written(value: Any) -> list[str]:
    """Return how a text may say `value`: a boolean as JSON or Python, a whole number with and without `.0`, which a
    column gets that has nulls or other numbers, too."""
    if isinstance(value, bool):
        return [str(value).lower(), str(value)]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return [str(int(value)), str(value)]
    return [value if isinstance(value, str) else record_json(value)]


def _option(value: Any, options: Sequence[str]) -> str:
    """Return the option that `value` means: its text, a letter, or its place, a whole number from 0."""
    place = int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0 else None
    if isinstance(value, str):
        if value in options:
            return value
        place = string.ascii_uppercase.find(value) if len(value) == 1 else None
    if place is None or not 0 <= place < len(options):
        raise ValueError(f"has {value!r}: no option, no letter and no place (from 0) of one of {len(options)}")
    return options[place]
