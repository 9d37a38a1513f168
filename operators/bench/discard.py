"""Discard: a sink that drops its rows, to measure a dataflow without its files."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from operators.settings import OutputSettings
from pipeline.protocols import BaseOperator
from pipeline.records import ROW, Batch, Output, require_column


class Discard(BaseOperator):
    """Takes the place of WriteRows and writes nothing.

    Args:
        output: taken as WriteRows takes it, and not looked at.
    """

    def __init__(self, output: OutputSettings) -> None:
        self._output = output

    def plan(self, schema: pa.Schema) -> None:
        """A sink."""
        require_column(schema, ROW.name, [ROW.type])

    def process(self, batch: Batch) -> Iterable[Output]:
        """Drop the rows."""
        return ()
