"""The adapters that a job declares (`model.adapters`): fetched, checked against the model, made ready for it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from operators.llama.adapters.peft import CONFIG, WEIGHTS
from operators.llama.adapters.prepared import AdapterSource, PreparedAdapters, prepared

from operators.engine.backend.loading import ModelFacts
from operators.llama.hub_files import hub_file
from operators.settings import ModelSettings
from pipeline.api.errors import ConfigError, InputError


def prepared_for(settings: ModelSettings, base: Path) -> PreparedAdapters | None:
    """Return the adapters of `settings`, checked against the model in `base`; None if it has none. Reads each file
    once, until it changes.

    Raises:
        ConfigError, InputError: there is no such file, or it is no adapter of this model; the message names it.
    """
    sources = tuple(_source(name, given) for name, given in (settings.adapters or {}).items())
    return _prepared(base, sources, tuple(map(_state, sources))) if sources else None


def with_adapters(facts: ModelFacts, settings: ModelSettings, base: Path) -> ModelFacts:
    """Return `facts` with those of the adapters of `settings`. Raises as `prepared_for` does."""
    if facts.refusal is not None or (files := prepared_for(settings, base)) is None:
        return facts
    contents = dict(zip(files.names, files.contents, strict=True))
    return replace(facts, adapters=contents, adapter_bytes=files.bytes)


@functools.lru_cache(maxsize=16)
def _prepared(base: Path, sources: tuple[AdapterSource, ...], states: tuple[object, ...]) -> PreparedAdapters:
    return prepared(base, sources)


def _source(name: str, given: str | Mapping[str, Any]) -> AdapterSource:
    values = {"path": given} if isinstance(given, str) else dict(given)
    scale = float(values.pop("scale", 1.0))
    if "repo" not in values:
        path = Path(values["path"]).expanduser()
        if not path.exists():
            raise InputError(f"model.adapters.{name}: {path} does not exist; give a GGUF file or a PEFT folder")
        return AdapterSource(name, path, scale)
    if values.get("revision") is None:
        raise ConfigError(
            f"model.adapters.{name}: repo needs a revision, a commit hash or tag, so that it stays the same"
        )
    key = f"model.adapters.{name}"
    if (file := values.get("file")) is not None:
        return AdapterSource(name, hub_file(values["repo"], file, values["revision"], {}, key), scale)
    paths = [hub_file(values["repo"], each, values["revision"], {}, key) for each in (CONFIG, WEIGHTS)]
    return AdapterSource(name, paths[0].parent, scale)


def _state(source: AdapterSource) -> tuple[tuple[str, int, int], ...]:
    """Return the names, sizes and times of change of the files of an adapter."""
    files = sorted(source.path.iterdir()) if source.path.is_dir() else [source.path]
    return tuple((each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in files)
