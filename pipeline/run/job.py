"""One run of one job: lock, resume or refuse, and hand over to an attempt."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.api.errors import ConfigError, DamagedError, ExitCode, PipelineError
from pipeline.config.build import build_graph
from pipeline.config.fingerprint import differences, fingerprint_of
from pipeline.dataflow.graph import Graph
from pipeline.dataflow.runtime import Resources
from pipeline.monitor.prometheus import refuse_nowhere
from pipeline.monitor.run_log import run_log
from pipeline.monitor.summary import too_many_errors
from pipeline.publish.dataset_card import keep_card, remove_card
from pipeline.publish.uploader import Publisher, destination_of, publishing
from pipeline.run.attempt import Attempt
from pipeline.run.ending import exit_code_of
from pipeline.run.final_files import conclude_missing, remove_concluded
from pipeline.run.memory_check import check_memory, memory_warning
from pipeline.run.on_finish import tell
from pipeline.run_dir.integrity import missing_or_cut
from pipeline.run_dir.lock import locked
from pipeline.run_dir.manifest import manifest
from pipeline.run_dir.names import DATA, parts, refuse_foreign, wipe
from pipeline.run_dir.state import STATE_FILE, RunState, RunStatus, errors_of
from pipeline.settings import JobSettings
from pipeline.system.signals import RECORDS, stopped_by_signals
from pipeline.system.terminal import say

MAX_NAMED = 8
log = logging.getLogger(__name__)


def run_job(settings: JobSettings, process: Resources) -> ExitCode:
    """Run a job, or resume it, or find it finished. Prints a summary.

    Args:
        settings: the job.
        process: what it shares with other jobs of this process (models, contexts).

    Raises:
        ConfigError: the graph, the output directory or the settings cannot work. No model has been loaded.
        StorageError: the run cannot be begun because nothing can be written.
        PublishError: with `overwrite`, `output.publish` cannot be reached; nothing was removed.
    """
    graph = build_graph(settings)
    check_memory(settings, graph)
    fingerprint = fingerprint_of(settings, graph)
    directory = settings.directory.absolute()
    refuse_foreign(directory)
    refuse_nowhere(settings.prometheus_file)
    with locked(directory):
        return run_locked(settings, graph, fingerprint, process)


def run_locked(settings: JobSettings, graph: Graph, fingerprint: Mapping[str, Any], process: Resources) -> ExitCode:
    """`run_job` for who holds the lock of the output directory and has built the graph."""
    directory = settings.directory.absolute()
    place = destination_of(settings)
    if place is not None and settings.overwrite:
        place.sizes()  # what cannot be reached is said before results are removed
    with (
        _admitted(directory, dict(fingerprint), settings, graph) as state,
        run_log(directory, settings.progress),
        publishing(settings, directory, state, place) as publisher,
    ):
        if _is_done(state):
            code = _already_done(settings, graph, directory, state)
            return _completed(settings, directory, state, publisher, code)
        if state.committed_chunks:
            chunks, rows = state.committed_chunks, state.committed_rows
            log.info("resuming: %d rows (%d chunk%s) are committed already", rows, chunks, "s" if chunks > 1 else "")
        if (warning := memory_warning(settings, graph)) is not None:
            log.warning("%s", warning)
        committed = None if publisher is None else publisher.committed
        attempt = Attempt(settings, graph, directory, state, process, committed)
        with _telling(settings, attempt) as told:
            with stopped_by_signals(lambda: None, RECORDS):
                told.code = attempt.run()
            if _is_done(state):
                told.code = _completed(settings, directory, state, publisher, told.code)
                told.error = None if publisher is None else publisher.failure
            elif publisher is not None:
                publisher.say_unfinished()
        return told.code


def _is_done(state: RunState) -> bool:
    return state.status is RunStatus.DONE


@dataclass
class _Told:
    """How the process is about to end, for `on_finish`. `error`: what went wrong after the attempt."""

    code: ExitCode = ExitCode.FAILED
    error: str | None = None


@contextlib.contextmanager
def _telling(settings: JobSettings, attempt: Attempt) -> Iterator[_Told]:
    """Tell `on_finish` at the end of the block how it ended, publishing included. Nothing is told of an attempt that
    gave no account of itself."""
    told = _Told()
    try:
        yield told
    except PipelineError as error:
        told.code, told.error = ExitCode(error.exit_code), str(error)
        raise
    finally:
        if (summary := attempt.summary) is not None:
            ended = {"exit_code": int(told.code), "error": summary["error"] or told.error}
            tell(settings.on_finish, {**summary, **ended})


def _completed(
    settings: JobSettings, directory: Path, state: RunState, publisher: Publisher | None, code: ExitCode
) -> ExitCode:
    """What is done when all rows are committed: the card, and the rest of publishing. `code`: of the run itself."""
    keep_card(settings, directory, state)
    published = ExitCode.DONE if publisher is None else publisher.finish()
    return code if published is ExitCode.DONE else published


@contextlib.contextmanager
def _admitted(
    directory: Path, fingerprint: dict[str, object], settings: JobSettings, graph: Graph
) -> Iterator[RunState]:
    """The state of this very job: kept, or begun anew where there was none or `overwrite` is set.

    Raises:
        ConfigError: the directory holds results of a run with another fingerprint, or of one that lost rows.
        DamagedError: files that were committed are not there, or not whole.
    """
    state = RunState(directory / STATE_FILE)
    try:
        before = state.fingerprint
        other = before is not None and before != fingerprint
        refuse_other(directory, state, fingerprint, settings)
        # A run with other settings that has committed nothing has nothing to lose: it is replaced without asking.
        if before is not None and (settings.overwrite or other):
            state.close()
            # What only the operators and the card know of goes first: without a state it would pass for a stranger's.
            remove_concluded(graph, directory)
            remove_card(directory)
            wipe(directory)
            state = RunState(directory / STATE_FILE)
        if state.fingerprint is None:
            refuse_orphans(directory, settings)
            state.begin(fingerprint, settings.name)
        refuse_damaged(directory, state)
        yield state
    finally:
        state.close()


def refuse_other(directory: Path, state: RunState, fingerprint: Mapping[str, Any], settings: JobSettings) -> None:
    """A run goes on with the settings that it was begun with.

    Raises:
        ConfigError: it was begun with others and has committed something, or it lost rows; and `overwrite` is not set.
    """
    if state.defect is not None and not settings.overwrite:
        raise ConfigError(
            f"the results in {directory} cannot be trusted: {state.defect}\nMend the operator and add overwrite=true"
        )
    before = state.fingerprint
    if before is not None and before != fingerprint and state.committed_chunks and not settings.overwrite:
        changed = "\n".join(f"  {line}" for line in differences(before, fingerprint))
        raise ConfigError(
            f"{directory} holds a run with other settings:\n{changed}\n"
            "To replace its results add overwrite=true; to keep them give another output_dir="
        )


def refuse_orphans(directory: Path, settings: JobSettings) -> None:
    """A run writes its state before its first file: without one, files of results mean that it was lost.

    Raises:
        DamagedError: there are such files.
    """
    found = parts(directory)
    if found and not settings.overwrite:
        raise DamagedError(
            f"{directory / STATE_FILE} is empty, but there are results ({found[0].relative_to(directory)} ...)."
            f" python -m pipeline verify {directory} repair=true makes it again; overwrite=true begins anew"
        )


def refuse_damaged(directory: Path, state: RunState) -> None:
    """Looks at names and sizes only; `verify` reads the files.

    Raises:
        DamagedError: a committed file is missing or has another size.
    """
    found = missing_or_cut(directory, state.shards())
    if found:
        named = [f"  {path} {what}" for path, what in list(found.items())[:MAX_NAMED]]
        named += [f"  and {len(found) - MAX_NAMED} more"] if len(found) > MAX_NAMED else []
        raise DamagedError(
            "\n".join([f"committed files in {directory} are not as they were written:", *named])
            + f"\npython -m pipeline verify {directory} repair=true makes them again"
        )


def _already_done(settings: JobSettings, graph: Graph, directory: Path, state: RunState) -> ExitCode:
    """The exit code is decided anew: max_error_rate may have been raised since.

    Raises:
        StorageError: what is lost of the files at its end cannot be written.
    """
    if lost := conclude_missing(graph, directory):
        say([f"{' and '.join(lost)} had gone, and {'is' if len(lost) == 1 else 'are'} made again"])
    code = exit_code_of(RunStatus.DONE, state, settings.max_error_rate)
    rows = manifest(state, RunStatus.DONE)["counts"]["data_rows"]
    say([f"{settings.name} is finished already: {rows:,} rows in {directory / DATA}"])
    if code is ExitCode.REJECTS:
        why = too_many_errors(errors_of(state.rejects()), state.committed_rows, settings.max_error_rate)
        say([f"exit code 3: {why}. Raise max_error_rate to accept them"])
    say(["To make them again add overwrite=true"])
    return code
