"""AnswersRows: the base of operators that add what a model, or a server, finds for the texts of each row; and these
answers in the completion store."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.generation.journal import StoredCompletion
from operators.generation.store_lookup import CompletionKeys, LookupCounts
from operators.generation.wiring import shared_store
from operators.prompts.row_images import refuse_images, rows_with_images
from operators.rows.batches import set_apart
from operators.rows.sql import Where
from operators.settings import StoreSettings
from pipeline.api import Batch, Operator, Output, Runtime, add_columns

Answer = tuple[npt.NDArray[np.floating[Any]], ...]
"""Arrays of numbers, of the type of their operator."""


class StoredAnswers(LookupCounts):
    """Finds the answers of a node in the completion store, and keeps its new ones, bit for bit.

    Args:
        runtime: of the node.
        settings: of the store. Answers have no finish reason, so `retry` says nothing about them.
        kind: the type of the numbers, of NumPy: four bytes or eight.
        context: all that an answer depends on besides what a row asks.
    """

    def __init__(self, runtime: Runtime, settings: StoreSettings, kind: str, *context: object) -> None:
        self._store = shared_store(runtime, settings)
        self._keys = CompletionKeys(*context)
        self._kind, self._runtime = kind, runtime
        if self._store is not None:
            super().__init__(runtime)
            digest, stored = self._keys.settings(b""), self._store.settings
            self._missed = "missed_new" if digest in stored or not stored else "missed_settings"
            self._store.note_settings({digest})
            runtime.resource(("stored answers", runtime.node), lambda: self, StoredAnswers.say)

    def key(self, parts: Iterable[bytes]) -> bytes:
        """Return the key of a row that asks `parts`, in this order."""
        return self._keys.of(parts)

    def find(self, keys: Seq[bytes]) -> dict[bytes, Answer]:
        """Return the answers that are stored under `keys`, one for each row, by key."""
        if self._store is None:
            return {}
        stored = self._store.find(list(dict.fromkeys(keys)))
        is_own = {key: one.run == self._runtime.run_id for key, one in stored.items()}
        self._count(
            self._missed if key not in stored else "found_resumed" if is_own[key] else "found_earlier" for key in keys
        )
        return {key: self._decoded(one) for key, one in stored.items()}

    def keep(self, answers: Mapping[bytes, Answer]) -> None:
        """Store `answers` by key."""
        if self._store is not None:
            self._store.put({key: self._encoded(answer) for key, answer in answers.items()})

    def _encoded(self, answer: Answer) -> StoredCompletion:
        """Put the bytes of the numbers where a completion has its ids, and the lengths of the arrays into its text."""
        content = b"".join([numbers.astype(self._kind, copy=False).tobytes() for numbers in answer])
        lengths = ",".join(str(len(numbers)) for numbers in answer)
        return StoredCompletion(np.frombuffer(content, np.int32), lengths, "", run=self._runtime.run_id)

    def _decoded(self, stored: StoredCompletion) -> Answer:
        numbers = np.frombuffer(np.asarray(stored.ids, np.int32).tobytes(), self._kind)
        ends = np.cumsum([int(length) for length in stored.text.split(",")])
        return tuple(np.split(numbers, ends[:-1]))


class AnswersRows(Operator):
    """Base of operators that compute columns from texts. Equal texts of a batch are read once, and what is found for
    them is kept in the completion store.

    Args:
        columns: those with the texts.
        store: the config group of that name.
        where: a condition on the rows to read; see Where.
    """

    keeps_rows = True

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
        refuse_images(schema, self._columns, self.title)
        self._where.plan(schema)
        self._kept = schema.names
        self._schema = add_columns(schema, *self._fields)
        return self._schema

    def process(self, batch: Batch) -> Iterable[Output]:
        batch, beside = self._where.chosen(batch, self._kept, self._schema)
        yield from beside
        with_images = rows_with_images(batch.data, self._columns, self.title)
        rejects, batch = set_apart(batch, {**self._unread(batch.data), **with_images})
        yield from rejects
        if not batch.num_rows:
            return
        texts: dict[int, Any] = dict(enumerate(self._texts(batch.data)))
        readable = {i: text for i, text in texts.items() if not isinstance(text, str)}
        answers: dict[int, Any] = texts | dict(zip(readable, self._answered(list(readable.values())), strict=True))
        rejects, batch = set_apart(batch, {i: why for i, why in answers.items() if isinstance(why, str)})
        yield from rejects
        if batch.num_rows:
            kept = [i for i, answer in answers.items() if not isinstance(answer, str)]
            arrays = self._arrays([texts[i] for i in kept], [answers[i] for i in kept])
            told = self._told(batch.data)
            yield batch.with_data(pa.record_batch([*batch.data.columns, *arrays], schema=self._schema), told=told)

    def _answered(self, texts: Seq[Any]) -> list[Answer | str]:
        """Return the answer to each of `texts`, from the store or read now, or why there is none."""
        keys = [self._key(text) for text in texts]
        answers: dict[bytes, Answer | str] = dict(self._stored.find(keys))
        if new := {key: text for key, text in zip(keys, texts, strict=True) if key not in answers}:
            answers |= self._read_new(new)
        return [answers[key] for key in keys]
