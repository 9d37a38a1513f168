"""Keeps what Hydra composes of files, in a process that runs tests: a third of the time of a small run goes there.

The tests compose some thousand jobs of the same few files. What the files give, before the settings of a command line
are applied, is composed once for each choice of options, as long as the job files stay as they are. And no composition
copies the ConfigStore, which has the jobs of all tests before: 3 ms each, with 300 of them 0.9 s. An argument and an
interpolation are parsed once, files of conf/ and of Hydra are read once, and conf/config.yaml, which names no folder of
configs, is not looked into for one.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra._internal.defaults_list import DefaultsList, Overrides, create_defaults_list
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, _utils, base, grammar_parser

from pipeline.config.explain import job_files
from pipeline.config.keys import CONF

_OURS = {"hydra.conf", str(CONF), ""}
"""Where options are looked for unless `--config-dir` names a folder: Hydra's, ours, and the schemas."""


class _Kept(NamedTuple):
    """`config`: pickled. `jobs`: the files of jobs that the job begins with, and what they said."""

    found: DefaultsList
    config: bytes
    jobs: dict[Path, bytes]

    def holds(self) -> bool:
        return all(path.is_file() and path.read_bytes() == text for path, text in self.jobs.items())


_kept: dict[Any, _Kept] = {}
_compose = ConfigLoaderImpl._compose_config_from_defaults_list
_search = ConfigLoaderImpl._process_config_searchpath
_parsed = lru_cache(maxsize=4096)(OverridesParser.parse_rule)
_parser = OverridesParser.create()
_SOURCES: tuple[Any, ...] = (FileConfigSource, ImportlibResourcesConfigSource)
replaced: list[tuple[Any, str, Any]] = []
"""What `keep` has replaced: where, its name, and as Hydra has it."""


class _Files(list[Any]):
    """The files that a config is composed of. `job`: that of the job, whose text is part of the key. `key`: of what is
    kept of them; None if nothing is to be."""

    def __init__(self, found: DefaultsList, job: str, key: Any) -> None:
        super().__init__(found.defaults)
        self.found, self.job, self.key = found, job, key


def _defaults_list(repo: Any, config_name: str, overrides_list: list[Any], **more: bool) -> DefaultsList:
    overrides = Overrides(repo=repo, overrides_list=overrides_list)
    values = {id(override) for override in overrides.config_overrides}
    choices = [override.input_line for override in overrides_list if id(override) not in values]
    sources = [source.path for source in repo.get_sources()]
    job = next((choice.replace("=", "/") for choice in choices if choice.startswith("job=")), "")
    # Jobs of the same name and text are the same, wherever they lie.
    text = (job_files[job].stem, job_files[job].read_bytes()) if job in job_files else ()
    key = (
        config_name,
        *(choice for choice in choices if not text or choice != f"job={job[4:]}"),
        text,
        *sources,
        *more.values(),
    )
    if (kept := _kept.get(key)) and kept.holds():
        overrides.known_choices.update(kept.found.overrides.known_choices)
        if text:
            overrides.known_choices["job"] = job[4:]
        return replace(kept.found, config_overrides=overrides.config_overrides, overrides=overrides)
    found = create_defaults_list(repo=repo, config_name=config_name, overrides_list=overrides_list, **more)
    found.defaults = _Files(found, job, key if set(sources) <= _OURS else None)
    return found


def _composed(loader: ConfigLoaderImpl, defaults: _Files, repo: Any) -> DictConfig:
    kept = _kept.get(defaults.key)
    if kept and kept.found is defaults.found:
        found: DictConfig = pickle.loads(kept.config)
        return found
    config = _compose(loader, defaults, repo)
    if defaults.key:
        paths = [
            job_files[d.config_path] for d in defaults if d.config_path in job_files and d.config_path != defaults.job
        ]
        _kept[defaults.key] = _Kept(defaults.found, pickle.dumps(config), {p: p.read_bytes() for p in paths})
    return config


def _searched(loader: ConfigLoaderImpl, config_name: str, overrides: list[Override], repo: Any) -> None:
    if config_name != "config" or any(override.key_or_group == "hydra.searchpath" for override in overrides):
        _search(loader, config_name, overrides, repo)


def _read_once(load: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    kept: dict[tuple[str, str], bytes] = {}

    def loaded(source: Any, config_path: str) -> Any:
        if source.path not in _OURS:
            return load(source, config_path)
        if (key := (source.path, config_path)) not in kept:
            kept[key] = pickle.dumps(load(source, config_path))
        return pickle.loads(kept[key])

    return loaded


def keep() -> None:
    """Have Hydra keep what it composes, from now on in this process."""
    parse = lru_cache(maxsize=4096)(grammar_parser.parse)
    changes: list[tuple[Any, str, Any]] = [
        (config_loader_impl, "create_defaults_list", _defaults_list),
        (ConfigLoaderImpl, "_compose_config_from_defaults_list", _composed),
        (ConfigLoaderImpl, "_process_config_searchpath", _searched),
        *((source, "load_config", _read_once(source.load_config)) for source in _SOURCES),
        # Hydra sets attributes of an override.
        (OverridesParser, "parse_rule", lambda _, text, rule: copy.copy(_parsed(_parser, text, rule))),
        *((module, "parse", parse) for module in (base, _utils)),
    ]
    patch = pytest.MonkeyPatch()
    for place, name, ours in changes:
        replaced.append((place, name, getattr(place, name)))
        patch.setattr(place, name, ours)
    # Hydra copies it with the list of sources, which is what changes; of a config it gives a copy each time.
    patch.setattr(ConfigStore, "__deepcopy__", lambda store, _: store, raising=False)
