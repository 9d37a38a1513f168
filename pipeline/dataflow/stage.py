"""Stage: a node while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.api.errors import PipelineError
from pipeline.api.meter import RowCounts, StageMeter
from pipeline.dataflow.graph import REJECT_WRITER, Node
from pipeline.dataflow.inbox import Inbox
from pipeline.dataflow.outbox import Outbox


class AccountingError(PipelineError):
    """rows_in + expanded differs from rows_out + rejected at a node: rows were lost or made up."""


@dataclass
class Stage:
    """A node while it runs. `complete`: it has read all its input and ended by itself."""

    name: str
    node: Node
    meter: StageMeter
    inbox: Inbox
    outbox: Outbox
    complete: bool = False

    def check_counts(self, committed: RowCounts) -> None:
        """Check all rows that the node was given, or, where it was left early, those of the `committed` chunks.

        Raises:
            AccountingError: the node has lost rows, or made some up.
        """
        # The reject writer may have got rejects of a chunk that never ended, from nodes that were let go in it.
        m = self.meter if self.complete and self.name != REJECT_WRITER else committed
        if self.outbox.counted and m.rows_in + m.expanded != m.rows_out + m.rejected:
            raise AccountingError(
                f"node '{self.name}': {m.rows_in} rows in + {m.expanded} expanded"
                f" are not {m.rows_out} rows out + {m.rejected} rejected"
            )
