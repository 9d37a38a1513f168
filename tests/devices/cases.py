"""What processes with fake devices do for tests: each function runs in one of its own (`FakeGpus.call`)."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from typing import Any

import llama_cpp
import numpy as np

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.placement import HOST as HOST
from operators.generation.memory import model_memory
from operators.llama.contexts.context import LlamaContext
from operators.llama.devices import describe, devices
from operators.llama.library import initialise
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError
from tests.devices.fake_gpu import own_counts

ROWS, STEPS = 4, 6
PLACEMENTS: dict[str, dict[str, Any]] = {
    "two devices": {"gpu_layers": "all"},
    "one device": {"gpu_layers": "all", "device": ["Fake1"]},
    "uneven": {"gpu_layers": "all", "tensor_split": [3, 1]},
    "one layer and what makes logits": {"gpu_layers": 2},
}


def without_flash_attention(path: str) -> str:
    """Return the bits of the CPU with attention in several operations."""
    model, context = opened(
        path, EngineSettings(slots=ROWS, max_sequence_tokens=128, flash_attention=False), gpu_layers=0
    )
    found = bits(model, context)
    model.close()
    return found


def listed() -> dict[str, Any]:
    """Return the devices, and their description."""
    found = devices()
    return {"devices": [asdict(device) for device in found], "text": describe(found)}


def opened(path: str, engine: EngineSettings, **model: Any) -> tuple[LlamaModel, LlamaContext]:
    """Load a model, by llama.cpp's kernels, and make a context."""
    loaded = LlamaModel(ModelSettings(path=path, probe=False, kernels="llama.cpp", room=engine, **model))
    return loaded, loaded.lease(engine)[0]


def bits(model: LlamaModel, context: LlamaContext) -> str:
    """Return a hash of the logits of some rows, which are continued by the best tokens."""
    random, batch, digest = np.random.default_rng(0), context.batch, hashlib.sha256()
    prompts = [random.integers(3, min(model.n_vocab, 250), 7 + 11 * row).astype(np.int32) for row in range(ROWS)]
    ends = [len(prompt) for prompt in prompts]
    batch.clear()
    batch.add_spans(prompts, [0] * ROWS, range(ROWS), [1] * ROWS)
    for step in range(STEPS):
        logits = context.decode()
        digest.update(logits.tobytes())
        batch.clear()
        batch.add_rows(logits.argmax(axis=1).tolist(), [end + step for end in ends], range(ROWS))
    context.clear()
    return digest.hexdigest()


def placed(path: str) -> dict[str, Any]:
    """Compute on the CPU and with each placement. Return the bits of each, what the devices did, the threads that the
    context has, and its identity."""
    initialise()
    engine, answers = EngineSettings(slots=ROWS, max_sequence_tokens=128), {}
    for name, where in {HOST: {"gpu_layers": 0}, **PLACEMENTS}.items():
        before = own_counts()
        model, context = opened(path, engine, **where)
        answer: dict[str, Any] = {"bits": bits(model, context), "device": model.device}
        answer["graphs"] = [now["graphs"] - then["graphs"] for now, then in zip(own_counts(), before, strict=True)]
        answer["threads"] = llama_cpp.llama_n_threads(context._context)
        model.close()
        answers[name] = answer
    return answers


def refused_for_memory(path: str, **engine: Any) -> list[str]:
    """Return why a model with a context is refused on each device."""
    refusals = []
    for device in devices():
        try:
            opened(path, EngineSettings(threads=1, **engine), gpu_layers="all", device=[device.name])
        except ConfigError as error:
            refusals.append(str(error))
    return refusals


def encoder(path: str, mmproj: str) -> list[dict[str, int]]:
    """Load a model on the second device alone, with its vision encoder. Return what the devices did."""
    model = LlamaModel(ModelSettings(path=path, mmproj=mmproj, probe=False, gpu_layers="all", device=["Fake1"]))
    assert model.vision is not None
    return own_counts()


def forecast(path: str, gpu_layers: int | str, engine: dict[str, Any]) -> dict[str, Any]:
    """Return what is said of the memory of each device before a model is loaded, and what it takes."""
    settings, model = EngineSettings(**engine), ModelSettings(path=path, probe=False, gpu_layers=gpu_layers)
    needs = [need for need in model_memory(replace(model, room=settings), settings, "key") if need.device]
    loaded = LlamaModel(replace(model, room=settings))
    weights = [each["used"] for each in own_counts()]
    context, _ = loaded.lease(settings)
    taken = [each["used"] for each in own_counts()]
    names = [device.name for device in devices()]

    def said(*kinds: str) -> list[int]:
        of = [need for need in needs if need.key[0][0] in kinds]  # type: ignore[index]
        return [sum(need.size_bytes for need in of if need.device and need.device.name == name) for name in names]

    answer = {"weights": weights, "taken": taken, "said": said("model"), "kept": said("context")}
    answer["computing"] = said("computing")
    bits(loaded, context)
    return answer | {"most": [each["most"] for each in own_counts()]}


def failing(path: str) -> dict[str, Any]:
    """Compute until a graph fails, and then again; and compute when the model is told to stop."""
    engine = EngineSettings(slots=ROWS, max_sequence_tokens=128)
    model, context = opened(path, engine, gpu_layers="all")
    failures: list[int] = []
    answers: list[str] = []
    while len(answers) < 2:
        try:
            answers.append(bits(model, context))
        except DecodeFailed as failure:
            failures.append(failure.code)
            context.clear()
    model.abort()
    try:
        bits(model, context)
    except DecodeFailed as failure:
        failures.append(failure.code)
    return {"failures": failures, "bits": answers}
