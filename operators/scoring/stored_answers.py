"""StoredAnswers: the numbers that a model or a server found for rows, in the completion store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.generation.journal import StoredCompletion
from operators.generation.store_lookup import CompletionKeys, LookupCounts
from operators.generation.wiring import shared_store
from operators.settings import StoreSettings
from pipeline.api.protocols import Runtime

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
            digest, known = self._keys.settings(b""), self._store.settings
            self._missed = "missed_new" if digest in known or not known else "missed_settings"
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
