"""The command `completion`: a script with which bash completes the arguments of `python -m pipeline`.

It holds the words themselves, so a Tab starts no Python. Hydra's own completion needs a program of its own to complete,
and there is none: people type `python -m pipeline`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pipeline.api.errors import ExitCode
from pipeline.cli.usage import senseless
from pipeline.config.compose import CONF, known_keys
from pipeline.config.jobs import list_jobs

USAGE = "say: python -m pipeline completion [--config-dir DIR]"
SCRIPT = """\
# Bash completion for `python -m pipeline`, made by `python -m pipeline completion`.
_pipeline_words='
{words}
'
_pipeline() {{
    COMPREPLY=()
    [[ ${{COMP_WORDS[1]}} == -m && ${{COMP_WORDS[2]}} == pipeline ]] || return 0
    local line=${{COMP_LINE:0:COMP_POINT}} IFS=$'\\n' begun=''
    local word=${{line##*[[:space:]]}}
    COMPREPLY=($(compgen -W "$_pipeline_words" -- "$word"))
    [[ $word == *=* && $COMP_WORDBREAKS == *=* ]] && begun=${{word%%=*}}= # bash replaces what is behind it
    COMPREPLY=("${{COMPREPLY[@]#"$begun"}}")
    [[ ${{#COMPREPLY[@]}} == 1 && ${{COMPREPLY[0]}} == *= ]] && compopt -o nospace 2>/dev/null
    return 0
}}
complete -o default -F _pipeline python python3
"""


def main(arguments: Sequence[str], commands: Collection[str]) -> ExitCode:
    """Print the script.

    Args:
        arguments: `--config-dir DIR`, any number of times: folders with jobs and options of one's own.
        commands: the names of the other commands.

    Raises:
        ConfigError: there are other arguments.
    """
    flags, folders = arguments[::2], arguments[1::2]
    if len(flags) != len(folders) or set(flags) - {"--config-dir"}:
        raise senseless("completion", arguments, USAGE)
    print(SCRIPT.format(words="\n".join(words([Path(folder) for folder in folders], commands))), end="")
    return ExitCode.DONE


def words(folders: Sequence[Path], commands: Collection[str]) -> Iterator[str]:
    """What can be typed: commands, jobs, the options of each group, and the beginning `key=` of each setting."""
    yield from sorted(commands)
    yield from (f"job={job.name}" for job in list_jobs(folders))
    for option in sorted(path for folder in (CONF, *folders) for path in folder.glob("*/*.yaml")):
        if option.parent.name != "job":
            yield f"{option.parent.name}={option.stem}"
    yield from (f"{key}=" for key in known_keys())
    yield from ("dry_run=true", "dry_run=plan", "overwrite=true", "show=graph", "--config-dir", "--help", "-m")
