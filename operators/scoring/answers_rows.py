"""AnswersRows: the base of operators that add what a model, or a server, finds for the texts of each row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import Any, ClassVar

import pyarrow as pa

from operators.rows.row_condition import Where
from operators.scoring.stored_answers import Answer, StoredAnswers
from operators.settings import StoreSettings
from pipeline.api import Batch, Operator, Output, add_columns


class AnswersRows(Operator):
    """Base of operators that compute columns from texts. Equal texts of a batch are read once, and what is found for
    them is kept in the completion store.

    Args:
        columns: those with the texts.
        store: the config group of that name.
        where: rows to read; see Where.
    """

    kind: ClassVar[str] = "<f4"
    """The type of the numbers in answers, of NumPy."""
    _stored: StoredAnswers
    _fields: list[pa.Field]
    """The new columns."""

    def __init__(self, columns: Seq[str], store: StoreSettings | None, where: str | None = None) -> None:
        self._columns = columns
        self._store = store or StoreSettings()
        self._where = Where(where)

    @abstractmethod
    def _check(self, schema: pa.Schema) -> None:
        """Check the columns to read and, before loading, the model."""

    @abstractmethod
    def _texts(self, data: pa.RecordBatch) -> Seq[Any | str]:
        """Return what there is to read of each row, or the reason why it cannot be read."""

    @abstractmethod
    def _key(self, text: Any) -> bytes:
        """Return the key in the store of what `_texts` found for a row."""

    @abstractmethod
    def _read_new(self, texts: Mapping[bytes, Any]) -> Mapping[bytes, Answer | str]:
        """Return the answer to each of `texts`, which are not in the store, or why there is none. Stores answers."""

    @abstractmethod
    def _arrays(self, texts: Seq[Any], answers: Seq[Answer]) -> list[pa.Array]:
        """Return the new columns."""

    @abstractmethod
    def _told(self, rows: pa.RecordBatch) -> Iterable[tuple[int, str]]:
        """Return what is told of rows that have what may be read as control tokens."""

    def _unread(self, data: pa.RecordBatch) -> Mapping[int, str]:
        """Return by its index why a row is not even looked at."""
        return {}

    def plan(self, schema: pa.Schema) -> pa.Schema:
        self._check(schema)
        self._where.plan(schema)
        self._schema = add_columns(schema, *self._fields)
        return self._schema

    def process(self, batch: Batch) -> Iterable[Output]:
        batch, beside = self._where.chosen(batch, batch.data.schema.names, self._schema)
        yield from beside
        if unread := self._unread(batch.data):
            yield batch.reject(list(unread), list(unread.values()))
            others = [i for i in range(batch.num_rows) if i not in unread]
            batch = batch.with_data(batch.data.take(pa.array(others, pa.int64())))
        if not batch.num_rows:
            return
        found: dict[int, Any] = dict(enumerate(self._texts(batch.data)))
        read = {i: text for i, text in found.items() if not isinstance(text, str)}
        found |= dict(zip(read, self._answered(list(read.values())), strict=True))
        refused = {i: why for i, why in found.items() if isinstance(why, str)}
        if refused:
            yield batch.reject(list(refused), list(refused.values()))
        kept = [i for i in found if i not in refused]
        if kept:
            rows = batch.data.take(pa.array(kept, pa.int64()))
            columns = [*rows.columns, *self._arrays([read[i] for i in kept], [found[i] for i in kept])]
            yield batch.with_data(pa.record_batch(columns, schema=self._schema), told=self._told(rows))

    def _answered(self, texts: Seq[Any]) -> list[Answer | str]:
        """Return the answer to each of `texts`, from the store or read now, or why there is none."""
        keys = [self._key(text) for text in texts]
        found: dict[bytes, Answer | str] = dict(self._stored.find(keys))
        if new := {key: text for key, text in zip(keys, texts, strict=True) if key not in found}:
            found |= self._read_new(new)
        return [found[key] for key in keys]
