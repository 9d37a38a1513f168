"""RemoteStore: the store of the driver, for a worker of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from operators.generation.journal import Journal, StoredCompletion
from operators.generation.store import CompletionStore, encoded
from pipeline.api.errors import PipelineError
from pipeline.api.runtime import Services


class RemoteStore(Journal):
    """Keeps completions in the store of the driver. A completion is written there before `write` returns, so it is as
    durable as one of a run without a cluster; but it is sent later, and encoded here, since the driver serves many.

    Args:
        services: the way to the driver.
        path, sync: of the store; see CompletionStore.
    """

    flush_s = 2.0
    flush_rows = 256

    def __init__(self, services: Services, path: Path, sync: str) -> None:
        super().__init__()
        self._services = services
        self._key = ("store", str(path))
        self._make = partial(_opened, str(path), sync)
        self.settings = self._call("known_settings")
        self._thread.start()

    def read(self, keys: Sequence[bytes]) -> dict[bytes, StoredCompletion]:
        completions: dict[bytes, StoredCompletion] = self._call("read", list(keys))
        return completions

    def write(self, completions: Mapping[bytes, StoredCompletion], settings: set[bytes]) -> None:
        self._call("insert", *encoded(completions), settings)

    def count(self, run: str) -> int:
        return int(self._call("count", run))

    def explained(self, error: Exception) -> PipelineError:
        return error if isinstance(error, PipelineError) else PipelineError(f"{type(error).__name__}: {error}")

    def _call(self, method: str, *args: object) -> Any:
        return self._services.call(self._key, self._make, method, *args)


def _opened(path: str, sync: str) -> CompletionStore:
    """Return the store in `path`, text since that is what is sent with each call."""
    return CompletionStore(Path(path), sync)
