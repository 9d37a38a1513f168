"""Journal: finished completions on their way to where they are kept, written by a thread."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from operators.engine.backend.interface import TokenIds
from operators.engine.sampling.logprobs import Scored
from pipeline.api.errors import PipelineError

FLUSH_ROWS = 64


@dataclass(frozen=True, slots=True)
class StoredCompletion:
    """A finished generation."""

    ids: Sequence[int] | TokenIds
    text: str
    finish_reason: str
    scores: Sequence[Scored] | None = None
    """Log-probabilities of the tokens, if they were asked for."""
    least: int = 0
    """The smallest max_tokens that does not cut the text."""
    run: str = ""
    """Name of the run that made it."""


class Journal(ABC):
    """Keeps completions by key. Safe to use from several threads.

    Completions are written by a thread of its own, at the latest after `flush_s` seconds and at once when there are
    `flush_rows`.
    """

    flush_s = 0.5
    flush_rows = FLUSH_ROWS
    settings: set[bytes]
    """Digests of the settings under which something was generated before."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._unsaved: dict[bytes, StoredCompletion] = {}
        self._writing: dict[bytes, StoredCompletion] = {}
        self._new_settings: set[bytes] = set()
        self._closing = False
        self._failure: PipelineError | None = None
        self._thread = threading.Thread(target=self._write_on, name="journal")

    @abstractmethod
    def write(self, completions: Mapping[bytes, StoredCompletion], settings: set[bytes]) -> None:
        """Write `completions` and digests of `settings`, durably; called by one thread at a time."""

    @abstractmethod
    def read(self, keys: Sequence[bytes]) -> dict[bytes, StoredCompletion]:
        """Return those of `keys` that are written."""

    @abstractmethod
    def count(self, run: str) -> int:
        """Return the number of completions that the run of this name has written."""

    @abstractmethod
    def explained(self, error: Exception) -> PipelineError:
        """Return the error to raise after `write` has raised `error`."""

    def find(self, keys: Sequence[bytes]) -> dict[bytes, StoredCompletion]:
        """Return the completions of those `keys` that are there, written or not."""
        with self._changed:
            self._raise_failure()
            fresh = self._writing | self._unsaved
        pending = {k: fresh[k] for k in keys if k in fresh}
        return self.read(keys) | pending

    def put(self, completions: Mapping[bytes, StoredCompletion]) -> None:
        """Keep `completions`. Raises PipelineError if earlier completions cannot be written."""
        with self._changed:
            self._raise_failure()
            pending = len(self._unsaved)
            self._unsaved.update(completions)
            if pending < self.flush_rows <= len(self._unsaved):
                self._changed.notify_all()

    def note_settings(self, digests: set[bytes]) -> None:
        """Store the digests of settings that rows are generated with."""
        with self._changed:
            self._new_settings |= digests

    def close(self) -> None:
        """Write what is pending. Raises PipelineError if it cannot be written."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._raise_failure()

    def _write_on(self) -> None:
        """Run the writer's thread."""
        try:
            while self._wait():
                self._write()
            self._write()
        except Exception as error:
            with self._changed:
                self._failure = self.explained(error)
                self._failure.__cause__ = error

    def _wait(self) -> bool:
        """Wait until enough completions are pending or time has passed. Return False when the store is being closed."""
        with self._changed:
            until = time.monotonic() + self.flush_s
            while not self._closing and len(self._unsaved) < self.flush_rows and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._closing

    def _write(self) -> None:
        with self._changed:
            self._writing, self._unsaved = self._unsaved, {}
            new_settings, self._new_settings = self._new_settings, set()
        if self._writing or new_settings:
            self.write(self._writing, new_settings)
        with self._changed:
            self._writing = {}

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
