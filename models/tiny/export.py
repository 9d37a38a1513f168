"""Write a training checkpoint as GGUF: `python -m models.tiny.export --from outputs/tiny_train --name tiny`.

The architecture is qwen3 (rotary positions in the NEOX layout), so weights go in as they are. There is no output
matrix: llama.cpp then uses the token embedding.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from models.tiny.chat import CHAT_TEMPLATE, END, END_OF_TEXT, MASK, PRE_TOKENIZER, SPECIALS
from models.tiny.shape import Shape

QUANTISED = {
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}
BLOCK_NAMES = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


def tensor_name(name: str) -> str:
    """The GGUF name of a parameter, such as blk.0.attn_q.weight for blocks.0.q.weight."""
    if not name.startswith("blocks."):
        return {"embed.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[name]
    _, index, part, _ = name.split(".")
    return f"blk.{index}.{BLOCK_NAMES[part]}.weight"


def parameter_name(name: str) -> str:
    """The parameter that a tensor of a GGUF holds, such as blocks.0.q.weight for blk.0.attn_q.weight."""
    if not name.startswith("blk."):
        return {"token_embd.weight": "embed.weight", "output_norm.weight": "norm.weight"}[name]
    _, index, part, _ = name.split(".")
    return f"blocks.{index}.{next(own for own, theirs in BLOCK_NAMES.items() if theirs == part)}.weight"


def add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """The hyper-parameters."""
    writer.add_license("mit")
    writer.add_description("A small instruct model for examples and tests, trained on generated tasks.")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_vocab_size(shape.vocab)


def add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """The vocabulary, merges, special tokens and chat template of a tokenizer.json."""
    bpe = json.loads(path.read_text())["model"]
    ids: dict[str, int] = bpe["vocab"]
    tokens = sorted(ids, key=ids.__getitem__)
    types = [gguf.TokenType.CONTROL if token in SPECIALS else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZER)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]])
    writer.add_bos_token_id(ids[END_OF_TEXT])
    writer.add_pad_token_id(ids[END_OF_TEXT])
    writer.add_eos_token_id(ids[END])
    writer.add_mask_token_id(ids[MASK])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_gguf(
    path: Path, name: str, shape: Shape, tensors: dict[str, NDArray[np.float32]], tokenizer: Path, quantisation: str
) -> None:
    """Write a whole model called `name`; matrices in `quantisation` (a key of QUANTISED), norms in float32."""
    kind, file_type = QUANTISED[quantisation]
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "qwen3")
    writer.add_file_type(file_type)
    writer.add_name(name)
    add_shape(writer, shape)
    add_tokenizer(writer, tokenizer)
    for parameter, values in tensors.items():
        used = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor_name(parameter), gguf.quants.quantize(values, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(path)


def export(checkpoint: Path, tokenizer: Path, path: Path, quantisation: str, name: str = "tiny") -> dict[str, Any]:
    """Write the model of a checkpoint; returns what the checkpoint says of its training (plan, step, tokens)."""
    import torch

    state = torch.load(checkpoint, weights_only=True, map_location="cpu")
    tensors = {name: values.float().numpy() for name, values in state["model"].items()}
    write_gguf(path, name, Shape(**state["shape"]), tensors, tokenizer, quantisation)
    return {key: state[key] for key in ("plan", "step", "tokens")}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m models.tiny.export", description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, default=Path("outputs/tiny_train"), help="training --out")
    parser.add_argument("--type", choices=tuple(QUANTISED), default="q8_0")
    parser.add_argument("--name", default="tiny", help="what the model is called (default %(default)s)")
    parser.add_argument("--out", type=Path, help="default: models/tiny/NAME-TYPE.gguf")
    options = parser.parse_args()
    path = options.out or Path(__file__).with_name(f"{options.name}-{options.type}.gguf")
    source: Path = options.source
    told = export(source / "checkpoint.pt", source / "tokenizer.json", path, options.type, options.name)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, step {told['step']}, {told['tokens'] / 1e6:.1f} M tokens")


if __name__ == "__main__":
    main()
