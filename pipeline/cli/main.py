"""The command line: a first word without `=` is a command; anything else is a job, composed with Hydra and run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.api.errors import ConfigError, ExitCode, did_you_mean, worst
from pipeline.api.removed import removed
from pipeline.cli.commands import COMMANDS
from pipeline.cli.run import config_dirs_of, print_error, run_jobs
from pipeline.config.jobs import SUFFIXES, jobs_table, list_jobs
from pipeline.system.signals import NOTHING_RUNS, leave, signals_received, stopped_by_signals
from pipeline.system.terminal import dropping, say, silence

HELP = """\
usage: python -m pipeline job=NAME [KEY=VALUE ...]        run a job
       python -m pipeline job=path/to/file.yaml ...       run a job file of your own
       python -m pipeline job=NAME -m seed=0,1,2          run it for each value (a sweep)
       python -m pipeline COMMAND ...                     run a command (COMMAND --help tells more)

{jobs}

settings that matter most:
  data.path=FILE             prompts (Parquet, JSONL, CSV ...): a file, a directory, a glob or a URL
  data.prompt_column=NAME    the column that holds the prompt (default: prompt)
  model.path=FILE            the GGUF file (with model=gguf)
  model.system=TEXT          a system prompt for every row
  sampling.max_tokens=N      tokens of a completion at most
  sampling.temperature=X     0 always takes the most likely token
  runtime.slots=N            rows that decode at the same time
  seed=N                     random seed
  target.accepted_rows=N     loop over the prompts until N rows have passed all filters (docs/synthesis.md)
  output=jsonl               files of JSON lines, or output=arrow, instead of Parquet
  output_dir=DIR             where the results go (default: outputs/NAME); the same command resumes there
  overwrite=true             replace results that were made with other settings

  dry_run=true checks everything, loads the model and estimates rows, tokens, time, memory and disk (half a minute);
  dry_run=plan checks what needs no model, show=graph prints the graph, --cfg job the composed settings.
  --config-dir DIR adds your own config groups and jobs (DIR/job/NAME.yaml).

commands:
{commands}

exit codes: 0 done, 1 failed, 2 configuration or input that cannot work, 3 done but too many rows were rejected,
            4 interrupted (the same command resumes), 5 a budget was spent before the target was reached
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with dropping("stderr"):
        try:
            with stopped_by_signals(leave, NOTHING_RUNS):
                code = _dispatch(arguments)
                if sys.stdout is not None:  # an operator may have set it so
                    sys.stdout.flush()
        except SystemExit as end:  # of argparse and of Hydra, which have said why; user code has a boundary
            code = end.code if isinstance(end.code, int) else ExitCode.CONFIG
        except BrokenPipeError:  # of stdout: a run answers for its own errors
            silence(sys.stdout)
            code = ExitCode.FAILED
        except BaseException as error:
            code = print_error(error)
    # After a signal the exit code is never 0: the process may have skipped work.
    return int(worst((ExitCode(code), ExitCode.INTERRUPTED)) if signals_received() else code)


def _dispatch(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in COMMANDS:
        command = COMMANDS[first]
        return int(getattr(importlib.import_module(command.module), command.function)(arguments[1:]))
    dirs = config_dirs_of(arguments)
    if first and "=" not in first and not first.startswith("-"):
        raise ConfigError(removed(first) or f"unknown command '{first}'{_suggestion(arguments, dirs)}")
    if {"--help", "-h"} & set(arguments):
        commands = "\n".join(f"  {f'{name} {c.usage}':35} {c.about}" for name, c in COMMANDS.items())
        say([HELP.format(commands=commands, jobs=jobs_table(dirs))])
        return ExitCode.DONE
    with dropping("stdout"):
        return run_jobs(arguments, dirs)


def _suggestion(arguments: Sequence[str], dirs: Sequence[Path]) -> str:
    """Return what to write instead of an unknown command such as `ask.yaml`, `run ask.yaml` or `quickstart`."""
    names = [job.name for job in list_jobs(dirs)]
    if job := next((a for a in arguments[:2] if a.endswith(SUFFIXES) or a in names), None):
        return f"; a job is run with job={job}"
    return did_you_mean(arguments[0], COMMANDS) or f"; the commands are {', '.join(COMMANDS)}, and a job is job=NAME"
