"""Target: counts the rows that reach the sink and says when there are enough; and where it stands in a graph."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from pipeline.api.errors import ConfigError, GraphError
from pipeline.api.protocols import BaseOperator, Inbox, Runtime, overrides
from pipeline.api.records import LINEAGE, ROW, Batch, ChunkEnd, Item, Output, RejectKind, Shard
from pipeline.dataflow.goal import Goal, Spent
from pipeline.dataflow.graph import Graph, Node
from pipeline.dataflow.rounds import Rounds
from pipeline.settings import TargetSettings

NODE = "target"


class Target(BaseOperator):
    """Lets the first rows pass that `goal` wants, in the order of (row, lineage), and filters all others.

    It decides when a chunk ends. With the chunk in which the last row is found the run has enough; the same when time
    or tokens are spent. What it remembers is committed with the chunk.

    Args:
        goal: what the run is for.
    """

    def __init__(self, goal: Goal) -> None:
        self._goal = goal
        self._open: dict[int, list[Batch]] = {}

    def plan(self, schema: pa.Schema) -> pa.Schema:
        """Leaves the columns as they are."""
        return schema

    def open(self, runtime: Runtime) -> None:
        """Say how much is there already."""
        self._runtime = runtime
        runtime.log.info("%d of %d rows are accepted", self._goal.accepted, self._goal.wanted)

    def restore(self, states: Iterable[bytes]) -> None:
        """Go on counting."""
        (state,) = states
        self._goal.go_on_from(Spent(**json.loads(state)))

    def state(self, chunk: int) -> bytes:
        """How many rows have passed, and what they have cost."""
        return json.dumps(self._goal.as_values()).encode()

    def run(self, inbox: Inbox) -> Iterator[Item | Shard]:
        """As an Operator. When its input has ended, no further chunk is of any use: the source has ended, or a node
        before this one has left, and then the source would go round for the other sinks alone until a budget is
        spent."""
        last = -1
        for item in super().run(inbox):
            yield item
            last = item.chunk if isinstance(item, ChunkEnd) else last
        self._runtime.enough(last)

    def process(self, batch: Batch) -> Iterable[Output]:
        """Keep the rows until their chunk ends."""
        self._goal.arrived += batch.num_rows
        self._open.setdefault(batch.chunk, []).append(batch)
        return ()

    def finish(self, chunk: int) -> Iterable[Output]:
        """Pass on as many rows as are wanted."""
        batches, goal = self._open.pop(chunk, []), self._goal
        wanted = goal.wanted - goal.accepted
        rows = sum(batch.num_rows for batch in batches)
        goal.accepted += min(rows, wanted)
        yield from batches if rows <= wanted else self._first(batches, wanted)
        if goal.over:
            self._runtime.enough(chunk)

    def _first(self, batches: list[Batch], wanted: int) -> Iterator[Output]:
        """The first rows of `batches`; the others as rejects."""
        order = sorted(identity for n, batch in enumerate(batches) for identity in _identities(batch, n))
        kept = {(n, i) for *_, n, i in order[:wanted]}
        for n, batch in enumerate(batches):
            surplus = [i for i in range(batch.num_rows) if (n, i) not in kept]
            if surplus:
                reason = f"target of {self._goal.wanted} rows was reached"
                yield batch.reject(surplus, reason, RejectKind.FILTERED)
            if len(surplus) < batch.num_rows:
                mine = [i for i in range(batch.num_rows) if (n, i) in kept]
                yield batch.with_data(batch.data.take(pa.array(mine, pa.int64())))


def aimed(nodes: Mapping[str, Node], settings: TargetSettings, chunk_rows: int) -> Graph:
    """The graph of `nodes` under a target: its source goes round, and the node `target` stands before its sink.

    Raises:
        ConfigError: which sink is meant is not clear.
        GraphError: the source cannot seek, the sink has several inputs, or a node is called `target` already.
    """
    goal = Goal(settings)
    sink, source = _sink(nodes, settings.sink), next(name for name, node in nodes.items() if not node.inputs)
    if NODE in nodes:
        raise GraphError(NODE, f"has the name of the node that target.accepted_rows={goal.wanted} adds; rename it")
    if len(nodes[sink].inputs) != 1:
        raise GraphError(sink, "has several inputs, and a target needs a sink with one; put a Union before it")
    op = nodes[source].op
    if not overrides(op, "seek"):
        raise GraphError(source, f"{type(op).__name__} has no seek(chunk), so it cannot be read round after round")
    found = dict(nodes)
    found[source] = replace(nodes[source], op=Rounds(op, goal, chunk_rows))
    del found[sink]
    found[NODE] = Node(Target(goal), nodes[sink].inputs, nodes[sink].capacity_rows)
    found[sink] = replace(nodes[sink], inputs=(NODE,))
    return Graph(found, goal)


def _sink(nodes: Mapping[str, Node], named: str | None) -> str:
    read = {source for node in nodes.values() for source in node.inputs}
    sinks = [name for name in nodes if name not in read]
    if named is None and len(sinks) > 1:
        raise ConfigError(f"the graph has the sinks {', '.join(sinks)}; say whose rows count: target.sink={sinks[0]}")
    if named is not None and named not in sinks:
        raise ConfigError(f"target.sink={named} is no sink; the graph has {', '.join(sinks)}")
    return named or sinks[0]


def _identities(batch: Batch, number: int) -> Iterator[tuple[int, list[int], int, int]]:
    """(row, lineage, number, place in the batch) of each row."""
    data = batch.data
    lineage = data.column(LINEAGE.name).to_pylist() if LINEAGE.name in data.schema.names else [None] * batch.num_rows
    for i, (row, line) in enumerate(zip(data.column(ROW.name).to_pylist(), lineage, strict=True)):
        yield row, line or [], number, i
