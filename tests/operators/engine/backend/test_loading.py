"""Loading of models."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from operators.engine.backend.fake import FakeDecoder, FakeModel, inspect
from operators.engine.backend.interface import Logits
from operators.engine.backend.loading import load_model
from operators.settings import ModelSettings
from pipeline.api.errors import ConfigError, ExitCode
from pipeline.api.meter import StageMeter
from pipeline.api.protocols import Runtime
from pipeline.api.runtime import Resources, RunContext
from pipeline.cli.main import main
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.system.file_cache import PLACE

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


def test_a_run_calibrates_and_computes_on_the_thread_of_the_engine_alone(tmp_path, monkeypatch):
    """llama.cpp would keep a team for each further thread, and the engine's would wait longer at each step."""
    threads: set[str] = set()
    decode = FakeDecoder.decode

    def noted(self: FakeDecoder) -> Logits:
        threads.add(threading.current_thread().name)
        return decode(self)

    monkeypatch.setattr(FakeDecoder, "decode", noted)
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    job = ("job=quickstart", "model=fake", "runtime=auto", "data.limit=4", "sampling.max_tokens=4", "progress=none")
    assert main([*job, f"output_dir={tmp_path / 'out'}"]) == ExitCode.DONE
    assert threads == {"engine"}
