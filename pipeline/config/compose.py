"""Register schemas and jobs with Hydra, and turn a composed config into JobSettings."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, Node, OmegaConf, StringNode
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException, ValidationError

from pipeline import PROJECT
from pipeline.api.errors import ConfigError
from pipeline.api.groups import FIELDS, check_fields
from pipeline.api.removed import removed_variable
from pipeline.config.build import load_object
from pipeline.config.expand import expanded
from pipeline.config.explain import NO_TEXT, explain, job_files, unreadable_yaml
from pipeline.config.jobs import JobFile, name_arguments
from pipeline.config.keys import CONF, FREE_FORM, SCHEMA, made_options, options, schemas, unknown_key, unknown_keys
from pipeline.config.sweeps import in_sweep, overrides_given
from pipeline.dataflow.new_rows import ROW_ID
from pipeline.run_dir.manifest import read_values
from pipeline.run_dir.names import CONFIG, STATUS
from pipeline.settings import GROUPS, ClusterSettings, JobSettings, TargetSettings
from pipeline.system.known_secrets import REFERENCE, note_typed, secret
from pipeline.system.redaction import note_secret_places
from pipeline.system.yaml_text import read_yaml, yaml_nodes

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)
"""Raised by Hydra for a config that cannot be composed; `explain` makes a ConfigError of them."""

_FREE = tuple(f"{key}." for key in ("steps", "nodes", *FREE_FORM))
"""Settings below which `composed` takes new keys."""
_FORMS = {"steps": "{name: {prompt: ...}}", "nodes": "{name: {inputs: ..., op: ...}}"}
OF_MODEL = "operators.generation.model_sampling:of_model"
MOST_VALUES = 20_000
"""Values that a job file may have: Hydra copies each, some 3,000 in a second."""
_one_at_a_time = threading.Lock()
"""Hydra keeps what it composes in globals."""
_OF_HYDRA = ("hydra", "_dummy_empty_config_.yaml")
"""Groups of ConfigStore that Hydra and its plugins fill, once for a process."""
_ours: dict[str, Any] = {}
"""The other groups, as `composed` has filled them."""
NO_TARGET = "target.accepted_rows=null"
_START = datetime.now()
_as_omegaconf_has_it = StringNode._validate_and_convert_impl


def register() -> None:
    """Register the schemas of all config groups and the resolvers `project`, `of_model` and `secret`, and make our
    modules importable."""
    _store_schemas()
    OmegaConf.register_new_resolver("project", lambda path: str(PROJECT / path), replace=True)
    OmegaConf.register_new_resolver("of_model", _of_model, replace=True)
    OmegaConf.register_new_resolver("secret", secret, replace=True)
    StringNode._validate_and_convert_impl = _text  # type: ignore[method-assign]
    if str(PROJECT) not in sys.path:
        sys.path.append(str(PROJECT))  # jobs name operators in models/, which is no package that is installed


@contextmanager
def _composing() -> Iterator[None]:
    """Have Hydra and OmegaConf know this project during the block, and be the host program's after it."""
    store, resolvers = ConfigStore.instance().repo, BaseContainer._resolvers
    with _one_at_a_time:
        of_host = {name: store.pop(name) for name in list(store) if name not in _OF_HYDRA}
        resolvers_before, text = dict(resolvers), StringNode._validate_and_convert_impl
        store.update(_ours)
        try:
            register()
            yield
        finally:
            _ours.update({name: store.pop(name) for name in list(store) if name not in _OF_HYDRA})
            _ours.pop("job", None)
            store.update(of_host)
            resolvers.clear()
            resolvers.update(resolvers_before)
            StringNode._validate_and_convert_impl = text  # type: ignore[method-assign]


def _store_schemas() -> None:
    store = ConfigStore.instance()
    if f"{SCHEMA}.yaml" in store.repo:
        return
    schema = OmegaConf.structured(JobSettings)
    schema.steps._set_flag("struct", False)  # `steps.answer.n=3` needs no +; `expand` knows the keys of a step
    store.store(name=SCHEMA, node=schema)
    for group, classes in schemas().items():
        for name, schema in classes.items():
            node = OmegaConf.structured(schema)
            if group == "model":
                node.kernels, node.room = "${runtime.kernels}", "${runtime}"
            store.store(group=group, name=name, node=node)
    for group, made in made_options().items():
        for name, values in made.items():
            store.store(group=group, name=name, node=OmegaConf.create({"defaults": [SCHEMA, "_self_"], **values}))


@cache
def _mappings() -> frozenset[str]:
    """Return the keys of a job whose value is a mapping."""
    schema = OmegaConf.structured(JobSettings)
    return frozenset((*GROUPS, *(str(key) for key in schema if isinstance(schema._get_node(key), DictConfig))))


def register_job(job: JobFile) -> None:
    """Register `job` as the option `job.key` of the group `job`, and make the modules in its folder importable."""
    try:
        values = _values_in(yaml_nodes(job.path.read_text(encoding="utf-8")), {})
        node = OmegaConf.load(job.path) if values <= MOST_VALUES else None
    except RecursionError as error:
        raise ConfigError(f"{job.path}: an alias (*name) stands inside of what it names") from error
    except Exception as error:  # on some files PyYAML and OmegaConf fail with exceptions of any type
        raise ConfigError(f"{job.path} cannot be read as YAML: {unreadable_yaml(error)}") from error
    if values > MOST_VALUES:
        raise ConfigError(
            f"{job.path} has {values:,} values, each alias (*name) as often as it stands there, and {MOST_VALUES:,} may"
            " be; give data in a file"
        )
    if not isinstance(node, DictConfig):
        raise ConfigError(f"{job.path} must hold keys and values, for example `data: {{path: prompts.jsonl}}`")
    listed = next((str(k) for k in node if k in _mappings() and isinstance(node._get_node(k), ListConfig)), None)
    if listed is not None:
        example = _FORMS.get(listed, "{key: value}")
        raise ConfigError(f"{job.path}: {listed} is a list; it is a mapping, {listed}: {example}, without dashes")
    name_arguments(node)
    note_secrets(node)
    if "name" not in node:
        node["name"] = job.name
    ConfigStore.instance().store(group="job", name=job.key, node=node, package="_global_")
    job_files[f"job/{job.key}"] = job.path
    if (folder := str(job.path.parent)) not in sys.path:
        sys.path.append(folder)  # last: a user's module never hides one of ours or of the standard library


def composed(job: JobFile, options: Mapping[str, str], values: Mapping[str, Any]) -> JobSettings:
    """Compose a job outside of the command line.

    Args:
        options: the chosen option of config groups.
        values: by dotted key, as YAML has them.

    Raises:
        ConfigError: an option, a key or a value cannot work.
    """
    with _composing():
        register_job(job)
        try:
            with initialize_config_dir(str(CONF), version_base="1.3"):
                config = compose("config", [f"job={job.key}", *(f"{key}={name}" for key, name in options.items())])
            note_secret_places(values)
            for key, value in values.items():
                config._set_flag("struct", not key.startswith(_FREE))
                OmegaConf.update(config, key, value, merge=True)
            return settings_of(config, datetime.now())
        except COMPOSITION_ERRORS as error:
            raise explain(error) from error


def _of_model(key: str, default: Any, *, _root_: DictConfig) -> Any:
    return load_object(OF_MODEL)(key, default, OmegaConf.to_object(_root_.model))


def _text(self: StringNode, value: Any) -> str:
    """Refuse numbers and booleans as strings: OmegaConf would turn a `no` in YAML into the string 'False'."""
    if isinstance(value, bool | int | float) and not str(self._get_full_key(None)).startswith("hydra."):
        raise ValidationError(NO_TEXT)
    return _as_omegaconf_has_it(self, value)


def settings_of(config: DictConfig, start: datetime | None = None) -> JobSettings:
    """Return the settings of a composed config as nested dataclasses. Raises ConfigError for an unknown key and for a
    value that is missing (`???`), of the wrong type or invalid. `start`: of the run, if it begins now;
    None: that of the process."""
    start = start or _START
    if gone := removed_variable():
        raise ConfigError(gone)
    if unknown := next(unknown_keys(config), None):
        raise ConfigError(unknown_key(unknown))
    if NO_TARGET in overrides_given():  # and what the job file says of the target with it
        config.target = OmegaConf.structured(TargetSettings)
    note_secrets(config)
    settings = _at(config, start)
    if "${now:" not in str(OmegaConf.to_container(config)):
        return expanded(settings)
    if settings.now is not None:
        return expanded(_at(config, datetime.fromisoformat(settings.now)))
    # A resumed run uses the time of its first attempt; one that is done, and takes more rows now, does not go on.
    is_new = settings.overwrite or (settings.append and _is_done(settings.directory / STATUS))
    first = None if is_new else _first_time(settings.directory / CONFIG)
    if first is not None:
        settings = dataclasses.replace(_at(config, first), output_dir=settings.output_dir)
    return expanded(dataclasses.replace(settings, now=(first or start).isoformat()))


def _at(config: DictConfig, time: datetime) -> JobSettings:
    """Return the settings with `time` for `${now:...}`."""
    # Hydra registers its own `now`, which reads the clock for every pattern.
    OmegaConf.register_new_resolver("now", lambda pattern: time.strftime(pattern), replace=True)
    try:
        if config.append and config.data is not None and config.data.id_column is None:
            config.data.id_column = ROW_ID.name  # so that what draws random numbers knows rows by it, too
        for free in (config.nodes, config.steps):  # `to_object` raises for no `???` below them, and takes texts
            OmegaConf.to_container(free, resolve=True, throw_on_missing=True)
        settings = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise explain(error) from error
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"a value has a type or a size that cannot work: {error}") from error
    if not isinstance(settings, JobSettings):
        raise ConfigError("conf/config.yaml must start its defaults with `schema`")
    if not isinstance(settings.cluster, ClusterSettings | None):
        named = " or ".join(f"cluster={name}" for name in options()["cluster"])
        raise ConfigError(
            f"cluster={settings.cluster!r} is no option; write {named} (in a job's defaults `- override /cluster:"
            " OPTION`), and its keys beside it"
        )
    for group in FIELDS:
        check_fields(group, getattr(settings, group))
    return in_sweep(settings)


def note_secrets(config: Any, path: tuple[str, ...] = ()) -> None:
    """Note what is secret in a composed config or a job file by its place or since it is written `${secret:NAME}`, so
    that no message has it; and what was typed where a value names its secrets."""
    is_mapping = isinstance(config, DictConfig)
    if not isinstance(config, DictConfig | ListConfig) or not isinstance(config._value(), dict | list):
        return
    keys: list[Any] = list(config) if is_mapping else list(range(len(config)))
    for key in keys:
        place = (*path, str(key)) if is_mapping else path
        node = config._get_node(key)
        typed = node._value() if isinstance(node, Node) else None
        if isinstance(typed, dict | list):
            note_secrets(node, place)
        elif isinstance(typed, str) and REFERENCE.search(typed):
            try:
                value = config[key]
            except OmegaConfBaseException:
                continue  # composing says what is wrong
            if isinstance(value, str):
                note_typed(value, typed)
                note_secret_places(value, place)
        elif isinstance(typed, str | int):
            note_secret_places(typed, place)


def _first_time(saved: Path) -> datetime | None:
    """Return the time that `now` has in a config.yaml; None if there is no such file or value."""
    try:
        return datetime.fromisoformat(read_values(saved, read_yaml)["now"])
    except (ValueError, KeyError, TypeError):
        return None


def _is_done(status: Path) -> bool:
    """Return True if a status.json says that its run is done."""
    return bool(read_values(status, json.loads).get("state") == "done")


def _values_in(node: yaml.Node | None, counts: dict[int, int]) -> int:
    """Return how many values YAML has in `node`, its aliases written out. `counts`: by the id of a node, without
    which a file of a few lines takes for ever. RecursionError: an alias stands inside of what it names."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in counts:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [value for _, value in node.value]
        counts[id(node)] = 1 + sum(_values_in(part, counts) for part in parts)
    return counts[id(node)]
