"""Cut a graph: segments of nodes that workers run, and the driver's graph, in which one node stands for each segment.

A segment is a chain of nodes whose rows do not depend on each other (Scope.ROW, Scope.MODEL), at least one of them with
a model. Sources, sinks, and nodes that decide over several rows stay in the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline.api.errors import ConfigError
from pipeline.api.protocols import Scope
from pipeline.dataflow.graph import Graph
from pipeline.dataflow.kept_errors import KeptErrors


@dataclass(frozen=True)
class Segment:
    """A chain of nodes that workers run.

    Args:
        name: of the node that stands for it in the driver's graph.
        nodes: their names, first to last.
        schema: columns of the rows that go in.
        made: columns of the rows that come out.
        keepers: of all its nodes, if each of them keeps rows with errors; else none.
    """

    name: str
    nodes: tuple[str, ...]
    schema: pa.Schema = field(repr=False)
    made: pa.Schema = field(repr=False)
    keepers: tuple[KeptErrors, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class ClusterSize:
    """How many workers there are, and how much each is given. `piece_rows`: rows of a piece; `in_flight`: pieces."""

    workers: int
    piece_rows: int
    in_flight: int

    @property
    def rows_in_flight(self) -> int:
        """Rows that all workers and one more may have, so that none waits for the driver."""
        return (self.workers + 1) * self.in_flight * self.piece_rows


def segments_of(graph: Graph) -> tuple[Segment, ...]:
    """Return the segments of `graph`, in its order. Raises ConfigError if it has none."""
    segments: list[Segment] = []
    for chain in _chains(graph):
        if any(graph.nodes[name].op.scope is Scope.MODEL for name in chain):
            first, last = graph.nodes[chain[0]], chain[-1]
            schema, made = graph.schemas[first.inputs[0]], graph.schemas[last]
            assert schema is not None  # the node before is no sink
            assert made is not None  # nor is the last one
            keepers = tuple(graph.keepers[name] for name in chain if name in graph.keepers)
            all_keep = keepers if len(keepers) == len(chain) else ()
            segments.append(Segment(f"workers_{len(segments) + 1}", tuple(chain), schema, made, all_keep))
    if not segments:
        raise ConfigError("cluster: no node of this graph has a model that workers could share; leave cluster out")
    return tuple(segments)


def places(graph: Graph) -> Mapping[str, str]:
    """Return for each node where it runs, and why if that is the driver. Raises ConfigError as `segments_of` does."""
    inside = {name for segment in segments_of(graph) for name in segment.nodes}
    return {
        name: "in the workers" if name in inside else f"in the driver: {_reason(graph, name)}" for name in graph.order
    }


def _chains(graph: Graph) -> Iterator[list[str]]:
    """Yield the longest chains of nodes that workers may run: each node is the only reader of the one before it."""
    chain: list[str] = []
    moved: set[str] = set()
    for start in graph.order:
        name = start
        while name not in moved and _may_move(graph, name):
            moved.add(name)
            chain.append(name)
            readers = graph.readers(name)
            if len(readers) != 1 or len(graph.nodes[readers[0][0]].inputs) != 1:
                break
            name = readers[0][0]
        if chain:
            yield chain
            chain = []


def _may_move(graph: Graph, name: str) -> bool:
    return (
        len(graph.nodes[name].inputs) == 1 and name not in graph.sinks and graph.nodes[name].op.scope is not Scope.RUN
    )


def _reason(graph: Graph, name: str) -> str:
    """Return why a node stays in the driver."""
    if name == graph.source:
        return "it is the source"
    if name in graph.sinks:
        return "it writes files"
    if _may_move(graph, name):
        return "no node with a local model is beside it"
    return "it does not say that its rows are independent"
