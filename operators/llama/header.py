"""The metadata of a GGUF file, read without its weights."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from pathlib import Path

import llama_cpp

from operators.llama.architectures import REFUSED
from operators.llama.gguf_check import check_gguf
from operators.llama.library import forget_errors, initialise, last_errors
from operators.llama.split import parts_of
from pipeline.api.errors import InputError

_OTHER_CACHES = (
    "ssm.state_size",
    "ssm.conv_kernel",
    "wkv.head_size",
    "shortconv.l_cache",
    "attention.kv_lora_rank",
    "attention.shared_kv_layers",
)
"""Keys of architectures whose layers do not all keep the keys and values of all heads."""


@dataclass(frozen=True)
class Header:
    """Facts of a GGUF file; None if it does not say.

    Args:
        architecture: `general.architecture`.
        file_type: `general.file_type`, one of llama.cpp's LLAMA_FTYPE numbers.
        n_ctx_train: tokens of context that the model was trained for.
        n_embd: numbers in an embedding.
        n_vocab: tokens in the vocabulary.
        kv_values: numbers in the KV cache for a token, in all layers.
    """

    architecture: str | None
    file_type: int | None
    n_ctx_train: int | None
    n_embd: int | None
    n_vocab: int = 0
    kv_values: int | None = None


def read_header(path: Path) -> Header:
    """Read the header of a model; cached until the size or modification time of one of its files changes.

    Raises:
        InputError: a file of it is damaged or cut off, or it is of an architecture that llama.cpp does not know or
            that is refused here.
    """
    found = [part.stat() for part in parts_of(path)]
    return _read(path, tuple((status.st_size, status.st_mtime_ns) for status in found))


@functools.lru_cache(maxsize=64)
def _read(path: Path, states: tuple[tuple[int, int], ...]) -> Header:
    for part in parts_of(path):
        check_gguf(part)
    initialise()
    forget_errors()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise InputError(f"{path} could not be loaded: {last_errors()}")
    try:
        architecture = _value(model, "general.architecture")
        n_embd = _number(model, f"{architecture}.embedding_length_out")
        _refuse(path, architecture, causal=_value(model, f"{architecture}.attention.causal"))
        return Header(
            architecture,
            _number(model, "general.file_type"),
            _number(model, f"{architecture}.context_length"),
            _number(model, f"{architecture}.embedding_length") if n_embd is None else n_embd,
            llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model)),
            _kv_values(model, architecture),
        )
    finally:
        llama_cpp.llama_model_free(model)


def _refuse(path: Path, architecture: str | None, causal: str | None) -> None:
    """Raise InputError for a model that cannot complete prompts here."""
    reason = REFUSED.get(architecture or "")
    if reason is None and causal == "false":
        reason = "looks at what comes behind a token, as encoders and diffusion models do"
    if reason is not None:
        raise InputError(
            f"{path}: a model of the architecture {architecture} {reason}; take one that continues texts"
            " (docs/models.md has a list)"
        )


def _kv_values(model: ctypes.c_void_p, architecture: str | None) -> int | None:
    """Count the numbers of a token's keys and values in all layers. None if layers differ or cache something else."""
    if any(_value(model, f"{architecture}.{key}") is not None for key in _OTHER_CACHES):
        return None
    layers = _number(model, f"{architecture}.block_count")
    heads = _number(model, f"{architecture}.attention.head_count")
    if layers is None or not heads:
        return None
    kv_heads = _number(model, f"{architecture}.attention.head_count_kv")
    width = (_number(model, f"{architecture}.embedding_length") or 0) // heads
    lengths = [_number(model, f"{architecture}.attention.{which}_length") or width for which in ("key", "value")]
    return None if kv_heads is None else layers * kv_heads * sum(lengths)


def _value(model: ctypes.c_void_p, key: str) -> str | None:
    text = ctypes.create_string_buffer(256)
    count = llama_cpp.llama_model_meta_val_str(model, key.encode(), text, len(text))
    return text.value.decode("utf-8", "replace") if count >= 0 else None


def _number(model: ctypes.c_void_p, key: str) -> int | None:
    text = _value(model, key)
    return int(text) if text is not None and text.isdecimal() else None
