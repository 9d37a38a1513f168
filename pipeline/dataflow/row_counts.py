"""No row is lost or made up: for every node rows_in + expanded = rows_out + rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.api.errors import PipelineError
from pipeline.api.meter import RowCounts
from pipeline.dataflow.graph import REJECT_WRITER
from pipeline.dataflow.stage import Stage


class AccountingError(PipelineError):
    """rows_in + expanded differs from rows_out + rejected at a node: rows were lost or made up."""


class RowLaw:
    """Keeps the accounts of the nodes that run.

    Args:
        stages: all of them.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages
        self._committed: dict[str, RowCounts] = {}

    def take(self, chunk: int) -> Mapping[str, RowCounts]:
        """What became of the rows of a chunk that is being committed, by node; but for nodes that left before its
        end."""
        found = {}
        for stage in self._stages:
            counts = stage.meter.take_chunk(chunk)
            if stage.outbox.has_ended(chunk):
                found[stage.name] = counts
                self._committed.setdefault(stage.name, RowCounts()).add(counts)
        found.pop(REJECT_WRITER, None)
        return found

    def check(self) -> None:
        """Over all rows that a node was given, or, where it was left early, over those of the committed chunks.

        Raises:
            AccountingError: a node has lost rows, or made some up.
        """
        for stage in self._stages:
            # The reject writer may have got rejects of a chunk that never ended, from nodes that were let go in it.
            whole = stage.complete and stage.name != REJECT_WRITER
            m = stage.meter if whole else self._committed.get(stage.name, RowCounts())
            if stage.outbox.counted and m.rows_in + m.expanded != m.rows_out + m.rejected:
                raise AccountingError(
                    f"node '{stage.name}': {m.rows_in} rows in + {m.expanded} expanded"
                    f" are not {m.rows_out} rows out + {m.rejected} rejected"
                )
