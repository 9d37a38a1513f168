"""Memory of a model and its contexts, computed from the header of the model's file."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from operators.engine.backend.interface import Wanted, decoder_shape, inspect_model, model_key
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.protocols import MemoryNeed

KV_BITS = {"f16": 16.0, "f32": 32.0, "q8_0": 8.5}
"""Bits per number in the KV cache."""


def model_memory(
    model: ModelSettings, settings: EngineSettings, key: Hashable, wanted: Wanted = Wanted.NEXT
) -> Iterator[MemoryNeed]:
    """Yield the memory of the weights of `model`, and of its contexts with `settings`.

    A lower bound: buffers for computing are left out, and a KV cache whose size is not in the header. Gives nothing for
    models on a GPU.

    Args:
        key: equal for nodes that share the contexts.
        wanted: the outputs of the contexts.
    """
    facts = inspect_model(model)
    if facts.sizes is None or facts.n_ctx_train is None or model.gpu_layers:
        return
    name = model.path or model.file or model.loader
    yield MemoryNeed(model_key(model), f"the weights of {name}", facts.sizes.weights_bytes)
    usual = settings.with_defaults()
    shape = decoder_shape(usual, facts.n_ctx_train, wanted)
    kv = int(shape.kv_cells * (facts.sizes.kv_values or 0) * KV_BITS[usual.kv_type] / 8)
    outputs = shape.streams if wanted is Wanted.NEXT else shape.n_batch
    width = facts.n_embd or 0 if wanted is Wanted.EMBEDDINGS else facts.sizes.n_vocab
    each = f"{shape.slots} slots x {shape.max_sequence_tokens} tokens"
    size = usual.contexts * (kv + 4 * outputs * width)
    yield MemoryNeed(("context", key), f"{usual.contexts} context(s) of {name}: KV cache of {each}, outputs", size)
