"""Reads the layers of attention of a model from its header."""

from __future__ import annotations

from collections.abc import Callable, Collection

from operators.engine.backend.attention import Attention
from operators.settings.long_rows import SCALINGS, YARN

RECURRENT = ("ssm.state_size", "ssm.conv_kernel", "wkv.head_size", "shortconv.l_cache")
"""Keys of architectures with recurrent layers."""
_OTHER_CACHES = (*RECURRENT, "attention.kv_lora_rank", "attention.shared_kv_layers")
"""Keys of architectures whose layers do not all keep the keys and values of all heads."""
WINDOW_EVERY = {
    **dict.fromkeys(("gemma2", "gpt-oss"), 2),
    **dict.fromkeys(("cohere2", "exaone4", "exaone-moe", "olmo2", "afmoe", "mellum"), 4),
    **{"gemma3": 6, "plamo3": 8},
}
"""Of so many layers the last has no window, where the file does not say it (llama.cpp's load_swa_pattern)."""
_NO_WINDOW = ("phi3",)
"""Architectures whose window llama.cpp does not use."""
_LEARNED, _TABLES = b"position_embd.weight", (b"rope_freqs.", b"rope_factors_")
_ROPE_BY_KEY = ("granitehybrid",)
"""Architectures in which rope.scaling.finetuned says whether there is RoPE."""
_SCALES_SCORES, _HOW_MUCH = ("deepseek2", "deepseek32", "glm-dsa", "mistral4"), "rope.scaling.yarn_log_multiplier"
"""Architectures of which llama.cpp scales the attention scores with RoPE (kq_scale), which only YaRN has, and the key
without which it does so twice."""


def attention_of(
    architecture: str | None, value: Callable[[str], str | None], tensors: Collection[bytes], *, rope: bool
) -> Attention:
    """Return the attention of a model.

    Args:
        value: returns the value of a key of its architecture as text; None if there is none.
        tensors: names.
        rope: whether llama.cpp has RoPE for it.
    """

    def number(key: str) -> int:
        text = value(key)
        return int(text) if text is not None and text.isdecimal() else 0

    layers, heads, kv_heads = number("block_count"), number("attention.head_count"), number("attention.head_count_kv")
    width = number("embedding_length") // heads if heads else 0
    sizes = number("attention.key_length") or width, number("attention.value_length") or width
    alike = layers and heads and kv_heads and all(value(key) is None for key in _OTHER_CACHES)
    window = 0 if architecture in _NO_WINDOW else number("attention.sliding_window")
    every = number("attention.sliding_window_pattern") or WINDOW_EVERY.get(architecture or "", 0)
    ropes = rope and _LEARNED not in tensors
    if architecture in _ROPE_BY_KEY:
        ropes = ropes and value("rope.scaling.finetuned") != "false"
    return Attention(
        architecture or "",
        layers,
        (kv_heads * sizes[0], kv_heads * sizes[1]) if alike else None,
        sizes,
        latent=value("attention.key_length_mla") is not None or architecture == "deepseek4",
        no_flash=architecture == "grok",
        window=window,
        window_layers=layers - layers // every if window and every else None,
        has_rope=ropes,
        own_table=any(table in name for name in tensors for table in _TABLES),
        scaling=_scaling(value),
        scalings=SCALINGS if architecture not in _SCALES_SCORES else (YARN,) if value(_HOW_MUCH) else (),
    )


def _scaling(value: Callable[[str], str | None]) -> str | None:
    """Return how the file scales RoPE, in words; None if it does not."""
    kind, factor = value("rope.scaling.type") or "linear", float(value("rope.scaling.factor") or 0)
    original, context = value("rope.scaling.original_context_length"), value("context_length")
    if kind == "none" or (factor in (0, 1) and original in (None, context)):
        return None
    return f"{kind} x{factor:g} beyond {original or context} tokens"
