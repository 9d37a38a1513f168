"""The memory of models and their contexts, by the headers of their files: of the machine, and of each device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace

from operators.engine.backend.loading import ModelFacts, inspect_model, model_key
from operators.engine.backend.placement import HOST
from operators.engine.backend.shape import Wanted, decoder_shape, max_sequence_tokens
from operators.engine.strategies.base import DecodeSetup
from operators.generation.wiring import of_draft, of_engine
from operators.settings import ModelSettings
from operators.settings.model import AUTO
from operators.settings.runtime import EngineSettings
from pipeline.api.protocols import MemoryNeed


def model_memory(
    model: ModelSettings,
    settings: EngineSettings,
    key: Hashable,
    wanted: Wanted = Wanted.NEXT,
    draft: int = 0,
    contexts: int = 1,
) -> Iterator[MemoryNeed]:
    """Yield the memory of the weights of `model`, and of its contexts with `settings`, by the header of its file: in
    the memory of the machine, and in that of each device where layers will be.

    A lower bound, except for what is needed at most: buffers for computing are left out where the CPU alone computes,
    and a KV cache whose size is not in the header.

    Args:
        key: equal for nodes that share the contexts.
        wanted: the outputs of the contexts.
        draft: see DecoderShape.
        contexts: how many there are.
    """
    facts = inspect_model(model)
    if facts.sizes is None or facts.n_ctx_train is None:
        return
    name = model.path or model.file or model.loader
    yield from _weights(model, facts, name)
    usual = settings.with_defaults()
    if facts.images is not None:
        made = f"what it makes of images ({name}; runtime.image_mb)"
        yield MemoryNeed(("images", key), made, usual.image_mb << 20, at_most=True)
    shape = decoder_shape(usual, facts.n_ctx_train, wanted, draft=draft)
    kv = facts.attention.kv_bytes(shape, usual) if facts.attention is not None else 0
    small = facts.attention is not None and facts.attention.keeps_window_alone(usual)
    width = facts.n_embd or 0 if wanted in (Wanted.EMBEDDINGS, Wanted.HEAD) else facts.sizes.n_vocab
    windows = ", windows small" if small else ""
    each = f"{shape.slots} slots x {shape.max_sequence_tokens} tokens{_types(usual)}{windows}"
    states = (1 + draft) * shape.streams * facts.sizes.state_bytes  # after each token of a draft
    kept = contexts * (kv + states)
    sizes = _by_layers(facts, kept) if usual.kv_offload else {HOST: kept}
    sizes[HOST] = sizes.get(HOST, 0) + contexts * 4 * shape.outputs * width
    what = (
        f"{contexts} context(s) of {name}: {'KV cache, recurrent states' if states else 'KV cache'} of {each}, outputs"
    )
    yield from _in_each(facts, MemoryNeed(("context", key), what, 0), sizes)
    if facts.on_devices is not None:
        computing = {at: contexts * size for at, size in facts.on_devices.computing(usual).items()}
        buffers = MemoryNeed(("computing", key), f"buffers for computing with {name}", 0, at_most=True)
        yield from _in_each(facts, buffers, computing)
    if (facts.sizes.recurrent or small) and wanted is Wanted.NEXT and usual.snapshot_mb:
        most = usual.snapshot_mb << 20
        yield MemoryNeed(("snapshots", key), f"snapshots of {name} (runtime.snapshot_mb a context)", most, at_most=True)


def _weights(model: ModelSettings, facts: ModelFacts, name: str | None) -> Iterator[MemoryNeed]:
    """Yield the memory of the weights of a model, and of its adapters and vision encoder."""
    if facts.sizes is None:
        return
    key, converted = model_key(model), f" as {model.converts_to}" if model.converts_to else ""
    on_cpu = facts.placement.on_cpu
    packed, tied = (facts.sizes.packed_bytes, facts.sizes.tied_bytes) if on_cpu and model.kernels == AUTO else (0, 0)
    weights = {
        HOST: facts.sizes.weights_bytes - (packed - tied),
        **(facts.on_devices.weights if facts.on_devices else {}),
    }
    yield from _in_each(facts, MemoryNeed(key, f"the weights of {name}{converted}", 0, shared=True), weights)
    if packed:
        yield MemoryNeed((*key, "packed"), f"those that are packed (model.kernels) of {name}", packed)
    if facts.adapter_bytes:
        adapters = MemoryNeed((*key, "adapters"), f"the adapters of {name}", 0)
        yield from _in_each(facts, adapters, _by_layers(facts, facts.adapter_bytes))
    if facts.images is not None:
        encoder = MemoryNeed((*key, "mmproj"), f"the vision encoder of {name}", 0)
        yield from _in_each(facts, encoder, {next(iter(facts.placement.devices), HOST): facts.images.size_bytes})


def _by_layers(facts: ModelFacts, size: int) -> dict[str, int]:
    """Return how much of `size` bytes, of which all layers have as much, is in each memory, by the names of devices."""
    placement = facts.placement
    counts = Counter(placement.device_of(layer) for layer in range(placement.layers - 1)) or Counter({HOST: 1})
    return {name: size * count // counts.total() for name, count in counts.items()}


def _in_each(facts: ModelFacts, need: MemoryNeed, sizes: Mapping[str, int]) -> Iterator[MemoryNeed]:
    """Yield `need` with its size in each memory, by the names of devices."""
    for name, size in sizes.items():
        if name == HOST:
            yield replace(need, size_bytes=size)
        elif facts.on_devices is not None:
            memory = facts.on_devices.memory[name]
            yield replace(need, key=(need.key, name), size_bytes=size, shared=False, device=memory)


def _types(settings: EngineSettings) -> str:
    """Return the types of a KV cache in words, where they are not the usual."""
    keys, values = settings.kv_types
    return "" if keys == values == "f16" else f" in {keys}" if keys == values else f" in {keys} and {values}"


def draft_memory(setup: DecodeSetup, model: ModelSettings, settings: EngineSettings, key: Hashable) -> list[MemoryNeed]:
    """Return the memory of the draft model of `setup`, as `model_memory` does; none if it has none."""
    n_ctx_train = inspect_model(model).n_ctx_train
    if setup.draft_model is None or n_ctx_train is None:
        return []
    longest = max_sequence_tokens(settings, n_ctx_train)
    own = replace(of_draft(settings, longest), snapshot_mb=0)
    needs = list(model_memory(of_engine(setup.draft_model, settings), own, ("draft", key)))
    sizes = inspect_model(setup.draft_model).sizes
    if needs and sizes is not None and (state := sizes.state_bytes):
        what = f"states of {setup.draft_model.path} to go back to"
        needs.append(MemoryNeed(("marks", key), what, settings.with_defaults().slots * state))
    return needs
