"""What processes with fake devices do for the tests of placement: each function runs in one of its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from operators.engine.backend.loading import inspect_model
from operators.llama.layer_sizes import bytes_on, context_bytes, layers_of
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from tests.devices.fake_gpu import own_counts

ENGINE: dict[str, Any] = {"slots": 4, "max_sequence_tokens": 64, "threads": 1, "kernels": "llama.cpp"}


def placements(path: str, cases: list[dict[str, Any]]) -> list[Any]:
    """Return where the layers of a model would be by each case of settings, in words; or why it is refused."""
    answers = []
    for case in cases:
        try:
            answers.append(str(inspect_model(ModelSettings(path=path, probe=False, **case)).placement))
        except Exception as error:
            answers.append(f"{type(error).__name__}: {error}")
    return answers


def computed(path: str, case: dict[str, Any], engine: dict[str, Any]) -> dict[str, Any]:
    """Load a model and compute a call with 40 tokens and one with a token, of two rows each. Return where it is, a hash
    of the logits, and what the devices did."""
    settings = EngineSettings(**{**ENGINE, **engine})
    model = LlamaModel(ModelSettings(path=path, probe=False, kernels="llama.cpp", room=settings, **case))
    weights = [each["used"] for each in own_counts()]
    context, _ = model.lease(settings)
    ids = np.random.default_rng(7).integers(3, min(model.n_vocab, 250), size=(2, 41)).astype(np.int32)
    batch, logits = context.batch, []
    for begin, end in ((0, 40), (40, 41)):
        batch.clear()
        batch.add_spans([row[begin:end] for row in ids], [begin] * 2, range(2), [1, 1])
        logits.append(context.decode().copy())
    counts = own_counts()
    return {
        "placement": dataclasses.asdict(model.placement),
        "bits": np.concatenate(logits).tobytes().hex()[:4000],
        "weights": weights,
        "counts": counts,
    }


def guessed(paths: list[str], engine: dict[str, Any]) -> list[list[int]]:
    """Return for each model what it and a context are thought to take on the only device, and what they do."""
    answers, settings = [], EngineSettings(**{**ENGINE, **engine})
    for path in paths:
        given = ModelSettings(path=path, probe=False, kernels="llama.cpp", gpu_layers="all", room=settings)
        model = LlamaModel(given)
        _, give_back = model.lease(settings)
        layers = layers_of(Path(path))
        thought = bytes_on(model.placement, layers, context_bytes(Path(path), given, settings))
        answers.append([thought["Fake0"], own_counts()[0]["used"]])
        give_back()
        model.close()
    return answers


def weights(path: str, cases: list[dict[str, Any]]) -> list[list[int]]:
    """Return for each case the bytes of a loaded model on each device."""
    answers = []
    for case in cases:
        model = LlamaModel(ModelSettings(path=path, probe=False, kernels="llama.cpp", **case))
        answers.append([each["used"] for each in own_counts()])
        model.close()
    return answers
