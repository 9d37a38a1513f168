"""Tables of llama.cpp's architectures: those that are refused, and those whose bits tests prove.

docs/models.md has the same tables (tests/families/test_architectures.py compares).
"""

from __future__ import annotations

import platform

import llama_cpp

from operators.llama.kernels import K_QUANTS, has_amx

CLASSES = {
    "llama": "dense",
    "olmo2": "dense",
    "qwen2": "dense",
    "qwen3": "dense",
    "qwen3moe": "experts",
    "gemma3": "sliding window",
    "gpt-oss": "experts, sliding window",
    "falcon-h1": "hybrid",
    "lfm2": "hybrid",
    "qwen35": "hybrid",
    "mamba": "recurrent",
    "mamba2": "recurrent",
}
"""The class of each architecture (`general.architecture` of a GGUF) that tests run; tests/families, tests/llama."""
_FLOATS = frozenset((llama_cpp.LLAMA_FTYPE_ALL_F32, llama_cpp.LLAMA_FTYPE_MOSTLY_BF16))
_DENSE = (
    _FLOATS
    | K_QUANTS
    | {
        llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
        llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
        llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    }
)
PROVEN = {kind: _DENSE if kind == "dense" else _FLOATS for kind in CLASSES.values()}
"""File types whose logits were found to be the same to the bit in any company, by class
(tests/operators/llama/test_decoding.py, tests/families/test_exact.py)."""

_ENCODER = "is an encoder"
_DIFFUSION = "is a diffusion model of a kind that is not supported (decode=block_diffusion takes models such as SDAR)"
_DRAFT = "only guesses tokens for another model"
_PART = "makes or reads sounds or images, as a part of another model"
REFUSED = {
    **dict.fromkeys(
        (
            *("bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "modern-bert"),
            *("neo-bert", "nomic-bert", "nomic-bert-moe", "t5encoder"),
        ),
        _ENCODER,
    ),
    "t5": "has an encoder and a decoder",
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
    **dict.fromkeys(("dflash", "eagle3", "gemma4-assistant"), _DRAFT),
    **dict.fromkeys(("clip", "wavtokenizer-dec"), _PART),
}
"""Architectures that llama.cpp loads and that cannot complete prompts here, and why."""


def doubt(architecture: str | None, file_type: int | None, machine: str | None = None) -> str | None:
    """Say why a row's bits may depend on its neighbours; None: a test proves that they do not.

    Args:
        architecture, file_type: of the model file.
        machine: the processor's kind, as `platform.machine` has it; default: this one's.
    """
    machine = machine or platform.machine()
    kind = CLASSES.get(architecture or "")
    if machine.lower() not in ("x86_64", "amd64"):
        return f"no test ran on a processor of this kind, {machine}"
    if kind is None:
        return f"no test ran a model of its architecture, {architecture}"
    if file_type not in PROVEN[kind]:
        return f"its file type is not tested with its architecture, {architecture} ({kind})"
    if file_type in K_QUANTS and has_amx():
        return "K-quants on a processor with AMX"
    return None
