"""Makes committed chunks again, each alone, and takes them only if they come out as they were."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pipeline.api.errors import PipelineError
from pipeline.api.protocols import Accumulating, Inbox, Runtime, Stateful, StreamOperator
from pipeline.api.records import ChunkEnd, Item, Shard
from pipeline.config.build import Job, build_graph
from pipeline.dataflow.executor import Executor, ExecutorSettings
from pipeline.dataflow.graph import Graph
from pipeline.dataflow.reject_writer import RejectTally, RejectWriter
from pipeline.dataflow.runtime import Resources, RunContext
from pipeline.monitor.run_log import run_log
from pipeline.run_dir.names import REJECTS
from pipeline.run_dir.state import RunState, ShardRecord
from pipeline.settings import JobSettings
from pipeline.system.atomic_files import publish
from pipeline.system.signals import stopped_by_signals

log = logging.getLogger(__name__)


class RemadeDiffers(PipelineError):
    """A chunk was made again and its files have other bytes than those that were committed."""


class Excerpt:
    """A source that gives only the chunks `first` to `last`, and leaves then."""

    def __init__(self, source: StreamOperator, first: int, last: int) -> None:
        self._source = source
        self._first = first
        self._last = last

    def plan(self, *inputs: pa.Schema) -> pa.Schema | None:
        """As the source."""
        return self._source.plan(*inputs)

    def open(self, runtime: Runtime) -> None:
        """As the source."""
        self._source.open(runtime)

    def run(self, inbox: Inbox) -> Iterator[Item | Shard]:
        """Seek if the source can, else pass over what comes before."""
        seek = getattr(self._source, "seek", None)
        if seek is not None:
            seek(self._first)
        for item in self._source.run(inbox):
            if item.chunk >= self._first:
                yield item
            if isinstance(item, ChunkEnd) and item.chunk == self._last:
                return

    def close(self) -> None:
        """As the source."""
        self._source.close()


def remake(job: Job, state: RunState, chunks: Sequence[int], process: Resources) -> None:
    """Make the files of `chunks` (ascending) again.

    Where operators keep state between chunks, it is there for the last chunk alone: then all chunks from the first on
    are gone through once more, and only the files of `chunks` are taken.

    Raises:
        RemadeDiffers: the bytes are not those that were committed; nothing was replaced by them.
        NodeFailed, StorageError, Interrupted: as a run. What was made until then is there.
    """
    stateful = any(isinstance(node.op, Stateful | Accumulating) for node in job.graph.nodes.values())
    spans = [(0, chunks[-1])] if stateful else _spans(chunks)
    records: dict[int, list[ShardRecord]] = {}
    for shard in state.shards():
        records.setdefault(shard.chunk, []).append(shard)
    with run_log(job.directory, "none"):
        for first, last in spans:
            log.info("making chunks %d to %d again", first, last)
            _Redo(job.settings, first, last, {k: records[k] for k in chunks}, process, state.run_id).run()


def _spans(chunks: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, as (first, last)."""
    spans: list[tuple[int, int]] = []
    for chunk in chunks:
        if spans and spans[-1][1] == chunk - 1:
            spans[-1] = (spans[-1][0], chunk)
        else:
            spans.append((chunk, chunk))
    return spans


class _Redo:
    """One pass over the chunks `first` to `last`, taking the files of those in `wanted`."""

    def __init__(
        self,
        settings: JobSettings,
        first: int,
        last: int,
        wanted: Mapping[int, Sequence[ShardRecord]],
        process: Resources,
        run_id: str,
    ) -> None:
        self._directory = settings.directory.absolute()
        self._wanted = wanted
        graph = _excerpt(build_graph(_unhurried(settings)), first, last)
        self._context = RunContext(self._directory, Resources(), process, run_id=run_id)
        rejects = RejectWriter(self._directory / REJECTS, RejectTally())
        limits = ExecutorSettings(settings.max_open_chunks, first)
        self._executor = Executor(graph, rejects, self._context, self._commit, limits)
        self._differing: list[str] = []

    def run(self) -> None:
        try:
            with stopped_by_signals(self._executor.interrupt):
                self._executor.run()
        finally:
            self._context.resources.close()
        if self._differing:
            raise RemadeDiffers(
                f"made again, these have other bytes than before: {', '.join(self._differing)}. They are left as they"
                " were found. Other versions of pyarrow or llama.cpp, another CPU, or runtime.deterministic=false can"
                " do that (metrics/run.parquet names the versions); with overwrite=true the job makes all files anew,"
                " from the stored completions where it has them"
            )

    def _commit(self, end: ChunkEnd, shards: Sequence[Shard]) -> None:
        self._executor.take_states(end.chunk)
        self._executor.take_accounts(end.chunk)
        known = {s.path: (s.rows, s.sha256) for s in self._wanted.get(end.chunk, ())}
        made = {s.path.relative_to(self._directory).as_posix(): (s.rows, s.sha256) for s in shards}
        if known and known == made:
            publish(list(shards))
            return
        if known:
            self._differing += sorted(p for p in known.keys() | made.keys() if known.get(p) != made.get(p))
        for shard in shards:
            shard.temporary.unlink()


def _excerpt(graph: Graph, first: int, last: int) -> Graph:
    node = graph.nodes[graph.source]
    if not isinstance(node.op, StreamOperator):
        raise TypeError(f"the source '{graph.source}' is no StreamOperator")
    nodes: dict[str, Any] = {**graph.nodes, graph.source: replace(node, op=Excerpt(node.op, first, last))}
    return Graph(nodes, graph.goal)


def _unhurried(settings: JobSettings) -> JobSettings:
    """The job without the budgets that go by what a run costs: which chunks are made again is known."""
    return replace(settings, target=replace(settings.target, max_tokens=None, max_minutes=None))
