"""Attempt: what executes the graph of a job once, from the first uncommitted chunk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from pipeline.api.errors import GraphError
from pipeline.api.numbers import Number
from pipeline.api.protocols import Source, remembers
from pipeline.api.runtime import Resources, RunContext
from pipeline.cluster.start import driver_graph
from pipeline.config.build import CheckedJob
from pipeline.dataflow.executor import Executor
from pipeline.monitor.recorder import Recorder
from pipeline.run_dir.chunk_record import ChunkRecord, RejectCounts
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.run_dir.state import RunState
from pipeline.runs.memory_check import MemoryNeeds
from pipeline.system.atomic_files import rename_shards
from pipeline.system.machine import count_memory

log = logging.getLogger(__name__)


class StateSink(NamedTuple):
    """Keeps the chunks of an attempt in its run; `wake` is called after every commit."""

    state: RunState
    attempt: int
    wake: Callable[[], None]

    def commit(self, record: ChunkRecord) -> None:
        """Rename the files of a chunk, then record it: in this order every recorded file exists."""
        rename_shards(record.shards)
        self.state.commit(self.attempt, record)
        self.wake()


@dataclass(frozen=True)
class Attempt:
    """An attempt to finish a run. Its number is `context.attempt`.

    Args:
        state: of the run.
        started_at: ISO 8601.
        rows_before, rejects_before: what earlier attempts have committed.
    """

    job: CheckedJob
    state: RunState
    context: RunContext
    tables: MetricsTables
    executor: Executor
    recorder: Recorder
    started_at: str
    rows_before: int
    rejects_before: RejectCounts


def prepare(job: CheckedJob, state: RunState, process: Resources, wake: Callable[[], None]) -> Attempt:
    """Make the next attempt: close models of earlier jobs that are in the way of this one's, and begin the workers of a
    cluster. Nothing is recorded or loaded yet.

    Args:
        job: the caller holds the lock of its directory.
        process: resources shared with other jobs of this process (models, contexts).
        wake: called after every commit.

    Raises:
        ConfigError: the cluster or the graph cannot work so.
        GraphError: an operator cannot resume after the committed chunks.
    """
    settings, graph, first, states = job.settings, job.graph, state.committed_chunks, state.operator_states()
    rows_before, rejects_before = state.committed_rows, state.rejects()
    if first:
        log.info("resuming: %d rows (%d chunk%s) are committed already", rows_before, first, "s" if first > 1 else "")
    memory = MemoryNeeds(settings, graph)
    if (warning := memory.warning()) is not None:
        log.warning("%s", warning)
    process.make_room(memory.shared_keys)
    if first:
        _check_resumable(job, states.keys())
    attempt, started_at = state.attempts + 1, datetime.now(UTC).isoformat(timespec="seconds")
    tables = MetricsTables(job.directory, attempt)
    context = RunContext(job.directory, process, tables.get, attempt, state.run_id)
    count_memory(context)
    with ExitStack() as refused:
        refused.callback(context.resources.close)  # the pool, if workers were begun
        open_chunks = settings.max_open_chunks
        if settings.cluster is not None:
            graph, open_chunks = driver_graph(settings, graph, context, tables, state)
        executor = Executor(
            graph,
            context,
            StateSink(state, attempt, wake),
            max_open_chunks=open_chunks,
            first_chunk=first,
            states=states,
            ending_s=settings.ending_s,
        )
        executor.tally.know(rejects_before)
        if job.graph.keepers:
            context.numbers["kept_with_error"] = Number("Errors of rows that stay (on_error: keep).", group="")
            context.totals.append(lambda: {"kept_with_error": float(executor.tally.kept)})
        recorder = Recorder(job, state, context, tables, executor, started_at)
        refused.pop_all()
    return Attempt(job, state, context, tables, executor, recorder, started_at, rows_before, rejects_before)


def _check_resumable(job: CheckedJob, kept: Set[str]) -> None:
    """Check that all operators can resume. `kept`: names of the nodes with a committed state."""
    nodes, source, there = job.graph.nodes, job.graph.source, job.directory
    reads = nodes[source].op
    stateful = {name for name, node in nodes.items() if remembers(node.op)}
    wrong = {} if isinstance(reads, Source) else {source: f"{type(reads).__name__} has no seek(chunk)"}
    wrong |= dict.fromkeys(sorted(stateful - kept), f"keeps state between chunks, but none is in {there}")
    wrong |= dict.fromkeys(sorted(kept - stateful), f"keeps no state, but some is in {there}")
    for name, what in wrong.items():
        raise GraphError(name, f"{what}, so the run cannot be resumed; begin anew: overwrite=true")
