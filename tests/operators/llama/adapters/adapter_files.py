"""Adapters for tests: random ones, in GGUF files and folders of PEFT, merged into their base, and run by llama.cpp."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

from operators.llama.adapters.prepared import read_adapter
from operators.llama.adapters.targets import AdapterBase, read_base, without_effect
from operators.llama.adapters.tensors import EMBEDDINGS, AdapterSource
from operators.llama.library import initialise
from tests.operators.llama.gguf_files import copied, write_file

FAMILIES = Path(__file__).parents[3] / "families"
LLAMA, QWEN3, MOE = (FAMILIES / f"{name}.gguf" for name in ("llama", "qwen3", "qwen3moe"))
Pair = tuple[np.ndarray, np.ndarray]
STANDARD = {"general.type": "adapter", "adapter.type": "lora"}


def drawn(base: AdapterBase, targets: Sequence[str], rank: int = 4, seed: int = 0) -> dict[str, Pair]:
    """Draw A and B for tensors of a base."""
    rng, pairs = np.random.default_rng(seed), {}
    for target in targets:
        *experts, n_out, n_in = base.tensors[target]
        shapes = (n_out, rank), (n_in, rank)
        if target != EMBEDDINGS:
            shapes = (*experts, rank, n_in), (*experts, n_out, rank)  # type: ignore[assignment]
        a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
        pairs[target] = a / np.float32(4 if target == EMBEDDINGS else n_in**0.5), b / np.float32(4 * rank**0.5)
    return pairs


def write_adapter(
    path: Path,
    pairs: Mapping[str, Pair],
    architecture: str,
    *,
    alpha: Any = None,
    keys: Mapping[str, Any] = STANDARD,
    kind: str = "F32",
    more: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write a GGUF adapter. `keys`: texts, or functions that add a key to the writer. `more`: further tensors."""
    writer = GGUFWriter(path, architecture)
    for key, value in keys.items():
        value(writer) if callable(value) else writer.add_string(key, value)
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    raw = GGMLQuantizationType[kind]
    for target, halves in pairs.items():
        for suffix, values in zip((".lora_a", ".lora_b"), halves, strict=True):
            as_is = values.dtype != np.float32 or kind == "F32"
            data = values if as_is else quants.quantize(np.ascontiguousarray(values), raw)
            writer.add_tensor(target + suffix, data, raw_dtype=None if as_is or kind == "F16" else raw)
    for name, values in (more or {}).items():
        writer.add_tensor(name, values)
    write_file(writer)
    return path


def write_peft(folder: Path, tensors: Mapping[str, np.ndarray], **config: Any) -> Path:
    """Write a folder as PEFT does. `tensors`: by their whole names; F32, F16, or uint16 for BF16."""
    folder.mkdir(exist_ok=True)
    said = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_rslora": False, "use_dora": False, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(said | config))
    write_safe_tensors(folder / "adapter_model.safetensors", tensors)
    return folder


def write_safe_tensors(path: Path, tensors: Mapping[str, np.ndarray], edit: Any = None) -> None:
    """Write a file of safetensors. `edit`: changes its header."""
    names, at = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int8": "I8"}, 0
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, values in tensors.items():
        header[name] = {
            "dtype": names[str(values.dtype)],
            "shape": values.shape,
            "data_offsets": [at, at + values.nbytes],
        }
        at += values.nbytes
    if edit:
        edit(header)
    text = json.dumps(header).encode()
    data = b"".join(np.ascontiguousarray(values).tobytes() for values in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def peft_names(module: str, pair: Pair) -> dict[str, np.ndarray]:
    """Return the tensors of a module's adapter by PEFT's names."""
    return {f"base_model.model.{module}.lora_{half}.weight": value for half, value in zip("AB", pair, strict=True)}


def delta(target: str, pair: Pair) -> np.ndarray:
    """Return what an adapter adds to a tensor, as float64."""
    a, b = (half.astype(np.float64) for half in pair)
    return a @ b.T if target == EMBEDDINGS else b @ a


def merged(base: Path, path: Path, pairs: Mapping[str, Pair], scale: float) -> Path:
    """Write the base with what an adapter adds, by numpy."""

    def rows(tensor: Any) -> np.ndarray:
        if tensor.name not in pairs:
            return np.array(tensor.data)
        added = tensor.data.astype(np.float64) + scale * delta(tensor.name, pairs[tensor.name])
        return added.astype(np.float32)

    return copied(base, path, rows=rows)


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    """Return the values of a GGUF file in F32."""
    return {tensor.name: np.array(tensor.data) for tensor in GGUFReader(path).tensors}


def read(path: Path, base: Path, scale: float = 1.0, name: str = "support") -> Any:
    return read_adapter(AdapterSource(name, path, scale), base)


class TinyModel:
    """A model of llama.cpp whose logits are asked for, with an adapter or without; in F32 throughout."""

    def __init__(self, path: Path) -> None:
        initialise()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 64
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._batch = llama_cpp.llama_batch_init(64, 0, 1)
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def logits(self, adapter: Path | None = None, tokens: Sequence[int] = range(3, 23)) -> np.ndarray:
        """Return those behind each of `tokens`, which are read with the adapter."""
        adapters = [] if adapter is None else [llama_cpp.llama_adapter_lora_init(self._model, str(adapter).encode())]
        assert all(adapters), adapter
        handles = (llama_cpp.llama_adapter_lora_p_ctypes * len(adapters))(*adapters)
        llama_cpp.llama_set_adapters_lora(self._context, handles, len(adapters), (ctypes.c_float * 1)(1.0))
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        batch = self._batch
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        batch.n_tokens = len(tokens)
        assert llama_cpp.llama_decode(self._context, batch) == 0
        values = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), (len(tokens), self._n_vocab))
        return values.copy()

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)


@contextmanager
def tiny_model(path: Path) -> Any:
    """Open a TinyModel for a block."""
    model = TinyModel(path)
    try:
        yield model
    finally:
        model.close()


def architecture_of(path: Path) -> str:
    return read_base(path).architecture


def accepted(base: AdapterBase) -> list[str]:
    """Return the tensors of a base that an adapter may be for."""
    matrices = [name for name, shape in base.tensors.items() if len(shape) > 1]
    tied = {EMBEDDINGS} if base.is_tied else set()
    return [name for name in matrices if name not in tied and without_effect(base, name) is None]


def refused(base: AdapterBase) -> list[str]:
    """Return its matrices for which an adapter would have no effect."""
    return [name for name, shape in base.tensors.items() if len(shape) > 1 and without_effect(base, name)]
