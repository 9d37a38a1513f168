"""Repair: restore the damaged files of a run directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from pipeline.api.errors import ConfigError, DamagedError, ExitCode
from pipeline.api.runtime import Resources
from pipeline.config.build import Job, build_graph
from pipeline.config.config_yaml import in_original_environment, settings_from
from pipeline.config.fingerprint import differences
from pipeline.dataflow.graph import Graph
from pipeline.monitor.run_log import run_log
from pipeline.publish.uploader import destination_of, publishing
from pipeline.run.job import run_locked
from pipeline.run.remake_chunks import remake
from pipeline.run_dir.integrity import Findings, Kind
from pipeline.run_dir.manifest import read_manifest, write_manifest
from pipeline.run_dir.names import COMPLETIONS, CONFIG, set_aside
from pipeline.run_dir.state import STATE_FILE, RunState, RunStatus
from pipeline.settings import JobSettings
from pipeline.system.atomic_files import write_atomically

T = TypeVar("T")


def repair(directory: Path, found: Findings) -> ExitCode:
    """Restore the damaged files in `found`. The caller holds the lock, and examines the directory again afterwards.

    Returns:
        The exit code of the run if the state was lost and it had to run again, or of publishing restored files; else
        DONE.

    Raises:
        ConfigError: repair is impossible: the settings are lost, or the input or model has changed.
        NodeFailed, StorageError, Interrupted: as a run.
    """
    directory = directory.absolute()
    for damage in [*found.of(Kind.COMPLETIONS), *found.of(Kind.METRICS)]:
        set_aside(directory / damage.path)
    if found.of(Kind.STATE):
        return _begin_anew(directory)
    ended = ExitCode.DONE
    with closing(RunState(directory / STATE_FILE)) as state:
        if found.of(Kind.CONFIG) and state.config is not None:
            write_atomically(directory / CONFIG, state.config)
        chunks = sorted({damage.chunk for damage in found.of(Kind.SHARD) if damage.chunk is not None})
        if chunks:
            ended = _with_job(directory, state, lambda job, shared: _remade(job, shared, state, chunks))
        if found.of(Kind.MANIFEST):
            write_manifest(directory, state, state.status)
    return ended


def _remade(job: Job, process: Resources, state: RunState, chunks: Sequence[int]) -> ExitCode:
    """Compute `chunks` again. If the run is done, publish them again; otherwise the resumed run will do so."""
    remake(job, state, chunks, process)
    state.forget_published([shard.path for shard in state.shards() if shard.chunk in chunks])
    place = destination_of(job.settings)
    if place is None or state.status is not RunStatus.DONE:
        return ExitCode.DONE
    with run_log(job.directory, "none"), publishing(job.settings, job.directory, state, place) as publisher:
        return ExitCode.DONE if publisher is None else publisher.finish()


def _begin_anew(directory: Path) -> ExitCode:
    """Move the damaged state aside and run the whole job again. Old files stay until they are written again."""

    def run(job: Job, process: Resources) -> ExitCode:
        set_aside(directory / STATE_FILE)
        with closing(RunState(directory / STATE_FILE)) as state:
            state.begin(job.fingerprint, job.settings.name, salvaged=True)
        return run_locked(job, process)

    return _with_job(directory, None, run)


def _with_job(directory: Path, state: RunState | None, do: Callable[[Job, Resources], T]) -> T:
    """Rebuild the job from config.yaml, check that its fingerprint is unchanged, and call `do`."""
    process = Resources()
    try:
        with in_original_environment({} if state is None else state.origin):
            settings = _settings(directory)
            job = Job.of(settings, _graph(directory, settings))
            _refuse_changed(job, state)
            return do(job, process)
    finally:
        process.close()


def _settings(directory: Path) -> JobSettings:
    path = directory / CONFIG
    try:
        return settings_from(path.read_text(encoding="utf-8"), directory)
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DamagedError(
            f"{path} cannot be used ({why}), so the job cannot be run from here: run the command that made"
            f" {directory} again, with overwrite=true. It keeps {COMPLETIONS}"
        ) from error


def _graph(directory: Path, settings: JobSettings) -> Graph:
    try:
        return build_graph(settings)
    except ConfigError as error:
        raise ConfigError(
            f"the job that made {directory} cannot be built any more: {error}\n"
            "Where another version of this program made it, run its command again: with overwrite=true, which keeps"
            f" {COMPLETIONS}, or, if {STATE_FILE} is lost, with another output_dir="
        ) from error


def _refuse_changed(job: Job, state: RunState | None) -> None:
    before = read_manifest(job.directory).get("fingerprint", {}).get("keys") if state is None else state.fingerprint
    if before and before != job.fingerprint:
        changed = "\n".join(f"  {line}" for line in differences(before, job.fingerprint))
        raise ConfigError(
            f"what {job.directory} was made from is not what it was, so the same rows cannot be made again:\n{changed}"
            "\nPut it back and repeat the command, or run the job with overwrite=true"
        )
