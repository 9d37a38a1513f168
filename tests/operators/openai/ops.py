"""An operator that has a run fail once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from pipeline.api.protocols import BaseOperator
from pipeline.api.records import Batch, Output


class FailOnce(BaseOperator):
    """Raises at source row `at` while the file `flag` exists, and removes that."""

    def __init__(self, at: int, flag: str) -> None:
        self.at, self.flag = at, Path(flag)

    def plan(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def process(self, batch: Batch) -> Iterable[Output]:
        if self.at in batch.data.column("row").to_pylist() and self.flag.exists():
            self.flag.unlink()
            raise RuntimeError("as the test wants it")
        yield batch
