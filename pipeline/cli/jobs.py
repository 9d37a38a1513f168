"""`python -m pipeline jobs`: list the jobs. `schema`: print what editors check job files with. `completion`: print a
script that completes the arguments in bash.

The script contains all words, so a Tab starts no Python. Hydra's own completion works only for a program with a name of
its own, not for `python -m pipeline`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.api.errors import ExitCode
from pipeline.cli.commands import COMMANDS, config_dir, parser_of
from pipeline.config.annotations import INTERPOLATION, Schema, any_of, schema_of
from pipeline.config.build import TARGET, load_object
from pipeline.config.expand import OVERRIDDEN, STEP
from pipeline.config.jobs import jobs_table, list_jobs
from pipeline.config.keys import known_keys, options, schemas
from pipeline.settings import JobSettings, NodeSettings
from pipeline.system.terminal import say

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


def main(arguments: Sequence[str]) -> ExitCode:
    """Print the list of jobs."""
    say([jobs_table(_config_dirs("jobs", arguments))])
    return ExitCode.DONE


def completion(arguments: Sequence[str]) -> ExitCode:
    """Print the script."""
    say([SCRIPT.format(words="\n".join(_words(_config_dirs("completion", arguments)))).rstrip("\n")])
    return ExitCode.DONE


def schema(arguments: Sequence[str]) -> ExitCode:
    """Print the JSON schema of job files."""
    parser_of("schema").parse_args(arguments)
    say([json.dumps(of_jobs(), indent=1)])
    return ExitCode.DONE


def _config_dirs(command: str, arguments: Sequence[str]) -> list[Path]:
    parser = parser_of(command)
    parser.add_argument("--config-dir", "-cd", action="append", default=[], type=config_dir)
    folders: list[Path] = parser.parse_args(arguments).config_dir
    return folders


def _words(folders: Sequence[Path]) -> Iterator[str]:
    """Yield commands, jobs, options of config groups, and `key=` for each setting. `folders`: of `--config-dir`."""
    yield from COMMANDS
    yield from (f"job={job.name}" for job in list_jobs(folders))
    named = {f"{path.parent.name}={path.stem}" for folder in folders for path in folder.glob("*/*.yaml")}
    named |= {f"{group}={name}" for group, names in options().items() for name in names}
    yield from sorted(option for option in named if not option.startswith("job="))
    yield from (f"{key}=" for key in known_keys())
    yield from ("dry_run=true", "dry_run=plan", "overwrite=true", "show=graph", "--config-dir", "--help", "-m")


def of_jobs() -> Schema:
    """Return the schema of a job file, by which editors complete keys, explain them and mark what cannot be. It is
    wider than the check of a run, which knows values and the rest of the job: what it marks, a run refuses, but for
    numbers that are written as texts."""
    groups = {group: any_of(map(schema_of, options.values())) for group, options in schemas().items()}
    refer = {group: {"$ref": f"#/$defs/{group}"} for group in groups}
    node, step, job = schema_of(NodeSettings), schema_of(load_object(STEP)), schema_of(JobSettings)
    node["properties"]["op"] = step["properties"]["op"] = {"$ref": "#/$defs/operator"}
    step["properties"] |= {group: refer[group] for group in OVERRIDDEN}
    keys = job["properties"] | {group: any_of([refer[group], {"type": "null"}]) for group in groups}
    for name, each in (("steps", step), ("nodes", node)):
        keys[name] = {"type": "object", "additionalProperties": each, "description": keys[name]["description"]}
    keys["defaults"] = {"type": "array", "description": "options of config groups: `- override /model: gguf`"}
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "a job of python -m pipeline"}
    return title | job | {"properties": keys, "$defs": groups | {"operator": _of_operator()}}


def _of_operator() -> Schema:
    """Return the schema of `op`: arguments are known where `_target_` is one of our operators."""
    targets = load_object("operators:targets")()
    rules = []
    for target in targets:
        arguments = schema_of(load_object(target))
        arguments["properties"][TARGET] = {"const": target}
        rules.append({"if": {"properties": {TARGET: {"const": target}}, "required": [TARGET]}, "then": arguments})
    named = {TARGET: {"type": "string", "examples": targets}}
    return any_of([INTERPOLATION, {"type": "object", "properties": named, "allOf": rules}])
