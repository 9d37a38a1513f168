"""The bytes that a model and its contexts take on each device, by the header of its file and its placement."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from operators.engine.backend.loading import DeviceSizes
from operators.engine.backend.placement import LayerPlacement
from operators.engine.backend.shape import decoder_shape
from operators.engine.strategies.base import IMAGE_ROW_TOKENS
from operators.llama.asked_devices import planned_devices
from operators.llama.gguf_check import Tensor, check_gguf
from operators.llama.header import parts_of, read_header
from operators.llama.packed import LOOKED_UP, OUTPUT, TABLE, bytes_of
from operators.settings import ModelSettings
from operators.settings.runtime import DEFAULT_SEQUENCE_TOKENS, EngineSettings
from pipeline.api.identity import DeviceMemory

_LAYER = re.compile(r"\bblk\.(\d+)\.")
_INPUT = -1
_F32_BYTES, _MASK_BYTES = 4, 6
_WIDTHS, _WIDEST, _STATES = 12, 4, 3
"""Of what a device computes with: so many activations of the model's width and of its widest product, for each token of
a call; and so many states of each recurrent layer."""


class Weight(NamedTuple):
    """A tensor of a model. `layer`: that it is in; for what makes logits the number of layers, and _INPUT for tables,
    which are in the memory of the machine. `width`: numbers that a token's product with it has."""

    name: str
    layer: int
    size: int
    width: int = 0


class Layers(NamedTuple):
    """The layers of a model, before the one that makes logits, with its tensors. `heads`: of attention."""

    n_layers: int
    weights: tuple[Weight, ...]
    heads: int

    @property
    def has_experts(self) -> bool:
        """True if some layers have experts."""
        return any("exps." in weight.name for weight in self.weights)


class ContextBytes(NamedTuple):
    """What contexts take: for each layer, for computing on each device, and for logits."""

    layer: int
    computing: int
    logits: int


def layers_of(path: Path) -> Layers:
    """Return the layers of a model; cached until one of its files changes."""
    states = map(Path.stat, parts_of(path))
    return _layers(path, tuple((status.st_size, status.st_mtime_ns) for status in states))


@functools.lru_cache(maxsize=16)
def _layers(path: Path, states: tuple[tuple[int, int], ...]) -> Layers:
    header, contents = read_header(path), [check_gguf(part) for part in parts_of(path)]
    tensors = {name: tensor for each in contents for name, tensor in each.tensors.items()}

    def number(key: str, other: int) -> int:
        value = contents[0].values.get(f"{header.architecture}.{key}".encode())
        return value.scalar if value is not None and isinstance(value.scalar, int) else other

    numbers = [int(found[1]) for name in tensors if (found := _LAYER.search(_text(name)))]
    count = number("block_count", 1 + max(numbers, default=-1))
    weights = [_weight(name, tensor, count, header.work.experts_used) for name, tensor in tensors.items()]
    if OUTPUT not in tensors and TABLE in tensors:  # where logits are made on a device, the table is there, too
        weights.append(Weight(_text(OUTPUT), count, bytes_of(tensors[TABLE])))
    return Layers(count, tuple(weights), number("attention.head_count", 1))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _weight(key: bytes, tensor: Tensor, count: int, experts_used: int) -> Weight:
    name, lengths = _text(key), tensor.lengths
    if key.startswith(LOOKED_UP):
        return Weight(name, _INPUT, bytes_of(tensor))
    if (found := _LAYER.search(name)) is None:
        return Weight(name, count, bytes_of(tensor))
    width = 0 if len(lengths) < 2 else lengths[1] * (experts_used if len(lengths) > 2 else 1)
    return Weight(name, int(found[1]), bytes_of(tensor), width)


def context_bytes(path: Path, settings: ModelSettings, room: EngineSettings) -> ContextBytes:
    """Return what a context with the settings `room` takes: of the KV cache what its formula gives, as far as it is
    on devices; of buffers for computing a guess from above."""
    header, layers, usual = read_header(path), layers_of(path), room.with_defaults()
    most = usual.rope.most_tokens(header.n_ctx_train or DEFAULT_SEQUENCE_TOKENS)
    longest = usual.max_sequence_tokens or (DEFAULT_SEQUENCE_TOKENS if settings.mmproj is None else IMAGE_ROW_TOKENS)
    usual = replace(usual, max_sequence_tokens=min(longest, most))
    if settings.mmproj is not None or header.encoder is not None:  # a call is computed at once
        usual = replace(usual, n_ubatch=usual.n_batch)
    shape = decoder_shape(usual, most)
    states = shape.streams * header.state_bytes
    kept = header.attention.kv_bytes(shape, usual) + states if usual.kv_offload else 0
    cells = shape.kv_cells if shape.n_ctx or header.encoder is not None else shape.kv_cells // shape.streams
    scores = 0 if shape.flash_attention and not header.attention.no_flash else _F32_BYTES * layers.heads
    widths = _WIDTHS * (header.n_embd or 0) + _WIDEST * max(weight.width for weight in layers.weights)
    computing = shape.n_ubatch * (_F32_BYTES * widths + cells * (_MASK_BYTES + scores))
    outputs = min(shape.outputs, shape.n_ubatch) if header.encoder is None else 0
    return ContextBytes(
        -(-kept // max(layers.n_layers, 1)),
        computing + _STATES * states // max(layers.n_layers, 1),
        _F32_BYTES * outputs * header.n_vocab * (1 if usual.device_sampling is False else 2),  # the top-k reads a copy
    )


def bytes_on(placement: LayerPlacement, layers: Layers, context: ContextBytes) -> Counter[str]:
    """Return the bytes on each device, HOST among them, of weights and a context."""
    moved = [(re.compile(pattern), to) for pattern, to in placement.elsewhere]
    sizes: Counter[str] = Counter()
    for name, layer, size, _ in layers.weights:
        usual = placement.device_of(layer)
        sizes[next((to for pattern, to in moved if pattern.search(name)), usual)] += size
    for layer in range(layers.n_layers):
        sizes[placement.device_of(layer)] += context.layer
    sizes[placement.device_of(layers.n_layers)] += context.logits
    for device in list(sizes):
        sizes[device] += context.computing
    return sizes


def device_sizes(path: Path, settings: ModelSettings, placement: LayerPlacement) -> DeviceSizes:
    """Return what a model that is not loaded will take of the devices of `placement`."""
    layers, by_name = layers_of(path), {device.name: device for device in planned_devices()}
    used = [by_name[name] for name in placement.devices]

    def computing(room: EngineSettings) -> Mapping[str, int]:
        context = context_bytes(path, settings, room)._replace(layer=0)
        return bytes_on(placement, layers._replace(weights=()), context)

    return DeviceSizes(
        {each.name: DeviceMemory(each.name, each.free, each.total) for each in used},
        bytes_on(placement, layers, ContextBytes(0, 0, 0)),
        computing,
    )
