"""Tiny configurations of model families that read pictures, and the prompts of their references, for make_images.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MARK = "<image>"
PROMPTS: tuple[tuple[str, int], ...] = (
    # The text, and which of a family's pictures its first one is.
    (f"{MARK}What-is-this?", 0),  # needs no resizing
    (f"{MARK}What-is-this?", 1),
    (f"First:{MARK}then:{MARK}Which-is-older?", 2),
    (f"Look-at-this,please:{MARK}!", 4),
)
PICTURES: dict[str, tuple[tuple[int, int], ...]] = {
    "qwen": ((128, 96), (200, 150), (100, 70), (64, 160), (30, 20)),
    "smolvlm": ((128, 64), (200, 150), (90, 70), (32, 128), (40, 30)),
    "gemma3": ((64, 64), (200, 150), (90, 70), (32, 128), (40, 30)),
}
"""Width and height. 200 is twelve and a half cells of Qwen, which Python rounds to twelve; 30 x 20 is enlarged."""

SPECIAL = {
    "qwen": ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
    "smolvlm": (
        *("<fake_token_around_image>", "<global-img>", "<image>"),
        *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
    ),
    "gemma3": ("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
}
TWO_LINES = "\n\n"
PAD = {"qwen": "<|image_pad|>", "smolvlm": "<image>", "gemma3": "<image_soft_token>"}

TEXT = {"hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1} | {
    **{"num_hidden_layers": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}
}
_MROPE = {"rope_type": "default", "type": "mrope", "mrope_section": [4, 6, 6], "rope_theta": 10_000.0}
_NO_EPS = {"rms_norm_eps": 1e-12}  # for this architecture llama.cpp does not read it, and takes 0
_ENCODER = {"hidden_size": 32, "num_heads": 2, "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2}
_SIGLIP = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2} | {
    **{"image_size": 64, "patch_size": 8}
}
_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_QWEN = {"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 8 * 256, "max_pixels": 4096 * 256}

# Name: class of transformers, values beside TEXT, of the encoder, of both, and of the processor of pictures.
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen2vl": (  # fewer than three layers of the encoder the converter does not know
        "Qwen2VL",
        {"rope_parameters": _MROPE} | _NO_EPS,
        _ENCODER | {"depth": 3, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2},
        {},
        _QWEN | _CLIP,
    ),
    "qwen2.5vl": (  # llama.cpp knows no other window
        "Qwen2_5_VL",
        {"rope_parameters": _MROPE} | _NO_EPS,
        _ENCODER
        | {"depth": 3, "out_hidden_size": 64, "intermediate_size": 64, "window_size": 112}
        | {"fullatt_block_indexes": [1]},
        {},
        _QWEN | _CLIP,
    ),
    # Cells of the first layers of the encoder go to the first layers of the text model. With sections as published,
    # 24, 20 and 20, two of 64 numbers of a head have position 0 in llama.cpp.
    "qwen3vl": (
        "Qwen3VL",
        {"rope_parameters": _MROPE | {"mrope_section": [6, 5, 5]}, "num_hidden_layers": 3, "head_dim": 32},
        _ENCODER
        | {"depth": 3, "out_hidden_size": 64, "intermediate_size": 64, "num_position_embeddings": 64}
        | {"deepstack_visual_indexes": [0, 1]},
        {},
        _QWEN | _HALF,
    ),
    "smolvlm": (
        "Idefics3",
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        _SIGLIP,
        {"scale_factor": 2},
        _HALF
        | {"max_image_size": {"longest_edge": 64}, "size": {"longest_edge": 128}, "resample": 1}
        | {"return_row_col_info": True},
    ),
    "gemma3": (  # the sixth layer is the first without a window
        "Gemma3",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "num_hidden_layers": 6, "sliding_window": 32},
        _SIGLIP | {"vision_use_head": False},
        {"mm_tokens_per_image": 16},
        _HALF | {"size": {"height": 64, "width": 64}, "resample": 2, "image_seq_length": 16},
    ),
}


def kind_of(family: str) -> str:
    """Return what a family has its tokens, its processor of pictures and their sizes from."""
    return family if family in SPECIAL else "qwen"


def picture(width: int, height: int, seed: int) -> NDArray[np.uint8]:
    """Return a picture with slopes and edges, uint8 [height, width, 3], by whole numbers alone."""
    x, y = np.arange(width)[None, :, None], np.arange(height)[:, None, None]
    color = np.arange(3) + 5 * seed + 1
    waves = np.abs((x * (color % 7 + 2) + y * (color * 3 % 11 + 1) + 90 * color) % 510 - 255)
    inside = (x > width // 4) & (x < width // 2) & (y > height // 3) & (y < 3 * height // 4)
    found: NDArray[np.uint8] = np.where(inside, color * 53 % 256, waves).astype(np.uint8)
    return found


def pictures_of(name: str, prompt: int) -> list[tuple[int, int, int]]:
    """Return width, height and seed of the pictures of a prompt."""
    text, first = PROMPTS[prompt]
    sizes = PICTURES[kind_of(name)]
    return [(*sizes[i], i) for i in range(first, first + text.count(MARK))]
