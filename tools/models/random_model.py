"""`model=random`: a GGUF model with random weights, made on first use, for trials and measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from operators.engine.backend.loading import ModelFacts, check_options
from operators.llama.header import facts_of
from operators.llama.model import LlamaModel, placed
from operators.llama.model import load as load_file
from operators.llama.model_file import weights_path
from operators.llama.placement import check_placement
from operators.settings import ModelSettings
from pipeline.api.errors import ConfigError
from tools.models.make_model import write_model

OPTIONS: dict[str, Any] = {"shape": "tiny", "file_type": "f32", "seed": 0}


def load(settings: ModelSettings) -> LlamaModel:
    """Make the model if needed, and load it: the loader of `model=random`."""
    return load_file(_as_file(settings))


def inspect(settings: ModelSettings) -> ModelFacts:
    """Return the facts of the model's file; makes it if needed."""
    check_placement(settings)
    path = weights_path(settings := _as_file(settings))
    return placed(facts_of(path), settings, path)


def _as_file(settings: ModelSettings) -> ModelSettings:
    return replace(settings, path=str(written(settings)))


def written(settings: ModelSettings) -> Path:
    """Return the model of `settings.options` (see `write_model`) in the folder `settings.path`; make it if need be."""
    if not settings.path:
        raise ConfigError("model.path is not set; model=random needs the folder in which the model is kept")
    check_options(settings, OPTIONS)
    options = OPTIONS | settings.options
    path = Path(settings.path).expanduser() / "random-{shape}-{file_type}-{seed}.gguf".format(**options)
    if path.exists():
        return path
    try:
        return write_model(path, **options).path
    except ValueError as error:
        raise ConfigError(f"model.options={options} cannot be a model: {error}") from error
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"model.path={settings.path}: {path.name} cannot be written: {reason}") from error
