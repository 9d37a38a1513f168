"""The loader of `model=endpoint`: there is nothing to load, and operators that need a model of this process say so."""

from __future__ import annotations

from typing import NoReturn

from operators.settings import ModelSettings
from pipeline.api.errors import ConfigError


def load(settings: ModelSettings) -> NoReturn:
    """Raise ConfigError: the model is at a server."""
    raise ConfigError(
        "this operator needs a model of this process, and model=endpoint is a server; give this node a model of its own"
        " (model: {path: my.gguf}); docs/endpoints.md has the operators that take a server"
    )


inspect = load
