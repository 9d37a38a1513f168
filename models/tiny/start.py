"""What a run goes on from: the weights, sizes and tokenizer of a GGUF file that models.tiny.export has written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from models.tiny.chat import tokenizer_of
from models.tiny.export import parameter_name
from models.tiny.shape import Shape


@dataclass(frozen=True)
class Start:
    """`tensors`: the parameters of TinyModel by name, float32."""

    shape: Shape
    tensors: dict[str, NDArray[np.float32]]
    tokenizer: Tokenizer


def start_of(path: Path) -> Start:
    """The start that a file is."""
    reader = gguf.GGUFReader(path)
    read = {name: field.contents() for name, field in reader.fields.items()}
    shape = Shape(
        vocab=len(read["tokenizer.ggml.tokens"]),
        width=read["qwen3.embedding_length"],
        layers=read["qwen3.block_count"],
        heads=read["qwen3.attention.head_count"],
        kv_heads=read["qwen3.attention.head_count_kv"],
        head_dim=read["qwen3.attention.key_length"],
        feed_forward=read["qwen3.feed_forward_length"],
        context=read["qwen3.context_length"],
        rope_base=read["qwen3.rope.freq_base"],
        norm_eps=read["qwen3.attention.layer_norm_rms_epsilon"],
    )
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        sizes = [int(size) for size in reversed(tensor.shape)]
        tensors[parameter_name(tensor.name)] = np.array(values.reshape(sizes), np.float32)
    tokenizer = tokenizer_of(read["tokenizer.ggml.tokens"], read["tokenizer.ggml.merges"])
    return Start(shape, tensors, tokenizer)
