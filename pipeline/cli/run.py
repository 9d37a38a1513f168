"""Compose the jobs of a command line with Hydra and run them one after the other."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import hydra
import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from pipeline.api.errors import ConfigError, ExitCode, HookFailed, PipelineError, worst
from pipeline.api.runtime import Resources
from pipeline.api.user_code import or_else
from pipeline.cli.commands import PROGRAM, config_dir
from pipeline.cluster.segments import places
from pipeline.config.build import build_graph
from pipeline.config.compose import COMPOSITION_ERRORS, register, register_job, settings_of
from pipeline.config.explain import PARSER, explain, for_hydra
from pipeline.config.jobs import find_job, jobs_table
from pipeline.config.keys import CONF, known_keys
from pipeline.config.sweeps import key_and_value, overrides_given
from pipeline.dry_run.estimate import dry_run_lines
from pipeline.monitor.summary import Outcome
from pipeline.results.sweep_table import SweptRun, keep_table, sweep_lines, table_of
from pipeline.runs.run import run_job
from pipeline.settings import JobSettings
from pipeline.system.deadlines import ENDING_S, within
from pipeline.system.failpoints import Failpoint, reached
from pipeline.system.known_secrets import hidden
from pipeline.system.redaction import for_keeping, note_secret_places, refuse_noted_credentials, shown_argument
from pipeline.system.signals import signals_received
from pipeline.system.terminal import complain, say, terminal_width
from pipeline.system.yaml_text import read_yaml, write_yaml

Do = Callable[[JobSettings, Resources], ExitCode]
_JOB_ARGUMENT = re.compile(r"(\+{0,2}job=)(.+)")
GOES_ON = "not begun; the same command goes on"
NOT_RUN = "not run: its settings cannot work, see above"
_DOES_NOTHING: Mapping[str, Any] = {
    **{"run.dir": ".", "output_subdir": None, "job.chdir": False, "job.env_set": {}, "callbacks": {}},
    **{"verbose": False, "job_logging.root": None, "hydra_logging.root": None},
}
"""Settings of Hydra, as conf/config.yaml has them, with which it only composes."""
_TEXTS = ("stop", "bad_words", "system", "template")
_IN_TEMPLATE = re.compile(r"\{[{%].*?[}%]\}", re.DOTALL)
"""Parts of a template in which `\\n` is a line break."""


class SweptJob(NamedTuple):
    """A job of a sweep: the overrides as typed, with one value each, and how it ended."""

    overrides: tuple[str, ...]
    run: SweptRun

    @property
    def code(self) -> ExitCode | None:
        return self.run.code


def print_error(error: BaseException) -> ExitCode:
    """Print `error` on stderr, with a traceback unless it is a PipelineError that says what to do. Returns the exit
    code."""
    if isinstance(error, PipelineError):
        complain(f"error: {error}")
        if isinstance(error, HookFailed):
            complain("".join(traceback.format_exception(error.__cause__)).rstrip())
        return ExitCode(error.exit_code)
    complain(f"error: not foreseen: {type(error).__name__}: {error}; what led to it:")
    complain("".join(traceback.format_exception(error)).rstrip())
    return ExitCode.FAILED


def config_dirs_of(arguments: Sequence[str]) -> list[Path]:
    """Return the values of `--config-dir` in the arguments of a job, which Hydra parses later."""
    folders = [a.partition("=")[2] for a in arguments if a.startswith("--config-dir=")]
    folders += [b for a, b in itertools.pairwise(arguments) if a in ("--config-dir", "-cd")]
    return [config_dir(folder) for folder in folders]


def run_jobs(arguments: Sequence[str], dirs: Sequence[Path], do: Do | None = None) -> ExitCode:
    """Compose and run the job in `arguments`, or all jobs of a sweep. Returns the most severe exit code. `do`: what is
    done with each instead. Raises ConfigError if no job is named, or it cannot be composed."""
    _refuse_dashes(arguments)
    arguments = [for_hydra(argument) for argument in _with_jobs(arguments, dirs)]
    register()
    _note_secrets(arguments)
    jobs: list[SweptJob] = []
    process = Resources()

    def task(config: DictConfig) -> None:
        overrides = overrides_given()
        stopped = signals_received() or any(job.code is ExitCode.INTERRUPTED for job in jobs)
        late = SweptJob(overrides, SweptRun({}, None, why=GOES_ON))
        jobs.append(late if stopped else _run_one(config, overrides, process, do))
        process.close_unused()

    try:
        with _command_line(_options_last(arguments)):
            if {"-c", "--cfg", "-i", "--info"} & {argument.partition("=")[0] for argument in arguments}:
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    _compose_and_call(task)
                say([_without_secrets(output.getvalue()).rstrip("\n")])
            else:
                _compose_and_call(task)
    except COMPOSITION_ERRORS as error:
        raise explain(error) from error
    except Exception as error:
        if jobs or isinstance(error, PipelineError):
            raise
        # On some files Hydra and OmegaConf fail with exceptions of any type.
        raise ConfigError(f"the job cannot be composed: {type(error).__name__}: {error}") from error
    finally:
        or_else("models cannot be closed", lambda: within(ENDING_S, "closing the models", process.close), None)
    if len(jobs) > 1:
        _show_sweep(jobs)
    return worst([job.code for job in jobs if job.code is not None])


def _compose_and_call(task: Callable[[DictConfig], None]) -> None:
    """Have Hydra compose the jobs in sys.argv and call `task` with each.

    `hydra.main` composes a job twice, at first to learn whether it is a sweep, and copies it several times for what
    else Hydra does. Here one that is none, and for which it does nothing else, is composed once and passed on; others
    are left to `hydra.main`.
    """
    overrides = sys.argv[1:]
    options = any(argument.startswith("-") for argument in overrides)
    if not options and not any(override.is_sweep_override() for override in PARSER.parse_overrides(overrides)):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = GlobalHydra.instance().hydra.compose_config("config", overrides, RunMode.RUN)  # type: ignore[union-attr]
            if config.hydra.mode in (None, RunMode.RUN) and _does_nothing_else(config.hydra):
                return _call(task, config)
    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(task)()
    return None


def _does_nothing_else(of_hydra: DictConfig) -> bool:
    """Return True if Hydra would set no variable, directory or logging of the process and write no file, and what it
    says of the job refers to no other setting, which `_call` takes away."""
    refers = "${" in str(OmegaConf.to_container(of_hydra.job))
    return not refers and all(OmegaConf.select(of_hydra, key) == value for key, value in _DOES_NOTHING.items())


def _call(task: Callable[[DictConfig], None], config: DictConfig) -> None:
    """Call `task` with a composed config without its settings of Hydra, which HydraConfig has meanwhile."""
    config.hydra.mode, config.hydra.runtime.output_dir = RunMode.RUN, str(Path.cwd())
    known = HydraConfig.instance()
    before = known.cfg
    known.set_config(config)
    try:
        with open_dict(config):
            del config["hydra"]
        task(config)
    finally:
        known.cfg = before


def _note_secrets(arguments: Sequence[str]) -> None:
    """Note what is secret on the command line, so that no message has it. Raises ConfigError in a sweep."""
    values: dict[str, Any] = {}
    for argument in (argument for argument in arguments if "=" in argument and not argument.startswith("-")):
        with suppress(Exception):  # of Hydra's parser, which may raise anything: composing says it
            override = PARSER.parse_override(argument)
            value = None if override.is_sweep_override() else override.value()
            values[override.key_or_group] = argument.partition("=")[2] if value is None else value
    for key, value in values.items():
        note_secret_places(value, tuple(key.split(".")))
    if {"-m", "--multirun"} & set(arguments):
        refuse_noted_credentials(values)


def _without_secrets(text: str) -> str:
    """Return composed settings (YAML) without secrets; as they are if they have none, or are no YAML."""
    with suppress(yaml.YAMLError):
        settings = read_yaml(text)
        kept = for_keeping(settings)
        text = text if kept == settings else write_yaml(kept)
    return text


def _refuse_dashes(arguments: Sequence[str]) -> None:
    """Refuse a setting written like an option: `--seed=3`, `--dry-run`."""
    for argument in arguments:
        option = re.fullmatch(r"-{1,2}([A-Za-z][\w.-]*)(?:=(.*))?", argument, re.DOTALL)
        key = option[1].replace("-", "_") if option else ""
        if option and len(key) > 1 and key in known_keys():
            value = "VALUE" if option[2] is None else option[2]
            shown = shown_argument(f"{key}={value}")
            raise ConfigError(f"{argument.partition('=')[0]}: settings have no dashes; write {shown}")


def _with_jobs(arguments: Sequence[str], dirs: Sequence[Path]) -> list[str]:
    """Register the jobs in `job=NAME` (in a sweep `job=a,b`); return the arguments with their keys for the names."""
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


def _options_last(arguments: Sequence[str]) -> list[str]:
    """Return the overrides first, then the options: Hydra's parser would refuse `job=x -m seed=1,2`."""
    overrides = [a for a in arguments if a.startswith("~") or ("=" in a and not a.startswith("-"))]
    return overrides + [a for a in arguments if a not in overrides]


@contextmanager
def _command_line(arguments: Sequence[str]) -> Iterator[None]:
    """Set sys.argv for Hydra during the block, and have it raise its errors instead of printing them."""
    os.environ["HYDRA_FULL_ERROR"] = "1"
    arguments_before, sys.argv = sys.argv, [PROGRAM, *arguments]
    try:
        yield
    finally:
        sys.argv = arguments_before


def _run_one(config: DictConfig, overrides: tuple[str, ...], process: Resources, do: Do | None) -> SweptJob:
    """Run one job. Its error is printed, so that the other jobs of a sweep run all the same."""
    reached(Failpoint.CONFIG_COMPOSED)
    directory: Path | None = None
    seen: list[Outcome] = []
    ran, why = False, ""
    try:
        settings = settings_of(config)
        if (hydra_has := HydraConfig.get()).mode == RunMode.MULTIRUN:
            noted = Path(hydra_has.sweep.dir) / "multirun.yaml"  # has the secrets of the job file
            with suppress(OSError):
                noted.write_text(hidden(_without_secrets(noted.read_text(encoding="utf-8"))), encoding="utf-8")
        for note in _notes(OmegaConf.to_container(config)):
            complain(note)
        directory = settings.directory
        if do or settings.show or settings.dry_run:
            code = (do or _show)(settings, process)
        else:
            code, ran = run_job(settings, process, seen), True
    except BaseException as error:
        code, ran = print_error(error), bool(seen)
        why = NOT_RUN if directory is None else str(error)
    if seen and seen[-1].error is not None:
        why = str(seen[-1].error)
    return SweptJob(overrides, SweptRun({}, code, directory, ran, why))


def _notes(settings: object, key: str = "") -> Iterator[str]:
    """Yield a note for each prompt text or stop string with a literal `\\n`, which may be meant as a line break."""
    if isinstance(settings, Mapping):
        for name, inside in settings.items():
            yield from _notes(inside, f"{key}.{name}" if key else str(name))
        return
    texts = settings if isinstance(settings, list) else [settings]
    written = [_IN_TEMPLATE.sub("", text) for text in texts if isinstance(text, str)]
    if key.rpartition(".")[2] in _TEXTS and any("\\n" in text for text in written):
        yield (
            f"note: {key}: \\n is a backslash and an n here; for a line break write $'{key}=...\\n...' (in bash and"
            ' zsh), or in a job file "...\\n..." in double quotes'
        )


def _show(settings: JobSettings, process: Resources) -> ExitCode:
    graph = build_graph(settings)
    if settings.show:
        say([graph.to_mermaid(places(graph) if settings.cluster else None)])
    if settings.dry_run:
        for line in dry_run_lines(settings, graph, process):
            say([line])
    return ExitCode.DONE


def _show_sweep(jobs: Sequence[SweptJob]) -> None:
    """Print the table of a sweep and, if any job ran, write it as Parquet."""
    common = set(jobs[0].overrides).intersection(*(job.overrides for job in jobs))
    swept = [dict(key_and_value(o) for o in job.overrides if o not in common) for job in jobs]
    runs = [job.run._replace(settings=settings) for job, settings in zip(jobs, swept, strict=True)]
    table = table_of(runs)
    say(["", *sweep_lines(table, keep_table(table, runs), terminal_width())])
