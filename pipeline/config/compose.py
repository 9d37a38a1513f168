"""The door: registers schemas and jobs with Hydra, and turns a composed config into plain settings.

Together with `pipeline.cli.main` the only place that knows Hydra and OmegaConf.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, StringNode
from omegaconf.errors import OmegaConfBaseException, ValidationError

from pipeline import PROJECT
from pipeline.api.errors import ConfigError, did_you_mean
from pipeline.config.build import load_object
from pipeline.config.explain import NO_TEXT, ambiguous_argument, unreadable_argument, unreadable_yaml, wrong_value
from pipeline.config.jobs import JobFile
from pipeline.run_dir.names import CONFIG
from pipeline.settings import GROUPS, HookSettings, JobSettings, NodeSettings, TargetSettings
from pipeline.system.redaction import STORAGE_OPTIONS

CONF = PROJECT / "conf"
SCHEMA = "schema"
FREE_FORM = (
    *("data.storage_options", "data.schema", "data.rename", "model.options", "output.storage_options"),
    *("sampling.logit_bias", "sampling.structured.json_schema"),
)
"""Settings whose keys are the user's own."""
COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)
"""What Hydra raises for a config that cannot be composed; `explained` turns it into words."""

_NOT_OF_A_SWEEP = ("overwrite", "dry_run", "show", "progress", "output_dir", "output.publish", "output.storage_options")
_SAME_RESULTS = (
    *("max_error_rate", "on_finish", "output.card", "output.retries", "prometheus_file", "report"),
    *("target.max_tokens", "target.max_minutes"),
)
"""These may change from attempt to attempt, so the same sweep with another value goes on; but a sweep over one of them
has a directory for each value."""
_PARSER = OverridesParser.create()
_START = datetime.now()
_as_omegaconf_has_it = StringNode._validate_and_convert_impl
_job_files: dict[str, Path] = {}


def register() -> None:
    """Make the schemas of all config groups and the resolver `project` known to Hydra, and our modules importable."""
    store = ConfigStore.instance()
    store.store(name="schema", node=JobSettings)
    for group, options in schemas().items():
        for name, schema in options.items():
            store.store(group=group, name=name, node=schema)
    OmegaConf.register_new_resolver("project", _in_project, replace=True)
    StringNode._validate_and_convert_impl = _text  # type: ignore[method-assign]
    if str(PROJECT) not in sys.path:
        sys.path.append(str(PROJECT))  # jobs name operators in models/, which is no package that is installed


def register_job(job: JobFile) -> None:
    """Make `job` known as the option `job.key` of the group `job`, and the modules beside it importable.

    Raises:
        ConfigError: the file is not YAML or not a mapping.
    """
    try:
        node = OmegaConf.load(job.path)
    except RecursionError as error:
        raise ConfigError(f"{job.path}: an alias (*name) stands inside of what it names") from error
    except Exception as error:  # PyYAML and OmegaConf trip over some files without an error of their own
        raise ConfigError(f"{job.path} cannot be read as YAML: {unreadable_yaml(error)}") from error
    if not isinstance(node, DictConfig):
        raise ConfigError(f"{job.path} must hold keys and values, for example `data: {{path: prompts.jsonl}}`")
    if "name" not in node:
        node["name"] = job.name
    ConfigStore.instance().store(group="job", name=job.key, node=node, package="_global_")
    _job_files[f"job/{job.key}"] = job.path
    if (folder := str(job.path.parent)) not in sys.path:
        sys.path.append(folder)  # last: a user's module never hides one of ours or of the standard library


def _text(self: StringNode, value: Any) -> str:
    """Refuse numbers and booleans in place of a text: OmegaConf makes the text 'False' of a `no` in YAML."""
    if isinstance(value, bool | int | float) and not str(self._get_full_key(None)).startswith("hydra."):
        raise ValidationError(f"{NO_TEXT} '$VALUE' ('$VALUE_TYPE')")
    return _as_omegaconf_has_it(self, value)


def settings_of(config: DictConfig) -> JobSettings:
    """The settings of a composed config, as dataclasses all the way down.

    Raises:
        ConfigError: a key is unknown, or a value is missing (`???`), has the wrong type, or cannot work.
    """
    if unknown := next(_unknown_keys(config), None):
        raise ConfigError(_unknown_key(unknown))
    settings = _at(config, _START)
    if "${now:" not in OmegaConf.to_yaml(config):
        return settings
    if settings.now is not None:
        return _at(config, datetime.fromisoformat(settings.now))
    # A run has one time, whenever it is resumed: that of its first attempt.
    first = None if settings.overwrite else _first_time(settings.directory / CONFIG)
    if first is not None:
        settings = dataclasses.replace(_at(config, first), output_dir=settings.output_dir)
    return dataclasses.replace(settings, now=(first or _START).isoformat())


def _at(config: DictConfig, time: datetime) -> JobSettings:
    """`settings_of`, where `${now:...}` is `time`."""
    # Hydra registers its own `now`, which reads the clock for every pattern.
    OmegaConf.register_new_resolver("now", lambda pattern: time.strftime(pattern), replace=True)
    try:
        # `to_object` would hand a `???` below `nodes` on as it is.
        OmegaConf.to_container(config.nodes, resolve=True, throw_on_missing=True)
        settings = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise explained(error) from error
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"a value has a type or a size that cannot work: {error}") from error
    if not isinstance(settings, JobSettings):
        raise ConfigError("conf/config.yaml must start its defaults with `schema`")
    return _in_sweep(settings)


def _first_time(saved: Path) -> datetime | None:
    """What `${now:...}` was in the run with that config.yaml; None where there is none, or it does not say."""
    try:
        values = yaml.safe_load(saved.read_text(encoding="utf-8"))
        return datetime.fromisoformat(values["now"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return None


def overrides_given() -> tuple[str, ...]:
    """The overrides of the job that is being composed, as they were typed: an interpolation is not resolved."""
    given = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return tuple(map(str, given)) if isinstance(given, list) else ()


def explained(error: BaseException) -> ConfigError:
    """What is wrong and what to write instead, for an error of COMPOSITION_ERRORS."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options is not None:
        return ConfigError(_unknown_option(error.missing_cfg_file, error.options))
    if isinstance(error, OverrideParseException):
        shown = str(error.override) if STORAGE_OPTIONS not in str(error.override) else f"data.{STORAGE_OPTIONS}=..."
        return ConfigError(unreadable_argument(shown, lambda argument: _PARSER.parse_override(argument).value()))
    text = "\n".join(str(e) for e in _chain(error))
    key = re.search(r"full_key: (\S+)", text)
    where = re.match(r"In '([^']+)'", text)
    place = f" (in {_job_files.get(where[1], where[1])})" if where and where[1] != "config" else ""
    if key and re.search(r"^Key '.*' (is )?not in", text, re.MULTILINE):
        return ConfigError(_unknown_key(key[1]) + place)
    if key and f"not a subclass of {NodeSettings.__name__}" in text:
        return ConfigError(_unknown_in_graph(key[1], ""))
    if missing := re.search(r"missing mandatory value: (\S+)", text, re.IGNORECASE):
        name = key[1] if key and key[1].endswith(missing[1]) else missing[1]
        return ConfigError(f"{name} has no value; write {name}=... on the command line or in the job file")
    if bare := re.search(r"Could not override '(?:job/)?(\w+)(?:@\S*)?'\. No match in the defaults list", text):
        groups = (*GROUPS, "flow")
        near = did_you_mean(bare[1], groups, "/") if bare[1] not in groups else ""
        written = bare[1] if bare[1] in groups else "GROUP"
        return ConfigError(f"in a job's defaults write `- override /{written}: OPTION`{near}{place}")
    if several := re.search(r"Ambiguous value for argument '(.*)'", text):
        return ConfigError(ambiguous_argument(several[1]))
    if twice := re.search(r"Multiple values for (\S+)\. To override a value use 'override \S+: (.+)'", text):
        return ConfigError(f"in a job's defaults write `- override /{twice[1]}: {twice[2]}`")
    says = [line for line in text.splitlines() if line and not _is_noise(line)]
    about = key[1] if key else _group_of(text)
    if about and says and (wants := wrong_value(about, says[-1])):
        return ConfigError(wants + place)
    return ConfigError(f"{key[1]}: {says[-1]}{place}" if key and says else "\n".join(says) or type(error).__name__)


def known_keys() -> list[str]:
    """Every key that can be typed, but for those below `nodes`."""
    top = [f.name for f in dataclasses.fields(JobSettings) if f.name not in (*GROUPS, "nodes", "target")]
    listed = [(group, cls) for group, options in schemas().items() for cls in options.values()]
    top += [f"on_finish.{f.name}" for f in dataclasses.fields(HookSettings)]
    of_target = [f"target.{f.name}" for f in dataclasses.fields(TargetSettings)]
    of_groups = [key for group, cls in listed for key in _keys_of(cls, group)]
    return list(dict.fromkeys(top + of_groups + of_target))


def _keys_of(settings: type[Any], above: str) -> Iterator[str]:
    """The keys of a settings class, and of those inside it."""
    hints = get_type_hints(settings)
    for f in dataclasses.fields(settings):
        yield f"{above}.{f.name}"
        if dataclasses.is_dataclass(hints[f.name]):
            yield from _keys_of(hints[f.name], f"{above}.{f.name}")


@cache
def schemas() -> Mapping[str, Mapping[str, type[Any]]]:
    """The dataclasses of each config group, by the names under which its options can take them."""
    named = yaml.safe_load((CONF / "schemas.yaml").read_text(encoding="utf-8"))
    each = {group: {SCHEMA: given} if isinstance(given, str) else given for group, given in named.items()}
    return {group: {name: load_object(target) for name, target in own.items()} for group, own in each.items()}


def _unknown_in_graph(node: str, key: str) -> str:
    if not key:
        return (
            f"unknown key 'nodes.{node}': there is no such node (show=graph prints them); the command line changes"
            " nodes, and a new one is written in a job file"
        )
    if not key.startswith("op."):
        keys = [f.name for f in dataclasses.fields(NodeSettings)]
        hint = did_you_mean(key, keys)
        return f"unknown key 'nodes.{node}.{key}'{hint}; the keys of a node are {', '.join(keys)}"
    return (
        f"unknown key 'nodes.{node}.{key}' in the graph; to add it write +nodes.{node}.{key}=..., and where a node"
        " takes a whole group (sampling: ${sampling}) set the group's key instead (sampling.temperature=...)"
    )


def _unknown_keys(config: DictConfig, above: str = "") -> Iterator[str]:
    """Keys that the settings classes do not have: what `+` adds comes past OmegaConf's own check."""
    kind = OmegaConf.get_type(config)
    fields = {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else None
    if fields is None and above.removesuffix(".") in GROUPS:  # of which no option is chosen
        fields = set()
    for key in map(str, config):
        inside = config._get_node(key)
        if fields is not None and key not in fields:
            yield f"{above}{key}"
        elif isinstance(inside, DictConfig) and isinstance(inside._value(), dict):  # no interpolation, no null
            yield from _unknown_keys(inside, f"{above}{key}.")


def _in_project(path: str) -> str:
    return str(PROJECT / path)


def _in_sweep(settings: JobSettings) -> JobSettings:
    """In a sweep every job gets a directory of its own, named by a hash of its overrides."""
    hydra = HydraConfig.get() if HydraConfig.initialized() else None
    if hydra is None or hydra.mode != RunMode.MULTIRUN:
        return settings
    overrides = [o for o in overrides_given() if not _is_of_one_run(o)]
    tag = hashlib.sha256(json.dumps(sorted(overrides)).encode()).hexdigest()[:8]
    return dataclasses.replace(settings, output_dir=f"{settings.directory}-{tag}")


def _is_of_one_run(override: str) -> bool:
    """Whether it says how a job is run rather than what it makes."""
    typed = override.partition("=")[0]
    keys = _NOT_OF_A_SWEEP if _is_swept(typed) else _NOT_OF_A_SWEEP + _SAME_RESULTS
    name = typed.lstrip("+")
    return any(name == key or name.startswith(f"{key}.") for key in keys)


def _is_swept(typed: str) -> bool:
    """Whether the key, as it was typed, has several values; also where it stands in no argument of the command."""
    given = [argument for argument in sys.argv[1:] if argument.partition("=")[0] == typed]
    return not given or any(override.is_sweep_override() for override in _PARSER.parse_overrides(given))


def _chain(error: BaseException) -> Iterator[BaseException]:
    while True:
        yield error
        if error.__cause__ is None:
            return
        error = error.__cause__


def _is_noise(line: str) -> bool:
    return bool(re.match(r"\s+(full_key|object_type|reference_type)|To append|See http|Error merging|In '.*:$", line))


def _unknown_option(file: str, options: Sequence[str]) -> str:
    group, _, option = file.rpartition("/")
    if group.startswith("job/"):  # what is named without a slash is looked for below the file that names it
        return f"there is no {group}={option}; in a job's defaults write `- override /{group[4:]}: {option}`"
    names = [o for o in options if not o.endswith(SCHEMA)]
    return (
        f"there is no {group}={option}; {group} is one of {', '.join(names)}{did_you_mean(option, names, group + '=')}"
    )


def _group_of(text: str) -> str | None:
    """The group of settings whose dataclass is named in OmegaConf's words on a value that cannot become one."""
    named = re.search(r"not a subclass of (\w+)", text)
    for group, options in schemas().items():
        if named and any(cls.__name__ == named[1] for cls in options.values()):
            return group
    return None


def _unknown_key(key: str) -> str:
    if key.startswith("nodes."):
        return _unknown_in_graph(*key.removeprefix("nodes.").partition(".")[::2])
    if free := next((f for f in FREE_FORM if key.startswith(f"{f}.")), None):
        return f"{free} has no '{key.removeprefix(f'{free}.')}' yet; to add it write +{key}=..."
    known = known_keys()
    group, _, leaf = key.rpartition(".")
    if key in known:
        return f"'{key}' is a key of another option of {group}; choose that one ({group}=...)"
    inside = [k.rpartition(".")[2] for k in known if k.rpartition(".")[0] == group]
    # `name` is the job's own: who writes it below a group means something else
    elsewhere = [k for k in known if k.rpartition(".")[2] == leaf and k != "name"]
    hint = f"; did you mean {elsewhere[0]}?" if elsewhere else did_you_mean(leaf, inside, f"{group}." if group else "")
    hint = hint or ("" if inside else did_you_mean(key, [*known, *GROUPS]))
    listed = f"; the keys of {group} are {', '.join(inside)}" if group and inside and not hint else ""
    return f"unknown key '{key}'{hint}{listed}"
