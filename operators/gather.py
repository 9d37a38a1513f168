"""Gather and Pairs: the samples of a prompt in one row, and the better and the worse of them as training data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from operators.prompts.messages import NoPrompt, conversation, holds_messages
from operators.rows.batches import WholeChunks
from operators.rows.lineage import refuse_identity, require_samples, samples
from operators.settings.checks import check, check_one_of
from pipeline.api import LINEAGE, Batch, Operator, Output, RejectKind, add_columns, require_column
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import python_values

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
LAST_ROLES = ("user", "assistant", "tool")
"""Roles of the last message of a prompt that TRL can continue."""
OTHER_TYPES = ("messages", "completion", "label")
"""Columns by which TRL takes a data set for one of another type than preferences (trl/data_utils.py)."""


def _is_number(kind: pa.DataType) -> bool:
    return any(fits(kind) for fits in (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean))


class Gather(WholeChunks):
    """Puts the samples or branches of a row back into one row: rows that differ in nothing but the last number of their
    `lineage` (as `sampling.n`, Explode and Union make them) become one row.

    In `columns` it has lists, in the order of that last number; samples that were rejected before are missing from
    them. The last number leaves the lineage, which is null where none is left. Rows are merged when their chunk ends.

    All other columns must be equal in the samples. Where one differs, each of the samples becomes a reject that names
    the columns: gather them too, or take them out before (Select).

    Args:
        columns: columns that become lists.

    Raises:
        ConfigError: no column is given, or one twice, or `row` or `lineage`.

    Example:
        answers:
          inputs: generate
          op:
            _target_: operators.gather.Gather
            columns: [completion, finish_reason, completion_token_count, seed]
    """

    def __init__(self, columns: list[str]) -> None:
        check(0 < len(columns) == len(set(columns)), "columns", columns, "name one or more, each once")
        refuse_identity(columns, "gathered; name other columns")
        super().__init__()
        self._columns = columns

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_samples(schema, "gather")
        for name in self._columns:
            require_column(schema, name)
        self._schema = pa.schema(pa.field(f.name, pa.list_(f.type)) if f.name in self._columns else f for f in schema)
        return self._schema

    def decide(self, batch: Batch) -> Iterable[Output]:
        groups = samples(batch.data)
        differing = self._differing(batch.data, list(groups.values()))
        bad = {i: names for group, names in zip(groups.values(), differing, strict=True) if names for i in group}
        if bad:
            reasons = [
                f"its samples differ in {', '.join(names)}; gather that too, or take it out before with Select (drop)"
                for names in bad.values()
            ]
            yield batch.reject(list(bad), reasons)
        mergeable = {key: group for (key, group), names in zip(groups.items(), differing, strict=True) if not names}
        if mergeable:
            data = self._merged(batch.data, mergeable)
            yield batch.with_data(data, expanded=len(mergeable) - sum(map(len, mergeable.values())))

    def _differing(self, data: pa.RecordBatch, groups: Sequence[Sequence[int]]) -> list[list[str]]:
        """Return for each of `groups` the columns, of those that are not gathered, in which its rows differ."""
        first = np.zeros(data.num_rows, np.int64)
        for group in groups:
            first[group] = group[0]
        differing: list[list[str]] = [[] for _ in groups]
        for name in data.schema.names:
            if name in (*self._columns, LINEAGE.name):
                continue
            column = data.column(name)
            if not column.equals(column.take(pa.array(first))):
                for group, names in zip(groups, differing, strict=True):
                    if any(_differ(column, group[0], i) for i in group[1:]):
                        names.append(name)
        return differing

    def _merged(self, data: pa.RecordBatch, groups: dict[tuple[int, tuple[int, ...]], list[int]]) -> pa.RecordBatch:
        offsets = pa.array(np.cumsum([0, *map(len, groups.values())]), pa.int32())
        each = pa.array([i for group in groups.values() for i in group], pa.int64())
        first = pa.array([group[0] for group in groups.values()], pa.int64())
        lists = {
            name: pa.ListArray.from_arrays(offsets, data.column(name).take(each), type=self._schema.field(name).type)
            for name in self._columns
        }
        lists[LINEAGE.name] = pa.array([list(lineage) or None for _, lineage in groups], LINEAGE.type)
        columns = [lists[name] if name in lists else data.column(name).take(first) for name in self._schema.names]
        return pa.record_batch(columns, schema=self._schema)


def _differ(column: pa.Array, i: int, j: int) -> bool:
    """Compare two values of a column; NaN equals NaN."""
    a, b = column.slice(i, 1), column.slice(j, 1)
    if a.equals(b):
        return False
    return repr(python_values(a)) != repr(python_values(b))


class Pairs(Operator):
    """Makes preference pairs for training (DPO) of texts and their scores: the text with the highest score is chosen,
    the one with the lowest is rejected.

    Of equal scores the text that stands first counts, for both. A text or a score that is null does not take part, nor
    does NaN; true is 1 and false 0. A row with fewer than two texts that have a score, with equal scores or texts only,
    or with a difference below `margin` has no pair and becomes a reject of kind `filtered`; one whose lists differ in
    length, or without a prompt that can be answered, becomes an error.

    `prompt`, `chosen`, `rejected`, `score_chosen` and `score_rejected` (double) take the place of the columns that they
    are made of, as the last columns; the others stay (with `trl` none may be `messages`, `completion` or `label`).

    Args:
        texts: a column of lists of texts, as Gather makes it, or two or more columns of texts.
        scores: their scores, numbers or booleans: a column of lists, or as many columns as there are texts.
        prompt: a column of texts, or (for `trl`) of messages {role, content}.
        margin: least difference of the two scores.
        format: trl (TRL's conversational preference format: `prompt`, `chosen` and `rejected` are lists of {role,
            content}, a prompt that is a text being a message of the user) or text (all three are texts).

    Raises:
        ConfigError: `texts` and `scores` name different numbers of columns, or a single one in a list.

    Example:
        pairs:
          inputs: answers
          op:
            _target_: operators.gather.Pairs
            texts: completion
            scores: judge_score
            prompt: prompt
    """

    def __init__(
        self,
        texts: str | list[str],
        scores: str | list[str],
        prompt: str = "prompt",
        margin: float = 0.0,
        format: str = "trl",
    ) -> None:
        self._texts, self._scores = _Columns(texts), _Columns(scores)
        counts = [len(names) for names in (texts, scores) if not isinstance(names, str)]
        if len(set(counts)) > 1 or any(count < 2 for count in counts):
            raise ConfigError(
                f"texts={texts!r} and scores={scores!r} do not belong together; name a column of lists for each"
                " (as Gather makes them), or two or more columns of texts and as many of scores"
            )
        refuse_identity([*self._texts.names, *self._scores.names, prompt], "in a pair")
        check_one_of("format", format, ("trl", "text"))
        check(margin >= 0, "margin", margin, "it is 0 or more")
        self._prompt = prompt
        self._margin = margin
        self._as_messages = format == "trl"

    def plan(self, schema: pa.Schema) -> pa.Schema:
        self._texts.require(schema, pa.types.is_string, "texts")
        self._scores.require(schema, _is_number, "numbers or booleans (Map: good: verdict = 'yes')")
        kind = require_column(schema, self._prompt).type
        if kind != pa.string() and not (self._as_messages and holds_messages(kind)):
            wanted = " or messages, list<struct<role: string, content: string>>" if self._as_messages else ""
            raise SchemaError(f"column '{self._prompt}' has type {kind}; a prompt is a text{wanted}")
        made_of = {*self._texts.names, *self._scores.names, self._prompt}
        self._others = [name for name in schema.names if name not in made_of]
        others = pa.schema([schema.field(name) for name in self._others])
        if self._as_messages and (taken := [name for name in OTHER_TYPES if name in self._others]):
            raise SchemaError(
                f"a column '{taken[0]}' beside prompt, chosen and rejected is not what TRL takes for pairs; take it out"
                f" with Select before this node (drop: [{taken[0]}])"
            )
        text = MESSAGES if self._as_messages else pa.string()
        self._new_fields = [
            *(pa.field(name, text) for name in ("prompt", "chosen", "rejected")),
            *(pa.field(name, pa.float64()) for name in ("score_chosen", "score_rejected")),
        ]
        self._schema = add_columns(others, *self._new_fields)
        return self._schema

    def process(self, batch: Batch) -> Iterable[Output]:
        pairs: dict[int, tuple[Any, ...]] = {}
        failed: dict[int, _NoPair] = {}
        prompts = python_values(batch.data.column(self._prompt))
        for i, (prompt, texts, scores) in enumerate(
            zip(prompts, self._texts.lists(batch.data), self._scores.lists(batch.data), strict=True)
        ):
            try:
                pairs[i] = self._pair(prompt, texts or (), scores or ())
            except _NoPair as error:
                failed[i] = error
        for kind in RejectKind:
            if which := [i for i, error in failed.items() if error.kind is kind]:
                yield batch.reject(which, [str(failed[i]) for i in which], kind)
        if pairs or not failed:
            others = batch.data.select(self._others).take(pa.array(list(pairs), pa.int64()))
            arrays = [pa.array([p[i] for p in pairs.values()], f.type) for i, f in enumerate(self._new_fields)]
            yield batch.with_data(pa.record_batch([*others.columns, *arrays], schema=self._schema))

    def _pair(self, prompt: Any, texts: Sequence[str | None], scores: Sequence[float | None]) -> tuple[Any, ...]:
        """Return the values of the new columns of a row. Raises _NoPair."""
        if len(texts) != len(scores):
            why = f"{self._texts} has {len(texts)} texts and {self._scores} {len(scores)} scores"
            raise _NoPair(why, RejectKind.ERROR)
        scored = [
            (float(score), text)
            for text, score in zip(texts, scores, strict=True)
            if text is not None and score is not None and not math.isnan(score)
        ]
        if len(scored) < 2:
            raise _NoPair("fewer than two texts have a score")
        (high, chosen), (low, rejected) = max(scored, key=itemgetter(0)), min(scored, key=itemgetter(0))
        if high == low:
            raise _NoPair("all scores are equal")
        if chosen == rejected:
            raise _NoPair("the texts with the highest and the lowest score are equal")
        if high - low < self._margin:
            raise _NoPair(f"the scores lie less than margin={self._margin:g} apart")
        if not self._as_messages:
            return _text(prompt, self._prompt), chosen, rejected, high, low
        answers = [[{"role": "assistant", "content": text}] for text in (chosen, rejected)]
        return _messages(prompt, self._prompt), *answers, high, low


class _NoPair(ValueError):
    """A row has no pair; the message says why."""

    def __init__(self, reason: str, kind: RejectKind = RejectKind.FILTERED) -> None:
        super().__init__(reason)
        self.kind = kind


class _Columns:
    """Several values of a row: a column of lists, or several columns."""

    def __init__(self, names: str | list[str]) -> None:
        self._in_lists = isinstance(names, str)
        self.names = [names] if isinstance(names, str) else names

    def __str__(self) -> str:
        return ", ".join(self.names)

    def require(self, schema: pa.Schema, fits: Callable[[pa.DataType], bool], contents: str) -> None:
        """Raise SchemaError for a column that is missing or holds anything else than `contents`."""
        for name in self.names:
            kind = require_column(schema, name).type
            inner = kind.value_type if self._in_lists and pa.types.is_list(kind) else None if self._in_lists else kind
            if inner is None or not fits(inner):
                wanted = f"lists of {contents}: put Gather before this node" if self._in_lists else contents
                raise SchemaError(f"column '{name}' has type {kind}; it must hold {wanted}")

    def lists(self, data: pa.RecordBatch) -> list[Sequence[Any] | None]:
        """Return the values of each row; None for a null."""
        columns = [data.column(name).to_pylist() for name in self.names]
        return columns[0] if self._in_lists else list(zip(*columns, strict=True))


def _text(prompt: str | None, column: str) -> str:
    if prompt is None:
        raise _NoPair(f"the prompt, column {column}, is null", RejectKind.ERROR)
    return prompt


def _messages(prompt: Any, column: str) -> list[dict[str, str]]:
    """Return a prompt as messages, the last of them by one of LAST_ROLES. Raises _NoPair."""
    if isinstance(prompt, str | None):
        return [{"role": "user", "content": _text(prompt, column)}]
    try:
        messages = conversation(prompt, column)
    except NoPrompt as error:
        raise _NoPair(str(error), RejectKind.ERROR) from error
    if any("content" not in message for message in messages) or messages[-1]["role"] not in LAST_ROLES:
        why = f"the messages of {column} end with one that is not by {' or '.join(LAST_ROLES)}, or one has no text"
        raise _NoPair(why, RejectKind.ERROR)
    return [{"role": message["role"], "content": message["content"]} for message in messages]
