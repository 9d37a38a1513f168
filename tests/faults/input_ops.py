"""Operators that do something to the input of their job while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.api.protocols import BaseOperator, Runtime
from pipeline.api.records import Batch, Output


class Meddles(BaseOperator):
    """Calls `act` on the file `path`: when the run is planned (`when`: plan), after its fingerprint (fingerprint), or
    at x = `when`. Does nothing once the file `done` exists.

    Args:
        act: unlink, append, or edit (a byte, with size and modification time as before).
    """

    def __init__(self, path: str, act: str, when: Any, done: str) -> None:
        self.path, self.act, self.when, self.done = Path(path), act, when, Path(done)

    def plan(self, schema: pa.Schema) -> pa.Schema:
        if self.when == "plan":
            self.meddle()
        return schema

    def fingerprint(self) -> dict[str, Any]:
        if self.when == "fingerprint":
            self.meddle()
        return {}

    def open(self, runtime: Runtime) -> None:
        """Nothing."""

    def process(self, batch: Batch) -> Iterable[Output]:
        if self.when in batch.data.column("x").to_pylist():
            self.meddle()
        yield batch

    def meddle(self) -> None:
        if self.done.exists():
            return
        self.done.touch()
        if self.act == "unlink":
            self.path.unlink()
        elif self.act == "append":
            with self.path.open("a") as file:
                file.write('{"x": 4711}\n')
