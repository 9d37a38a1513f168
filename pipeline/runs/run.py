"""Run a job, top-down: compose, lock, admit, prepare, begin, execute, record, publish, notify.

All that can be refused is refused, and operators are open, before results are replaced, an attempt is recorded or a
destination is claimed: what is refused leaves the directory as it was.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from pipeline.api.errors import ExitCode, Interrupted, PipelineError, PublishError
from pipeline.api.protocols import Concludes
from pipeline.api.runtime import Resources
from pipeline.api.user_code import told
from pipeline.cluster.identity import identities_of, keep_or_compare
from pipeline.config.build import CheckedJob, build_graph
from pipeline.config.config_yaml import changes, origin, to_yaml
from pipeline.monitor.recorder import check_prometheus_file
from pipeline.monitor.run_log import FILE_ONLY, run_log
from pipeline.monitor.summary import Outcome
from pipeline.publish.dataset_card import keep_card, remove_card
from pipeline.publish.uploader import Publisher, destination_of, publishing
from pipeline.run_dir.lock import locked
from pipeline.run_dir.names import CONFIG, refuse_foreign, refuse_unremovable, remove_parts
from pipeline.run_dir.replacing import Replacing, replacing
from pipeline.run_dir.state import RunState, RunStatus
from pipeline.runs.admission import Admission, admitted
from pipeline.runs.attempt import Attempt, prepare
from pipeline.runs.control import Control
from pipeline.runs.ending import conclude, record, remove_concluded, say_finished, summarize
from pipeline.runs.memory_check import MemoryNeeds
from pipeline.runs.on_finish import tell, tell_refusal
from pipeline.runs.watchdog import Watchdog
from pipeline.settings import REFUSE, JobSettings
from pipeline.system.atomic_files import write_atomically
from pipeline.system.deadlines import within
from pipeline.system.failpoints import Failpoint, reached
from pipeline.system.signals import RECORDS, stopped_by_signals

SWITCH_INTERVAL_S = 0.0005
log = logging.getLogger(__name__)


def run_job(
    settings: JobSettings,
    process: Resources,
    seen: list[Outcome] | None = None,
    compose: Callable[[Replacing], JobSettings] | None = None,
    control: Control | None = None,
) -> ExitCode:
    """Run or resume a job, or find it finished. Prints a summary. `on_finish` and the Prometheus file are told of a
    refusal, too.

    Args:
        settings: the job.
        process: resources shared with other jobs of this process (models, contexts).
        seen: gets the outcome of the attempt, if there was one.
        compose: places the input in the directory, under its lock, and returns the settings with it.
        control: is told of the progress, and may cancel the run.

    Raises:
        ConfigError: the graph, the output directory or the settings are invalid. No model was loaded.
        StorageError: the output directory cannot be written.
        PublishError: with `overwrite`, `output.publish` cannot be reached; nothing was removed.
    """
    seen = [] if seen is None else seen
    directory = settings.directory.absolute()
    try:
        check_prometheus_file(settings.prometheus_file)
        job = None if compose else _checked(settings)
        refuse_foreign(directory)
        if settings.overwrite:
            refuse_unremovable(directory)
        with locked(directory), replacing(directory) as results:
            job = job or _checked(compose(results) if compose else settings)
            return run_locked(job, process, seen, results, control)
    except Exception as error:
        if not seen:
            tell_refusal(settings, error)
        raise


def run_locked(
    job: CheckedJob, process: Resources, seen: list[Outcome], results: Replacing, control: Control | None = None
) -> ExitCode:
    """Like `run_job`, for a caller that holds the lock of the output directory and has built the job."""
    settings, directory = job.settings, job.directory
    place = destination_of(settings)
    if place is not None and settings.overwrite:
        place.sizes()  # fail before results are removed if the destination cannot be reached
    with (
        admitted(job, results) as (state, admission),
        run_log(directory, settings.progress),
        publishing(settings, directory, state, place, later=results.keeps) as publisher,
    ):
        if admission is Admission.DONE:
            return _published(job, state, publisher, say_finished(job, state))
        attempt = prepare(job, state, process, publisher.committed if publisher else lambda: None)
        state.start_attempt(attempt.started_at)
        reached(Failpoint.ATTEMPT_STARTED)
        if not results.keeps:
            results.begun()  # a failure to open is an attempt, and recorded
        with stopped_by_signals(lambda: None, RECORDS):
            ended = _execute(attempt, partial(_begin, job, state, publisher, results), control or Control())
            reached(Failpoint.GRAPH_ENDED)
            outcome = within(settings.ending_s, "recording the results", partial(record, attempt, *ended))
            summarize(job, outcome)
        try:
            outcome = _publish(job, state, publisher, outcome)
        except BaseException as error:
            outcome = outcome.failed(error)
            raise
        finally:
            seen.append(outcome)
            tell(settings, outcome)
        return outcome.exit_code


def _checked(settings: JobSettings) -> CheckedJob:
    graph = build_graph(settings)
    MemoryNeeds(settings, graph).check()
    return CheckedJob.of(settings, graph)


def _execute(attempt: Attempt, begin: Callable[[], None], control: Control) -> tuple[RunStatus, BaseException | None]:
    """Execute the graph, and have operators write their final files. `begin`: called when all of them are open.
    Returns how that ended, and the error."""
    job, state, executor, context = attempt.job, attempt.state, attempt.executor, attempt.context
    failed = partial(state.end_attempt, context.attempt, RunStatus.FAILED)
    watchdog = Watchdog(job.settings.engine.stall_timeout_s, executor, failed, context.clock)

    def tick() -> None:
        control.tell(attempt.recorder.tick(), job.directory)

    try:
        with _quick_switches(), stopped_by_signals(executor.interrupt), control.interrupting(executor.interrupt):
            _clear_away(attempt)
            executor.run(tick, watchdog, begin)
            target = job.graph.target
            ended = RunStatus.DONE if target is None or target.ended_well else RunStatus.BUDGET
            # Rejects may have been written for chunks that no sink ended, if a node left early.
            _remove_uncommitted(job, state, temporary_only=ended is not RunStatus.DONE or not state.salvaged)
            if ended is RunStatus.DONE:
                for name, op in job.graph.with_role(Concludes).items():
                    conclude(name, op, job.directory, job.settings.ending_s)
        return ended, executor.left_in_close
    except Interrupted as error:
        return RunStatus.INTERRUPTED, error
    except BaseException as error:
        expected = isinstance(error, PipelineError) and error.exit_code is not ExitCode.FAILED
        cause = None if expected else error.__cause__ or error
        log.error("%s", error, exc_info=cause, extra=FILE_ONLY)  # now, before errors that it causes
        return RunStatus.FAILED, error


@contextmanager
def _quick_switches() -> Iterator[None]:
    """Have a thread that waits for the interpreter get it soon. The one that decodes gives it up at every call into
    llama.cpp and must get it back to form the next step. Python lets others compute for 5 ms before it asks them; a
    step of a small model takes less."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def _clear_away(attempt: Attempt) -> None:
    """Remove what an earlier attempt has left, and write config.yaml and the first status.json."""
    job, state = attempt.job, attempt.state
    told.clear()
    # If the state replaces a damaged one, files that it does not list may be all that is left of the results: keep
    # each until it is written again.
    _remove_uncommitted(job, state, temporary_only=state.salvaged)
    remove_concluded(job.graph, job.directory)
    text = to_yaml(job.settings)
    changed = "; ".join(changes(state.config, text))
    log.info("attempt %d begins%s", attempt.context.attempt, changed and f", {changed}", extra=FILE_ONLY)
    state.note(config=text, origin=origin())
    write_atomically(job.directory / CONFIG, text)
    reached(Failpoint.CONFIG_WRITTEN)
    attempt.recorder.start()


def _remove_uncommitted(job: CheckedJob, state: RunState, *, temporary_only: bool) -> None:
    keep = {shard.path for shard in state.shards()}
    if removed := remove_parts(job.directory, keep, temporary_only=temporary_only):
        log.info("removed %d files that were not committed", removed)


def _begin(job: CheckedJob, state: RunState, publisher: Publisher | None, results: Replacing) -> None:
    """Check, now that all operators are open, that this machine gives the bytes of those that began the run, as the
    cluster does for workers. Then nothing can be refused any more, and results are replaced."""
    settings = job.settings
    if settings.cluster is None and settings.engine.deterministic and settings.other_bits == REFUSE:
        keep_or_compare(state, identities_of(job.graph))
    if results.keeps:
        if publisher is not None:
            publisher.begin(overwrite=settings.overwrite)
        remove_card(job.directory)
    results.begun()


def _publish(job: CheckedJob, state: RunState, publisher: Publisher | None, outcome: Outcome) -> Outcome:
    """Write the card of a finished run, and publish the rest of it. Returns the outcome of all of it."""
    if outcome.error is not None and not isinstance(outcome.error, PipelineError):
        raise outcome.error
    if outcome.status is RunStatus.DONE:
        outcome = replace(outcome, exit_code=_published(job, state, publisher, outcome.exit_code))
        if publisher is not None and publisher.failure is not None:
            outcome = replace(outcome, error=PublishError(publisher.failure))
    elif publisher is not None:
        publisher.say_unfinished()
    return outcome


def _published(job: CheckedJob, state: RunState, publisher: Publisher | None, code: ExitCode) -> ExitCode:
    """Write the card and publish what is not yet. Returns `code`, of the run itself, unless that fails."""
    limit_s = job.settings.ending_s
    within(limit_s, "the dataset card", partial(keep_card, job.settings, job.directory, state))
    published = ExitCode.DONE if publisher is None else publisher.finish(limit_s)
    return code if published is ExitCode.DONE else published
