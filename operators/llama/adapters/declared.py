"""The adapters that a job declares (`model.adapters`): fetched, checked against the model, made ready for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from operators.engine.backend.loading import ModelFacts
from operators.llama.adapters.peft import WEIGHTS
from operators.llama.adapters.peft_config import CONFIG
from operators.llama.adapters.prepared import PreparedAdapters, prepared
from operators.llama.adapters.tensors import AdapterSource
from operators.llama.hub_files import hub_file
from operators.settings import ModelSettings
from pipeline.api.errors import ConfigError


def prepared_for(settings: ModelSettings, base: Path) -> PreparedAdapters | None:
    """Return the adapters of `settings`, checked against the model in `base`; None if it has none.

    Raises:
        ConfigError, InputError: there is no such file, or it is no adapter of this model; the message names it.
    """
    named = sorted((settings.adapters or {}).items())  # their order changes no bit
    sources = [_source(name, given, settings.options) for name, given in named]
    return prepared(base, sources) if sources else None


def with_adapters(facts: ModelFacts, settings: ModelSettings, base: Path) -> ModelFacts:
    """Return `facts` with those of the adapters of `settings`. Raises as `prepared_for` does."""
    if facts.refusal is not None or (files := prepared_for(settings, base)) is None:
        return facts
    contents = dict(zip(files.names, files.contents, strict=True))
    return replace(facts, adapters=contents, adapter_bytes=files.bank_bytes)


def _source(name: str, given: str | Mapping[str, Any], options: Mapping[str, Any]) -> AdapterSource:
    """Return where an adapter is. `options`: of the Hub, where the model is from there, too."""
    values = {"path": given} if isinstance(given, str) else dict(given)
    scale = float(values.pop("scale", 1.0))
    if "repo" not in values:
        return AdapterSource(name, Path(values["path"]).expanduser(), scale)
    key = f"model.adapters.{name}"
    if values.get("revision") is None:
        raise ConfigError(f"{key} needs a revision beside repo: a commit hash or tag, so that it stays the same")
    names = [values["file"]] if values.get("file") is not None else [CONFIG, WEIGHTS]
    paths = [hub_file(values["repo"], each, values["revision"], options, key) for each in names]
    return AdapterSource(name, paths[0] if len(paths) == 1 else paths[0].parent, scale)
