"""Target: count the rows that reach the sink and end the run when there are enough."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from pipeline.api.errors import ConfigError, GraphError
from pipeline.api.protocols import BaseOperator, Inbox, Runtime, overrides
from pipeline.api.records import Batch, ChunkEnd, Item, RejectKind, Rejects
from pipeline.dataflow.graph import Graph, Node
from pipeline.dataflow.rounds import Rounds
from pipeline.dataflow.target_progress import TargetProgress
from pipeline.settings import TargetSettings
from pipeline.system.atomic_files import sorted_by_identity

NODE = "target"


class Target(BaseOperator):
    """Passes the first `accepted_rows` rows, in the order of (row, lineage), and filters out all others.

    It decides at each chunk's end. The run ends with the chunk in which the target is reached, or after which the time
    or token budget is spent. Its counts are committed with each chunk.

    Args:
        progress: of the run; the node updates it.
    """

    def __init__(self, progress: TargetProgress) -> None:
        self._progress = progress

    def plan(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def open(self, runtime: Runtime) -> None:
        """Log the number of rows accepted so far."""
        self._runtime = runtime
        runtime.log.info("%d of %d rows are accepted", self._progress.accepted, self._progress.wanted)

    def restore(self, states: Iterable[bytes]) -> None:
        (state,) = states
        self._progress.resume(**json.loads(state))

    def state(self, chunk: int) -> bytes:
        """Return accepted rows, and the tokens and seconds spent."""
        now = self._progress
        return json.dumps({"accepted": now.accepted, "tokens": now.tokens, "seconds": now.seconds}).encode()

    def run(self, inbox: Inbox) -> Iterator[Item]:
        """Hold rows until their chunk ends, then pass on as many as are still needed.

        The end of the input ends the run: otherwise, if a node upstream of this one has left (as Limit does), the
        source would go on for the other sinks alone until a budget is spent.
        """
        last = -1
        held: dict[int, list[Batch]] = {}
        for item in inbox:
            if isinstance(item, Batch):
                self._progress.arrived += item.num_rows
                held.setdefault(item.chunk, []).append(item)
            elif isinstance(item, ChunkEnd):
                last = item.chunk
                yield from self._first(held.pop(last, []))
                if self._progress.check():
                    self._runtime.enough(last)
                yield item
        self._runtime.enough(last)

    def _first(self, batches: list[Batch]) -> Iterator[Batch | Rejects]:
        """Yield the first rows of a chunk, as many as are needed, and the others as rejects."""
        rows = sum(batch.num_rows for batch in batches)
        kept = min(rows, self._progress.wanted - self._progress.accepted)
        self._progress.accepted += kept
        if kept == rows:
            yield from batches
            return
        table = sorted_by_identity(pa.Table.from_batches([batch.data for batch in batches]))
        (data,) = table.combine_chunks().to_batches()
        whole = batches[0].with_data(data)
        if kept:
            yield whole.with_data(data.slice(0, kept))
        reason = f"target of {self._progress.wanted} rows was reached"
        yield whole.reject(range(kept, rows), reason, RejectKind.FILTERED)


def with_target(nodes: Mapping[str, Node], settings: TargetSettings, chunk_rows: int) -> Graph:
    """Return the graph of `nodes` with its source wrapped in Rounds and a node `target` inserted before the sink.

    Raises:
        ConfigError: there are several sinks and none is chosen, or the chosen one does not exist.
        GraphError: the source cannot seek, the sink has several inputs, or a node is named `target` already.
    """
    progress = TargetProgress(settings)
    sink, source = _sink(nodes, settings.sink), next(name for name, node in nodes.items() if not node.inputs)
    if NODE in nodes:
        raise GraphError(NODE, f"has the name of the node that target.accepted_rows={progress.wanted} adds; rename it")
    if len(nodes[sink].inputs) != 1:
        raise GraphError(sink, "has several inputs, and a target needs a sink with one; put a Union before it")
    op = nodes[source].op
    if not overrides(op, "seek"):
        raise GraphError(source, f"{type(op).__name__} has no seek(chunk), so it cannot be read round after round")
    found = dict(nodes)
    found[source] = replace(nodes[source], op=Rounds(op, progress, chunk_rows))
    del found[sink]
    found[NODE] = Node(Target(progress), nodes[sink].inputs, nodes[sink].capacity_rows)
    found[sink] = replace(nodes[sink], inputs=(NODE,))
    return Graph(found, progress)


def _sink(nodes: Mapping[str, Node], named: str | None) -> str:
    read = {source for node in nodes.values() for source in node.inputs}
    sinks = [name for name in nodes if name not in read]
    if named is None and len(sinks) > 1:
        raise ConfigError(f"the graph has the sinks {', '.join(sinks)}; say whose rows count: target.sink={sinks[0]}")
    if named is not None and named not in sinks:
        raise ConfigError(f"target.sink={named} is no sink; the graph has {', '.join(sinks)}")
    return named or sinks[0]
