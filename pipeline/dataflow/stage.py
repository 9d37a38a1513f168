"""Stage: the runtime objects of a node, and the check of its row counts."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.api.errors import PipelineError
from pipeline.api.meter import RowCounts, StageMeter
from pipeline.dataflow.graph import REJECT_WRITER, Node
from pipeline.dataflow.inbox import Inbox
from pipeline.dataflow.outbox import Outbox


class AccountingError(PipelineError):
    """The row counts of a node do not balance: rows_in + expanded differs from rows_out + rejected."""


@dataclass
class Stage:
    """A running node. `complete`: it has read all its input and returned."""

    name: str
    node: Node
    meter: StageMeter
    inbox: Inbox
    outbox: Outbox
    complete: bool = False

    def check_counts(self, committed: RowCounts) -> None:
        """Check that the row counts balance: of all rows if the node ran to its end, else of the `committed` chunks.

        Raises:
            AccountingError: they do not.
        """
        # The reject writer may have rejects of a chunk that never ended, from nodes that were released during it.
        m = self.meter if self.complete and self.name != REJECT_WRITER else committed
        if self.outbox.counted and m.rows_in + m.expanded != m.rows_out + m.rejected:
            raise AccountingError(
                f"node '{self.name}': {m.rows_in} rows in + {m.expanded} expanded"
                f" are not {m.rows_out} rows out + {m.rejected} rejected"
            )
