"""A GGUF of the architecture qwen3 as a checkpoint of transformers, in float32."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTSIDE = {"token_embd": "embed_tokens", "output_norm": "norm"}


def export(path: Path, directory: Path) -> None:
    """Write the weights and the tokenizer of the GGUF `path` into `directory`."""
    reader = gguf.GGUFReader(path)
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()

    def number(key: str) -> int | float:
        return reader.fields[f"{architecture}.{key}"].contents()

    weights = {}
    for tensor in reader.tensors:
        name = tensor.name.removesuffix(".weight")
        if name.startswith("blk."):
            _, layer, part = name.split(".")
            name = f"layers.{layer}.{BLOCK[part]}"
        else:
            name = OUTSIDE[name]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        shape = [int(size) for size in reversed(tensor.shape)]
        weights[f"model.{name}.weight"] = torch.from_numpy(np.array(values, np.float32).reshape(shape))
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    config = Qwen3Config(
        vocab_size=len(weights["lm_head.weight"]),
        hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"),
        num_hidden_layers=number("block_count"),
        num_attention_heads=number("attention.head_count"),
        num_key_value_heads=number("attention.head_count_kv"),
        head_dim=number("attention.key_length"),
        max_position_embeddings=number("context_length"),
        rms_norm_eps=number("attention.layer_norm_rms_epsilon"),
        rope_theta=number("rope.freq_base"),
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config)
    model.load_state_dict(weights)
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name).save_pretrained(directory)
