"""Compute committed chunks again, and keep their files only if they have the same bytes as before."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.api.errors import PipelineError
from pipeline.api.protocols import overrides
from pipeline.api.runtime import Resources, RunContext
from pipeline.config.build import Job, build_graph
from pipeline.dataflow.executor import Executor
from pipeline.monitor.run_log import run_log
from pipeline.run_dir.chunk_record import ChunkRecord
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.run_dir.state import RunState, ShardRecord
from pipeline.settings import JobSettings
from pipeline.system.atomic_files import rename_shards
from pipeline.system.signals import stopped_by_signals

log = logging.getLogger(__name__)


class RemadeDiffers(PipelineError):
    """A chunk was computed again and its files differ from those that were committed."""


def remake(job: Job, state: RunState, chunks: Sequence[int], process: Resources) -> None:
    """Compute the files of `chunks` (ascending) again.

    If an operator keeps state, of which only the last one is stored, or if the source cannot seek, all chunks from 0 on
    are computed, and only the files of `chunks` are kept.

    Raises:
        RemadeDiffers: the bytes are not those that were committed; the differing files were discarded.
        NodeFailed, StorageError, Interrupted: as a run. Files of chunks before the failure are kept.
    """
    whole = any(overrides(node.op, "state") for node in job.graph.nodes.values())
    whole = whole or not overrides(job.graph.nodes[job.graph.source].op, "seek")
    spans = [(0, chunks[-1])] if whole else _spans(chunks)
    records: dict[int, list[ShardRecord]] = {}
    for shard in state.shards():
        records.setdefault(shard.chunk, []).append(shard)
    with run_log(job.directory, "none"):
        for first, last in spans:
            log.info("making chunks %d to %d again", first, last)
            context = RunContext(job.directory, process, MetricsTables(job.directory).get, run_id=state.run_id)
            _make_span(job, first, last, {k: records[k] for k in chunks}, context)


def _spans(chunks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges of consecutive numbers as (first, last)."""
    spans: list[tuple[int, int]] = []
    for chunk in chunks:
        if spans and spans[-1][1] == chunk - 1:
            spans[-1] = (spans[-1][0], chunk)
        else:
            spans.append((chunk, chunk))
    return spans


def _make_span(
    job: Job, first: int, last: int, wanted: Mapping[int, Sequence[ShardRecord]], context: RunContext
) -> None:
    """Compute the chunks `first` to `last` and keep the files of those in `wanted`."""
    differing: list[str] = []

    def commit(record: ChunkRecord) -> None:
        known = {s.path: s for s in wanted.get(record.chunk, ())}
        made = {s.path: s for s in (ShardRecord.of(shard, context.output_dir) for shard in record.shards)}
        if known and known == made:
            rename_shards(record.shards)
            return
        if known:
            differing.extend(sorted(p for p in known.keys() | made.keys() if known.get(p) != made.get(p)))
        for shard in record.shards:
            shard.temporary.unlink()

    graph, open_chunks = build_graph(_unhurried(job.settings)), job.settings.max_open_chunks
    executor = Executor(graph, context, commit, max_open_chunks=open_chunks, first_chunk=first, last_chunk=last)
    with stopped_by_signals(executor.interrupt):
        executor.run()
    if differing:
        raise RemadeDiffers(
            f"made again, these have other bytes than before: {', '.join(differing)}. They are left as they were found."
            " Other versions of pyarrow or llama.cpp, another CPU, or runtime.deterministic=false can do that"
            " (metrics/run.parquet names the versions); with overwrite=true the job makes all files anew, from the"
            " stored completions where it has them"
        )


def _unhurried(settings: JobSettings) -> JobSettings:
    """Return the settings without budgets of tokens and minutes, which would end the run early."""
    return replace(settings, target=replace(settings.target, max_tokens=None, max_minutes=None))
