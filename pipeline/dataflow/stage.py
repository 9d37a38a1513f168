"""Stage: a node while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.api.meter import StageMeter
from pipeline.dataflow.graph import Node
from pipeline.dataflow.inbox import Inbox
from pipeline.dataflow.outbox import Outbox


@dataclass
class Stage:
    """A node while it runs. `complete`: it has read all its input and ended by itself."""

    name: str
    node: Node
    meter: StageMeter
    inbox: Inbox
    outbox: Outbox
    is_sink: bool
    complete: bool = False
