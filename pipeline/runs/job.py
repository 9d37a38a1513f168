"""Run a job: take the lock, decide to begin, resume or refuse, and start an attempt."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from pipeline.api.errors import ExitCode, PipelineError, PublishError
from pipeline.api.runtime import Resources
from pipeline.api.user_code import or_else
from pipeline.config.build import CheckedJob, build_graph
from pipeline.monitor.prometheus import check_prometheus_file
from pipeline.monitor.run_log import run_log
from pipeline.monitor.summary import Outcome, too_many_errors
from pipeline.publish.dataset_card import keep_card, remove_card
from pipeline.publish.uploader import Publisher, destination_of, publishing
from pipeline.run_dir.lock import locked
from pipeline.run_dir.manifest import manifest
from pipeline.run_dir.names import DATA, parts, refuse_foreign, refuse_unremovable
from pipeline.run_dir.replacing import Replacing, replacing
from pipeline.run_dir.state import STATE_FILE, RunState, RunStatus
from pipeline.runs.admission import Admission, admit
from pipeline.runs.attempt import Attempt
from pipeline.runs.ending import conclude_missing, ending_s, exit_code_of
from pipeline.runs.memory_check import check_memory, memory_warning
from pipeline.runs.on_finish import tell, tell_refusal
from pipeline.settings import JobSettings
from pipeline.system.deadlines import GRACE_S, within
from pipeline.system.signals import RECORDS, stopped_by_signals
from pipeline.system.terminal import say

log = logging.getLogger(__name__)


Note = Callable[[Outcome], None]


def run_job(
    settings: JobSettings,
    process: Resources,
    note: Note = lambda outcome: None,
    compose: Callable[[Replacing], JobSettings] | None = None,
) -> ExitCode:
    """Run or resume a job, or find it finished. Prints a summary.

    All that can be refused is refused, and operators are open, before results are replaced, an attempt is recorded or a
    destination is claimed: what is refused leaves the directory as it was. `on_finish` and the Prometheus file tell of
    it.

    Args:
        settings: the job.
        process: resources shared with other jobs of this process (models, contexts).
        note: called with the outcome of the attempt, if there was one.
        compose: places the input in the directory, under its lock, and returns the settings with it.

    Raises:
        ConfigError: the graph, the output directory or the settings are invalid. No model was loaded.
        StorageError: the output directory cannot be written.
        PublishError: with `overwrite`, `output.publish` cannot be reached; nothing was removed.
    """
    seen: list[Outcome] = []
    directory = settings.directory.absolute()

    def ended(outcome: Outcome) -> None:
        seen.append(outcome)
        note(outcome)

    try:
        check_prometheus_file(settings.prometheus_file)
        job = None if compose else _checked(settings)
        refuse_foreign(directory)
        if settings.overwrite:
            refuse_unremovable(directory)
        with locked(directory), replacing(directory) as results:
            job = _checked(compose(results)) if compose else job or _checked(settings)
            return run_locked(job, process, ended, results)
    except Exception as error:
        if not seen:
            tell_refusal(settings, error)
        raise


def _checked(settings: JobSettings) -> CheckedJob:
    graph = build_graph(settings)
    check_memory(settings, graph)
    return CheckedJob.of(settings, graph)


def run_locked(job: CheckedJob, process: Resources, note: Note, results: Replacing) -> ExitCode:
    """Like `run_job`, for a caller that holds the lock of the output directory and has built the job."""
    settings, directory = job.settings, job.directory
    place = destination_of(settings)
    if place is not None and settings.overwrite:
        place.sizes()  # fail before results are removed if the destination cannot be reached
    with (
        _admitted(job, results) as (state, admission),
        run_log(directory, settings.progress),
        publishing(settings, directory, state, place, later=results.keeps) as publisher,
    ):
        if admission is Admission.DONE:
            return _completed(job, state, publisher, _already_done(job, state))
        if state.committed_chunks:
            chunks, rows = state.committed_chunks, state.committed_rows
            log.info("resuming: %d rows (%d chunk%s) are committed already", rows, chunks, "s" if chunks > 1 else "")
        if (warning := memory_warning(settings, job.graph)) is not None:
            log.warning("%s", warning)
        needs = (need for node in job.graph.nodes.values() for need in node.op.memory_needs())
        process.make_room({need.key for need in needs if need.shared})

        def begun() -> None:
            if publisher is not None and results.keeps:
                publisher.begin(overwrite=settings.overwrite)
            if results.keeps:
                remove_card(directory)
            results.begun()

        attempt = Attempt(job, state, process, publisher.committed if publisher else lambda: None, begun)
        if not results.keeps:
            results.begun()  # a failure to open is an attempt, and recorded
        with stopped_by_signals(lambda: None, RECORDS):
            outcome = attempt.run()
        return _after(job, state, publisher, outcome, note)


def _after(job: CheckedJob, state: RunState, publisher: Publisher | None, outcome: Outcome, note: Note) -> ExitCode:
    """Finish the run after an attempt: card, publishing, and last `on_finish`. Returns the exit code of all of it."""
    try:
        if outcome.error is not None and not isinstance(outcome.error, PipelineError):
            raise outcome.error
        if outcome.status is RunStatus.DONE:
            outcome = replace(outcome, exit_code=_completed(job, state, publisher, outcome.exit_code))
            if publisher is not None and publisher.failure is not None:
                outcome = replace(outcome, error=PublishError(publisher.failure))
        elif publisher is not None:
            publisher.say_unfinished()
    except BaseException as error:
        outcome = outcome.failed(error)
        raise
    finally:
        note(outcome)
        told = partial(tell, job.settings.on_finish, outcome)
        limit_s = max(ending_s(job.settings), job.settings.on_finish.timeout_s + GRACE_S)
        or_else("on_finish is left behind", partial(within, limit_s, "on_finish", told), None)
    return outcome.exit_code


def _completed(job: CheckedJob, state: RunState, publisher: Publisher | None, code: ExitCode) -> ExitCode:
    """Write the card and publish the rest of a finished run. `code`: of the run itself."""
    limit_s = ending_s(job.settings)
    within(limit_s, "the dataset card", partial(keep_card, job.settings, job.directory, state))
    published = ExitCode.DONE if publisher is None else publisher.finish(limit_s)
    return code if published is ExitCode.DONE else published


@contextlib.contextmanager
def _admitted(job: CheckedJob, results: Replacing) -> Iterator[tuple[RunState, Admission]]:
    """Open the state of the run, begun anew if there is none or it is replaced, and yield it with the decision."""
    path = job.directory / STATE_FILE
    state = RunState(path)
    try:
        admission = admit(job, state)
        if admission in (Admission.BEGIN, Admission.REPLACE):
            if admission is Admission.REPLACE or results.keeps or parts(job.directory):
                state.close()
                results.set_aside(name for node in job.graph.nodes.values() for name in node.op.concluded)
                state = RunState(path)
            results.undo = True  # what is made from now on
            state.begin(job.fingerprint, job.settings.name)
        yield state, admission
    finally:
        state.close()


def _already_done(job: CheckedJob, state: RunState) -> ExitCode:
    """Print that the run is finished. Returns the exit code under the present max_error_rate."""
    limit = job.settings.max_error_rate
    if lost := conclude_missing(job.graph, job.directory, ending_s(job.settings)):
        say([f"{' and '.join(lost)} had gone, and {'is' if len(lost) == 1 else 'are'} made again"])
    code = exit_code_of(RunStatus.DONE, state, limit)
    rows = manifest(state, RunStatus.DONE)["counts"]["data_rows"]
    say([f"{job.settings.name} is finished already: {rows:,} rows in {job.directory / DATA}"])
    if code is ExitCode.REJECTS:
        why = too_many_errors(state.rejects().errors, state.committed_rows, limit)
        say([f"exit code 3: {why}. Raise max_error_rate to accept them"])
    say(["To make them again add overwrite=true"])
    return code
