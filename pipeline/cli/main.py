"""The command line: a bare first word is a command, everything else composes a job with Hydra and runs it."""

from __future__ import annotations

import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf

from pipeline.api.errors import ConfigError, ExitCode, PipelineError, did_you_mean
from pipeline.api.runtime import Resources
from pipeline.cli import completion, status, verify
from pipeline.cli.sweep import SweptJob, sweep_lines
from pipeline.cli.usage import notes, refuse_dashes
from pipeline.config.build import Job, build_graph, load_object
from pipeline.config.compose import (
    COMPOSITION_ERRORS,
    CONF,
    explained,
    known_keys,
    overrides_given,
    register,
    register_job,
    settings_of,
)
from pipeline.config.jobs import SUFFIXES, find_job, jobs_table, list_jobs
from pipeline.dry_run.estimate import estimate
from pipeline.dry_run.plan import plan_lines
from pipeline.monitor.prometheus import refuse_nowhere
from pipeline.publish.uploader import destination_of
from pipeline.run.admission import standing, standing_lines
from pipeline.run.job import run_job
from pipeline.run.memory_check import check_memory
from pipeline.settings import PLAN, JobSettings
from pipeline.system.failpoints import Failpoint, reached
from pipeline.system.redaction import refuse_noted_credentials
from pipeline.system.signals import NOTHING_RUNS, leave, signals_received, stopped_by_signals
from pipeline.system.terminal import say, stop_saying

HELP = """\
usage: python -m pipeline job=NAME [KEY=VALUE ...]        run a job
       python -m pipeline job=path/to/file.yaml ...       run a job file of your own
       python -m pipeline job=NAME -m seed=0,1,2          run it for each value (a sweep)
       python -m pipeline {commands}

{jobs}

settings that matter most:
  data.path=FILE             prompts: Parquet, JSONL, CSV or Arrow; a file, a directory, a glob or a URL
  data.prompt_column=NAME    the column that holds the prompt (default: prompt)
  model.path=FILE            the GGUF file (with model=gguf)
  model.system=TEXT          a system prompt for every row
  sampling.max_tokens=N      tokens of a completion at most
  sampling.temperature=X     0 always takes the most likely token
  runtime.slots=N            rows that decode at the same time
  seed=N                     of everything that is drawn
  target.accepted_rows=N     go through the prompts again and again until N rows have passed (docs/synthesis.md)
  output=jsonl               files of JSON lines, or output=arrow, instead of Parquet
  output_dir=DIR             where the results go (default: outputs/NAME); the same command resumes there
  overwrite=true             replace results that were made with other settings

  dry_run=true checks everything, loads the model and estimates rows, tokens, time, memory and disk (half a minute);
  dry_run=plan checks what needs no model, show=graph prints the graph, --cfg job the composed settings.
  --config-dir DIR adds your own config groups and jobs (DIR/job/NAME.yaml).

commands:
  compare outputs/A outputs/B   two runs side by side
  completion                    a script for bash: source <(python -m pipeline completion)
  doctor                        is this machine set up
  jobs                          the jobs
  operators [NAME ...]          what jobs are made of
  report outputs/NAME           make its report.html again (a run writes one, unless report=false)
  status outputs/NAME           how far a run is, from another terminal; --json for programs
  verify outputs/NAME           are its results whole; with repair=true what is damaged is made again

exit codes: 0 done, 1 failed, 2 configuration or input that cannot work, 3 done but too many rows were rejected,
            4 interrupted (the same command resumes), 5 a budget was spent before the target was reached
"""
_SEVERITY = (
    ExitCode.DONE,
    ExitCode.BUDGET,
    ExitCode.REJECTS,
    ExitCode.INTERRUPTED,
    ExitCode.CONFIG,
    ExitCode.FAILED,
)
_JOB_ARGUMENT = re.compile(r"(\+{0,2}job=)(.+)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with stopped_by_signals(leave, NOTHING_RUNS):
            code = _dispatch(arguments)
            sys.stdout.flush()
    except BrokenPipeError:  # of stdout: a run answers for its own errors
        stop_saying()
        code = ExitCode.FAILED
    except Exception as error:
        code = _told(error)
    # A process that was told to stop never says that all is well: it may have left out what was to come.
    return int(worst((ExitCode(code), ExitCode.INTERRUPTED)) if signals_received() else code)


def worst(codes: Sequence[ExitCode]) -> ExitCode:
    """The most serious of `codes`; DONE when there is none."""
    return max(codes, key=_SEVERITY.index, default=ExitCode.DONE)


def _told(error: Exception) -> ExitCode:
    """Say on stderr what went wrong; with a traceback where no one has foreseen it."""
    if isinstance(error, PipelineError):
        print(f"error: {error}", file=sys.stderr)
        return ExitCode(error.exit_code)
    print(f"error: not foreseen: {type(error).__name__}: {error}; what led to it:", file=sys.stderr)
    traceback.print_exception(error)
    return ExitCode.FAILED


def _dispatch(arguments: list[str]) -> int:
    first, helped = arguments[0] if arguments else "", bool({"--help", "-h"} & set(arguments))
    if first in COMMANDS and not helped:
        return COMMANDS[first](arguments[1:])
    dirs = _config_dirs(arguments)
    if first and "=" not in first and not first.startswith("-") and first not in COMMANDS:
        raise ConfigError(f"unknown command '{first}'{_meant(arguments, dirs)}")
    if helped:
        print(HELP.format(commands=" | ".join(COMMANDS), jobs=jobs_table(dirs)))
        return ExitCode.DONE
    refuse_dashes(arguments, known_keys)
    return _compose_and_run(_with_jobs(arguments, dirs))


def _meant(arguments: Sequence[str], dirs: Sequence[Path]) -> str:
    """What to write instead of words that are no command: `ask.yaml`, `run ask.yaml`, `quickstart`."""
    names = [job.name for job in list_jobs(dirs)]
    if job := next((a for a in arguments[:2] if a.endswith(SUFFIXES) or a in names), None):
        return f"; a job is run with job={job}"
    return did_you_mean(arguments[0], COMMANDS) or f"; the commands are {', '.join(COMMANDS)}, and a job is job=NAME"


def _doctor(arguments: list[str]) -> int:
    return int(load_object("tools.build.doctor:main")(arguments))


def _verify(arguments: list[str]) -> int:
    return verify.main(arguments)


def _report(arguments: list[str]) -> int:
    return int(load_object("pipeline.cli.report:main")(arguments))


def _compare(arguments: list[str]) -> int:
    return int(load_object("pipeline.cli.compare:main")(arguments))


def _status(arguments: list[str]) -> int:
    return status.main(arguments)


def _completion(arguments: list[str]) -> int:
    return completion.main(arguments, COMMANDS)


def _jobs(arguments: list[str]) -> int:
    print(jobs_table(_config_dirs(arguments)))
    return ExitCode.DONE


def _operators(arguments: list[str]) -> int:
    return int(load_object("operators.catalog:main")(arguments))


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "compare": _compare,
    "completion": _completion,
    "doctor": _doctor,
    "jobs": _jobs,
    "operators": _operators,
    "report": _report,
    "status": _status,
    "verify": _verify,
}


def _config_dirs(arguments: Sequence[str]) -> list[Path]:
    given = [a.partition("=")[2] for a in arguments if a.startswith("--config-dir=")]
    given += [b for a, b in itertools.pairwise(arguments) if a in ("--config-dir", "-cd")]
    for folder in given:
        if not Path(folder).is_dir():
            raise ConfigError(f"--config-dir {folder}: there is no such directory")
    return [Path(folder) for folder in given]


def _with_jobs(arguments: list[str], dirs: Sequence[Path]) -> list[str]:
    """The arguments with every job registered and named by its key. In a sweep `job=a,b` names several."""
    rewritten: list[str] = []
    named = ""
    for argument in arguments:
        if match := _JOB_ARGUMENT.fullmatch(argument):
            if named:
                raise ConfigError(f"'{named}' and '{argument}': one job is run; several are a sweep, -m job=ONE,OTHER")
            named = argument
            jobs = [find_job(name, dirs) for name in match[2].split(",")]
            for job in jobs:
                register_job(job)
            argument = match[1] + ",".join(job.key for job in jobs)
        rewritten.append(argument)
    if not named:
        raise ConfigError(f"no job is given; write job=NAME (--help tells more)\n{jobs_table(dirs)}")
    return rewritten


def _compose_and_run(arguments: list[str]) -> int:
    refuse_noted_credentials(arguments)
    register()
    jobs: list[SweptJob] = []
    process = Resources()

    def task(config: DictConfig) -> None:
        overrides = overrides_given()
        stopped = signals_received() or any(job.code is ExitCode.INTERRUPTED for job in jobs)
        jobs.append(SweptJob(overrides, None) if stopped else _run_one(config, overrides, process))

    compose = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(task)
    try:
        with _command_line(_options_last(arguments)):
            compose()
    except COMPOSITION_ERRORS as error:
        raise explained(error) from error
    except Exception as error:
        if jobs or isinstance(error, PipelineError):
            raise
        # Hydra and OmegaConf trip over some files without an error of their own.
        raise ConfigError(f"the job cannot be composed: {type(error).__name__}: {error}") from error
    except SystemExit as end:  # Hydra's own ways out: its argument parser, --version
        return end.code if isinstance(end.code, int) else ExitCode.CONFIG
    finally:
        process.close()
    if len(jobs) > 1:
        print("\n".join(["", *sweep_lines(jobs)]))
    return worst([job.code for job in jobs if job.code is not None])


def _options_last(arguments: Sequence[str]) -> list[str]:
    """Hydra's argument parser takes the overrides only in one piece: `job=x -m seed=1,2` would be refused."""
    overrides = [a for a in arguments if a.startswith("~") or ("=" in a and not a.startswith("-"))]
    return overrides + [a for a in arguments if a not in overrides]


def _run_one(config: DictConfig, overrides: tuple[str, ...], process: Resources) -> SweptJob:
    """Run one job of a sweep, or the only one. Its error must not keep the others from running."""
    reached(Failpoint.CONFIG_COMPOSED)
    directory = None
    try:
        settings = settings_of(config)
        for note in notes(OmegaConf.to_container(config)):
            print(note, file=sys.stderr)
        directory = settings.directory
        code = _show(settings, process) if settings.show or settings.dry_run else run_job(settings, process)
    except Exception as error:
        code = _told(error)
    return SweptJob(overrides, code, directory)


def _show(settings: JobSettings, process: Resources) -> ExitCode:
    graph = build_graph(settings)
    if settings.dry_run:
        destination_of(settings)
        refuse_nowhere(settings.prometheus_file)
    say([graph.to_mermaid()] if settings.show else plan_lines(settings, graph))
    if settings.dry_run:
        check_memory(settings, graph)
    if settings.dry_run == PLAN:
        say(standing_lines(standing(Job.of(settings, graph))))
    if settings.dry_run is True:
        for line in estimate(settings, graph, process):
            say([line])
    return ExitCode.DONE


@contextmanager
def _command_line(arguments: Sequence[str]) -> Iterator[None]:
    """Hydra reads sys.argv, and reports errors itself unless HYDRA_FULL_ERROR has it raise them."""
    argv, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["python -m pipeline", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full
