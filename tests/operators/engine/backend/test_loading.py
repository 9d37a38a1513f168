"""Loading of models."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from operators.engine.backend.fake import FakeModel, inspect
from operators.engine.backend.loading import load_model
from operators.settings import ModelSettings
from pipeline.api.errors import ConfigError
from pipeline.api.meter import StageMeter
from pipeline.api.protocols import Runtime
from pipeline.api.runtime import Resources, RunContext
from pipeline.run_dir.metrics_table import MetricsTables

__all__ = ["inspect"]
LOADED_BY: list[threading.Thread] = []


def load(settings: ModelSettings) -> FakeModel:
    LOADED_BY.append(threading.current_thread())
    if settings.options:
        raise ConfigError("it cannot be loaded")
    return FakeModel()


def runtime(folder: Path) -> Runtime:
    return Runtime(RunContext(folder, Resources(), MetricsTables(folder).get), "generate", 1, StageMeter("generate"))


def test_it_is_loaded_once_in_a_thread_that_ends(tmp_path):
    """A thread that has ended has no team of OpenMP threads."""
    LOADED_BY.clear()
    settings, given = ModelSettings(loader=f"{__name__}:load"), runtime(tmp_path)
    assert load_model(given, settings) is load_model(given, settings)
    (thread,) = LOADED_BY
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_what_a_loader_raises_is_raised(tmp_path):
    with pytest.raises(ConfigError, match="it cannot be loaded"):
        load_model(runtime(tmp_path), ModelSettings(loader=f"{__name__}:load", options={"no": 1}))
