"""What processes with fake devices do for tests: each function runs in one of its own (`FakeGpus.call`)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from operators.llama.devices import describe, devices
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings


def listed() -> dict[str, Any]:
    """Return the devices, and their description."""
    found = devices()
    return {"devices": [asdict(device) for device in found], "text": describe(found)}


def leased(path: str, gpu_layers: int, **settings: Any) -> None:
    """Load a model and make a context."""
    model = LlamaModel(ModelSettings(path=path, gpu_layers=gpu_layers))
    model.lease(EngineSettings(threads=1, **settings))
