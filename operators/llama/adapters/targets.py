"""The base of an adapter: its tensors, and which of them llama.cpp multiplies with an adapter.

What its graph multiplies without looking for an adapter (`ggml_mul_mat` where others have `build_lora_mm`) would have
no effect, and nothing would say so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from operators.llama.adapters.tensors import EMBEDDINGS, HEAD, AdapterMatrix, AdapterSource
from operators.llama.gguf_check import ARCHITECTURE, check_gguf
from operators.llama.header import ENCODERS, parts_of

_BLOCK = re.compile(r"(?:blk\.(\d+)\.)?(.+)\.weight")
_EXPERTS = tuple(f"ffn_{which}_{kind}" for which in ("gate", "up", "down") for kind in ("exps", "shexp", "chexps"))
_FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down", "ffn_gate_inp", "ffn_gate_inp_shexp", "ffn_gate_up_exps", *_EXPERTS)
_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "attn_gate")
MULTIPLIED = frozenset(
    (
        *("token_embd", "output"),
        *_ATTENTION,
        *_FEED_FORWARD,
        *("ssm_in", "ssm_out", "ssm_x", "ssm_dt", "ssm_ba", "ssm_alpha", "ssm_beta"),
        *("shortconv.in_proj", "shortconv.out_proj"),
        *(f"time_mix_{which}" for which in ("key", "value", "receptance", "output", "gate")),
        *(f"channel_mix_{which}" for which in ("key", "value", "receptance")),
        *("inp_gate", "proj", "laurel_l", "laurel_r"),
    )
)
"""Names without `blk.N.` that llama.cpp multiplies with an adapter, in all architectures but for these."""
NOT_MULTIPLIED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("deepseek2", "deepseek2-ocr", "mistral4"), ("attn_q", "output")),
    **dict.fromkeys(("deepseek32", "deepseek4", "dots3note", "glm-dsa"), ("output",)),
    "plm": ("attn_q",),
    "hy-v4": ("attn_gate", "output"),
    "glm5-next": ("attn_output", "ssm_beta", "output"),
    "bailingmoe3": ("attn_q", "attn_gate", "attn_output", "ssm_beta", "output"),
    "kimi-linear": ("attn_q", "attn_qkv", "attn_output", "ssm_beta", "output"),
    **dict.fromkeys(("kimi-k3", "granite-switch"), (*_ATTENTION, *_FEED_FORWARD, "ssm_beta", "output")),
}
"""By architecture, those of MULTIPLIED that it multiplies without one."""


@dataclass(frozen=True)
class AdapterBase:
    """What the header of a base model says. `tensors`: their shapes, the length of a row last."""

    path: Path
    architecture: str
    tensors: Mapping[str, tuple[int, ...]]
    numbers: Mapping[str, float]
    """Its keys of its architecture that are numbers, without this beginning."""

    @property
    def is_tied(self) -> bool:
        """Whether the last matrix is the table of tokens, too."""
        return HEAD not in self.tensors and self.architecture not in ENCODERS


def read_base(path: Path) -> AdapterBase:
    """Read the base of an adapter from its file, or the first of its parts. Raises InputError if it is damaged."""
    contents = [check_gguf(part) for part in parts_of(path)]
    named = contents[0].values.get(ARCHITECTURE)
    architecture = named.scalar.decode("utf-8", "replace") if named and isinstance(named.scalar, bytes) else ""
    start = f"{architecture}.".encode()
    numbers = {
        key.removeprefix(start).decode("utf-8", "replace"): number
        for key, value in contents[0].values.items()
        if key.startswith(start) and isinstance(number := value.scalar, (int, float))
    }
    shapes = {
        name.decode("utf-8", "replace"): shape_of(tensor.lengths)
        for each in contents
        for name, tensor in each.tensors.items()
    }
    return AdapterBase(path, architecture, shapes, numbers)


def shape_of(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return numpy's shape of a tensor of a GGUF file, of two dimensions or more if it is a matrix there."""
    shape = list(lengths[::-1])
    while len(shape) > 2 and shape[0] == 1:
        shape.pop(0)
    return tuple(shape)


def check_pair(source: AdapterSource, base: AdapterBase, target: str, a: AdapterMatrix, b: AdapterMatrix) -> None:
    """Raise InputError if an adapter for the tensor `target` of the base would end llama.cpp, or have no effect."""
    shape = base.tensors.get(target)
    if shape is None:
        tied = f", whose last matrix is {EMBEDDINGS} (its embeddings are tied)" if target == HEAD else ""
        raise source.error(
            f"has {a.label}, and the base {base.path} has no tensor {target}{tied}: take the base that the adapter was"
            " trained for, or train without this module"
        )
    if target == EMBEDDINGS and base.is_tied:
        raise source.error(
            f"has {a.label}, and in the base {base.path} {EMBEDDINGS} is the last matrix, too (its embeddings are"
            " tied), where llama.cpp cannot apply it: train without embed_tokens and lm_head, or merge the adapter"
        )
    if why := without_effect(base, target):
        raise source.error(
            f"has {a.label}, which would have no effect: {why}; train without this module, or merge the adapter into"
            " its base with PEFT's merge_and_unload and convert the result"
        )
    _check_shapes(source, base, target, a, b)


def without_effect(base: AdapterBase, target: str) -> str | None:
    """Return why an adapter for a tensor of the base would have no effect; None if it has one."""
    parts = _BLOCK.fullmatch(target)
    layer, name = (int(parts[1] or 0), parts[2]) if parts else (0, target)
    if len(base.tensors[target]) < 2:
        return f"{target} is no matrix"
    if name not in MULTIPLIED or name in NOT_MULTIPLIED.get(base.architecture, ()):
        return f"llama.cpp multiplies {target} of the architecture {base.architecture} without adapters"
    if parts and parts[1] and (count := base.numbers.get("block_count")):
        if layer >= count - base.numbers.get("nextn_predict_layers", 0):
            return f"layer {layer} only guesses further tokens"
        if name in ("attn_k", "attn_v") and layer >= count - base.numbers.get("attention.shared_kv_layers", 0):
            return f"layer {layer} takes the keys and values of another one"
    return None


def _check_shapes(source: AdapterSource, base: AdapterBase, target: str, a: AdapterMatrix, b: AdapterMatrix) -> None:
    *experts, n_out, n_in = base.tensors[target]
    rank_a, rank_b = a.shape[-1 if target == EMBEDDINGS else -2], b.shape[-1]
    if target == EMBEDDINGS:  # the other way around
        fits = a.shape[:-1] == (n_out,) and b.shape[:-1] == (n_in,)
    else:
        fits = a.shape == (*experts, rank_a, n_in) and b.shape[:-1] == (*experts, n_out)
    if fits and rank_a == rank_b > 0:
        return
    if fits:
        raise source.error(
            f"has {a.label} of rank {rank_a} and {b.label} of rank {rank_b}, which must be equal and not 0: it is"
            " damaged; convert or train it again"
        )
    of_experts = f" of {experts[0]} experts" if experts else ""
    raise source.error(
        f"has {a.label} and {b.label} of shapes {_text(a.shape)} and {_text(b.shape)}, which do not fit {target}"
        f" {_text((*experts, n_out, n_in))}{of_experts} of the base {base.path}: take the base that the adapter was"
        " trained for"
    )


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
