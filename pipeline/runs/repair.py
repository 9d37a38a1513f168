"""Repair: restore the damaged files of a run directory, and compute committed chunks again where files are lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.api.errors import ConfigError, DamagedError, ExitCode, PipelineError
from pipeline.api.protocols import Source, remembers
from pipeline.api.runtime import Resources, RunContext
from pipeline.config.build import CheckedJob, build_graph
from pipeline.config.config_yaml import in_original_environment, settings_from
from pipeline.config.fingerprint import differences
from pipeline.dataflow.executor import Executor
from pipeline.dataflow.new_rows import NewRows
from pipeline.monitor.run_log import run_log
from pipeline.publish.uploader import destination_of, publishing
from pipeline.run_dir.chunk_record import ChunkRecord
from pipeline.run_dir.integrity import DamageKind, Findings
from pipeline.run_dir.manifest import read_manifest, write_manifest
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.run_dir.names import COMPLETIONS, CONFIG, set_aside
from pipeline.run_dir.replacing import replacing
from pipeline.run_dir.state import STATE_FILE, RunState, RunStatus, ShardRecord
from pipeline.run_dir.store_check import remove_damaged
from pipeline.runs.run import run_locked
from pipeline.system.atomic_files import rename_shards, write_atomically
from pipeline.system.known_secrets import SecretMissing
from pipeline.system.redaction import comparable
from pipeline.system.signals import stopped_by_signals

log = logging.getLogger(__name__)


def repair(directory: Path, found: Findings) -> ExitCode:
    """Restore the damaged files in `found`. The caller holds the lock, and examines the directory again afterwards.

    Returns:
        The exit code of the run if the state was lost and it had to run again, or to go on, or of publishing restored
        files; else DONE.

    Raises:
        ConfigError: repair is impossible: the settings are lost, or the input or model has changed.
        PipelineError: a chunk was computed again and its files differ from those that were committed.
        NodeFailed, StorageError, Interrupted: as a run. Files of chunks before the failure are kept.
    """
    directory = directory.absolute()
    for damage in [*found.of(DamageKind.COMPLETIONS), *found.of(DamageKind.METRICS)]:
        set_aside(directory / damage.path)
    for damage in found.of(DamageKind.STORED_ROWS):
        remove_damaged(directory / damage.path)
    if found.of(DamageKind.STATE):
        return _begin_anew(directory)
    ended = ExitCode.DONE
    with closing(RunState(directory / STATE_FILE)) as state:
        if found.of(DamageKind.CONFIG) and state.config is not None:
            write_atomically(directory / CONFIG, state.config)
        damaged = {d.path: d.chunk for d in found.of(DamageKind.SHARD) if d.chunk is not None}
        chunks = sorted(set(damaged.values()))
        if chunks:
            with _original_job(directory, state) as (job, process):
                _remake(job, state, damaged, process)
                ended = _publish_again(job, state, chunks)
        if found.of(DamageKind.MANIFEST):
            write_manifest(directory, state, state.status)
        if found.of(DamageKind.UNFINISHED):
            with _original_job(directory, state) as (job, process):
                ended = _run(job, process)
    return ended


def _begin_anew(directory: Path) -> ExitCode:
    """Move the damaged state aside and run the whole job again. Old files stay until they are written again."""
    with _original_job(directory, None) as (job, process):
        set_aside(directory / STATE_FILE)
        with closing(RunState(directory / STATE_FILE)) as state:
            state.begin(job.fingerprint, job.settings.name, salvaged=True)
        return _run(job, process)


def _run(job: CheckedJob, process: Resources) -> ExitCode:
    with replacing(job.directory) as results:
        return run_locked(job, process, [], results)


@contextmanager
def _original_job(directory: Path, state: RunState | None) -> Iterator[tuple[CheckedJob, Resources]]:
    """Build the job from config.yaml, in the environment of the run, and check that its fingerprint is the same."""
    origin = {} if state is None else state.origin
    with closing(Resources()) as process, in_original_environment(origin):
        job = _job(directory)
        before = read_manifest(directory).get("fingerprint", {}).get("keys") if state is None else state.fingerprint
        if before and (before := comparable(before)) != job.fingerprint:
            changed = "\n".join(f"  {line}" for line in differences(before, job.fingerprint))
            raise ConfigError(
                f"what {directory} was made from is not what it was, so the same rows cannot be made again:\n{changed}"
                "\nPut it back and repeat the command, or run the job with overwrite=true"
            )
        yield job, process


def _job(directory: Path) -> CheckedJob:
    path = directory / CONFIG
    try:
        settings = settings_from(path.read_text(encoding="utf-8"), directory)
    except SecretMissing:
        raise
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DamagedError(
            f"{path} cannot be used ({why}), so the job cannot be run from here: run the command that made"
            f" {directory} again, with overwrite=true. It keeps {COMPLETIONS}"
        ) from error
    try:
        graph = build_graph(settings)
    except ConfigError as error:
        raise ConfigError(
            f"the job that made {directory} cannot be built any more: {error}\n"
            "Where another version of this program made it, run its command again: with overwrite=true, which keeps"
            f" {COMPLETIONS}, or, if {STATE_FILE} is lost, with another output_dir="
        ) from error
    return CheckedJob.of(settings, graph)


def _publish_again(job: CheckedJob, state: RunState, chunks: Sequence[int]) -> ExitCode:
    """Publish the files of `chunks` again if the run is done; otherwise the resumed run will do so."""
    state.forget_published([shard.path for shard in state.shards() if shard.chunk in chunks])
    place = destination_of(job.settings)
    if place is None or state.status is not RunStatus.DONE:
        return ExitCode.DONE
    with run_log(job.directory, "none"), publishing(job.settings, job.directory, state, place) as publisher:
        return ExitCode.DONE if publisher is None else publisher.finish(job.settings.ending_s)


def _remake(job: CheckedJob, state: RunState, damaged: Mapping[str, int], process: Resources) -> None:
    """Compute the `damaged` files, each with its chunk, again.

    If an operator keeps state, of which only the last one is stored, or if the source cannot seek, all chunks from 0 on
    are computed, and only the damaged files are kept. The source of a job with `append` finds the rows of each
    chunk by its states.
    """
    source = job.graph.nodes[job.graph.source].op
    grows = {job.graph.source} if isinstance(source, NewRows) else set[str]()
    whole = any(remembers(node.op) for name, node in job.graph.nodes.items() if name not in grows)
    whole = whole or not isinstance(source, Source)
    chunks = sorted(set(damaged.values()))
    wanted = {shard.path: shard for shard in state.shards() if shard.path in damaged}
    # Budgets of tokens and minutes would end the run early.
    target = replace(job.settings.target, max_tokens=None, max_minutes=None, max_cost=None)
    settings, sink = replace(job.settings, target=target), _SameFiles(job.directory, wanted)
    most = settings.max_open_chunks
    with run_log(job.directory, "none"):
        for first, last in [(0, chunks[-1])] if whole else _spans(chunks):
            log.info("making chunks %d to %d again", first, last)
            context = RunContext(job.directory, process, MetricsTables(job.directory).get, run_id=state.run_id)
            graph = build_graph(settings)
            states = {name: states for name, states in state.operator_states().items() if name in grows}
            executor = Executor(
                graph, context, sink, max_open_chunks=most, first_chunk=first, last_chunk=last, states=states
            )
            with stopped_by_signals(executor.interrupt):
                executor.run()
            sink.check()


def _spans(chunks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges of consecutive numbers as (first, last)."""
    there = set(chunks)
    firsts = [chunk for chunk in chunks if chunk - 1 not in there]
    lasts = [chunk for chunk in chunks if chunk + 1 not in there]
    return list(zip(firsts, lasts, strict=True))


@dataclass
class _SameFiles:
    """Keeps those files in `wanted`, by path, that have the same bytes as before, and no others."""

    directory: Path
    wanted: Mapping[str, ShardRecord]
    differing: list[str] = field(default_factory=list)

    def commit(self, record: ChunkRecord) -> None:
        known = {path: shard for path, shard in self.wanted.items() if shard.chunk == record.chunk}
        made = {ShardRecord.of(shard, self.directory): shard for shard in record.shards}
        same = [shard for each, shard in made.items() if known.get(each.path) == each]
        rename_shards(same)
        self.differing += sorted(known.keys() - {each.path for each in made if known.get(each.path) == each})
        for shard in record.shards:
            if shard not in same:
                shard.temporary.unlink()

    def check(self) -> None:
        """Raise PipelineError if files have other bytes than before."""
        if self.differing:
            raise PipelineError(
                f"made again, these have other bytes than before: {', '.join(self.differing)}. They are left as they"
                " were found. Other versions of pyarrow or llama.cpp, another CPU, or runtime.deterministic=false can"
                " do that (metrics/run.parquet names the versions); with overwrite=true the job makes all files anew,"
                " from the stored completions where it has them"
            )
