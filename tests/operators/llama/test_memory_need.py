"""What is said of the memory of models and contexts, before they are loaded, is what llama.cpp takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from operators.embed import Embed
from operators.engine.backend.loading import inspect_model
from operators.engine.backend.shape import Wanted
from operators.generate import Generate
from operators.generation.memory import model_memory
from operators.llama.model import LlamaModel
from operators.score import Score
from operators.settings import DecodeSettings, ModelSettings, SamplingSettings, StoreSettings
from operators.settings.runtime import EngineSettings
from pipeline import PROJECT
from pipeline.api.errors import ConfigError
from tests.operators.llama.test_decoding import compute
from tools.models.make_model import write_model

TINY = ModelSettings(path=str(PROJECT / "models/tiny/tiny-q8_0.gguf"))
PLAIN = replace(TINY, kernels="llama.cpp")
CELL_BYTES = 32
"""Beside its keys and values a saved cell has its position and whose it is."""


@pytest.mark.parametrize("shape", ["llama-5m", "tiny", "tiny-qwen3moe"])
@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0", {"k": "q4_0", "v": "f16"}], ids=str)
def test_a_token_takes_as_much_of_the_kv_cache_as_is_said(tmp_path, shape, kv_type):
    settings = ModelSettings(path=str(write_model(tmp_path / "model.gguf", shape=shape).path))
    runtime = EngineSettings(slots=2, max_sequence_tokens=256, kv_type=kv_type)
    model = LlamaModel(settings)
    decoder, _ = model.lease(runtime)
    sizes = []
    for start in (0, 100):
        compute(decoder, np.full(100, 7, np.int32), start, outputs=0)
        sizes.append(len(decoder.save(0)))
    model.close()
    _, context = model_memory(settings, runtime, "key")
    facts = inspect_model(settings).sizes
    assert facts is not None
    outputs = 4 * runtime.slots * facts.n_vocab
    said = (context.size_bytes - outputs) / (256 * runtime.slots)
    assert said <= (sizes[1] - sizes[0]) / 100 < said + CELL_BYTES


def test_slots_and_tokens_multiply(tmp_path):
    def context(**settings):
        weights, context = model_memory(PLAIN, EngineSettings(max_sequence_tokens=256, **settings), "key")
        assert weights.size_bytes == Path(PLAIN.path or "").stat().st_size
        return context.size_bytes

    assert context(slots=8) * 2 == context(slots=16)
    assert context(slots=1) == context(slots=2), "a lone row has company"


def generate(**runtime) -> Generate:
    settings = EngineSettings(max_sequence_tokens=256, **runtime)
    return Generate(PLAIN, SamplingSettings(), DecodeSettings(), settings, StoreSettings(enabled=False))


def test_nodes_that_share_an_engine_give_the_same_keys_and_others_do_not():
    def keys(op):
        return [need.key for need in op.memory_needs()]

    assert keys(generate()) == keys(generate())
    weights, context = zip(keys(generate()), keys(generate(slots=4)), strict=True)
    assert len(set(weights)) == 1
    assert len(set(context)) == 2
    readers = [Score(PLAIN, EngineSettings()), Score(PLAIN, EngineSettings()), Embed(PLAIN, EngineSettings())]
    assert len({keys(op)[0] for op in [*readers, generate()]}) == 1
    assert len({keys(op)[1] for op in readers}) == 3


def test_a_model_without_weights_says_nothing():
    assert not list(model_memory(ModelSettings(loader="operators.engine.backend.fake:load"), EngineSettings(), "key"))
    assert not list(Score(ModelSettings(loader="operators.engine.backend.fake:load"), EngineSettings()).memory_needs())
    assert inspect_model(TINY).sizes is not None
    assert list(model_memory(TINY, EngineSettings(), "key", Wanted.EVERY))


@pytest.mark.parametrize(
    ("given", "size"), [("8GiB", 8 << 30), ("1.5 gib", 3 << 29), ("500MB", 500_000_000), ("1024", 1024), (None, None)]
)
def test_a_limit_is_a_number_of_bytes_or_has_a_unit(given, size):
    assert EngineSettings(memory_limit=given).memory_limit_bytes == size


@pytest.mark.parametrize("given", ["much", "8 GiBs", "-1", ""])
def test_a_limit_that_is_none_is_refused(given):
    with pytest.raises(ConfigError, match=r"runtime\.memory_limit"):
        EngineSettings(memory_limit=given)
