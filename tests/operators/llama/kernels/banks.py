"""Adapters with random weights, banks of them as our kernels read them, and contexts that compute with one."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from numpy.typing import NDArray

from operators.llama.contexts.context import IS_SET
from operators.llama.kernels import keep_rows_apart
from operators.llama.library import initialise
from operators.llama.packed import load_model, state

ALL = r"(attn_(q|k|v|output|qkv)|ffn_(gate|up|down)(_exps)?)\.weight$"
Floats = NDArray[np.float32]
Adapter = Mapping[str, tuple[Floats, Floats]]
"""By the name of a matrix, A (rank, inputs) and B (outputs, rank), of each expert where there are some; of the table of
tokens A is (tokens, rank)."""
TABLE = "token_embd.weight"


class Span(NamedTuple):
    """Tokens of a sequence in a call, from a position on; `outputs`: how many of the last ones have logits."""

    sequence: int
    first: int
    tokens: Sequence[int]
    outputs: int = 1


def adapter(base: Path, seed: int, rank: int = 16, names: str = ALL, strength: float = 0.5) -> Adapter:
    """Make an adapter for the matrices of a model whose names match."""
    random, made = np.random.default_rng(seed), {}
    for tensor in GGUFReader(base).tensors:
        sizes = [int(size) for size in tensor.shape]
        if len(sizes) > 1 and re.search(names, tensor.name):
            inputs, outputs, *experts = sizes
            if tensor.name == TABLE:
                inputs, outputs = outputs, inputs
            a = random.standard_normal((*experts, rank, inputs), np.float32) / np.float32(inputs**0.5)
            b = random.standard_normal((*experts, outputs, rank), np.float32) * np.float32(strength / rank**0.5)
            made[tensor.name] = (np.ascontiguousarray(a.T), 0.1 * b) if tensor.name == TABLE else (a, b)
    return made


def write_bank(path: Path, base: Path, adapters: Sequence[Adapter], *, transposed: bool = True) -> NDArray[np.int32]:
    """Write adapters for the same matrices side by side, each B transposed; return where their ranks begin. One that is
    not transposed is an adapter as llama.cpp reads it."""
    architecture = GGUFReader(base).fields["general.architecture"].contents()
    writer = GGUFWriter(path, architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    for name in adapters[0]:
        a = np.concatenate([each[name][0] for each in adapters], axis=-1 if name == TABLE else -2)
        b = np.concatenate([each[name][1] for each in adapters], axis=-1)
        writer.add_tensor(f"{name}.lora_a", a)
        turned = np.ascontiguousarray(b.swapaxes(-1, -2)).reshape(b.shape) if transposed else b
        writer.add_tensor(f"{name}.lora_b", turned)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ranks = [next(iter(each.values()))[1].shape[-1] for each in adapters]
    return np.cumsum([0, *ranks[:-1]], dtype=np.int32)


class Mixing:
    """A context whose rows have adapters of a bank: `masks`, of each sequence, may be changed between calls."""

    def __init__(self, path: Path, bank: Path | None, begins: NDArray[np.int32], *, ours: bool = True, **settings: Any):
        initialise()
        keep_rows_apart(True)  # read at the first product of a process, which other tests are in
        library, what = state()
        if library is None:
            pytest.skip(what)
        self.library, self._begins = library, begins
        params = llama_cpp.llama_model_default_params()
        self._model, _ = load_model(path, params, (0, 0), ours=ours, repacks=False)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        options = llama_cpp.llama_context_default_params()
        chosen = {"n_seq_max": 8, "n_threads": 2, "n_ubatch": 512, "kv_unified": False} | settings
        chosen = {"n_ctx": 128 * chosen["n_seq_max"], "n_threads_batch": chosen["n_threads"]} | chosen
        for name, value in chosen.items():
            setattr(options, name, value)
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        assert self._context
        self.masks = np.zeros(options.n_seq_max, np.uint64)
        self._batch = llama_cpp.llama_batch_init(1024, 0, 1)
        self._abort = ctypes.create_string_buffer(2)
        llama_cpp.llama_set_abort_callback(self._context, IS_SET, ctypes.cast(self._abort, ctypes.c_void_p))
        if bank is not None:
            self.set(bank)

    def set(self, bank: Path) -> None:
        """Set a file of llama.cpp's as the only adapter, with scale 1."""
        loaded = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(
            llama_cpp.llama_adapter_lora_init(self._model, str(bank).encode())
        )
        assert loaded[0]
        assert llama_cpp.llama_set_adapters_lora(self._context, loaded, 1, (ctypes.c_float * 1)(1.0)) == 0

    def use(self, kernels: str, threads: int = 2) -> None:
        """Have kernels by that name compute, by so many threads."""
        assert self.library.kernels_use(kernels.encode())
        llama_cpp.llama_set_n_threads(self._context, threads, threads)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)

    def plan(self, spans: Sequence[Span]) -> None:
        """Have llama.cpp plan a call and not compute it."""
        self._abort.value = b"!"
        with pytest.raises(AssertionError, match="2"):
            self.call(spans)
        self._abort.value = b""
        self.clear()

    def call(self, spans: Sequence[Span], *, mixes: bool = True) -> Floats:
        """Return the logits of a call, (outputs, words)."""
        batch, i = self._batch, 0
        for sequence, first, tokens, outputs in spans:
            for at, token in enumerate(tokens):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, first + at, 1, sequence
                batch.logits[i] = at >= len(tokens) - outputs
                i += 1
        batch.n_tokens = i
        if mixes:
            masks, begins = self.masks.ctypes.data, self._begins.ctypes.data
            self.library.kernels_mix(masks, len(self.masks), begins, len(self._begins))
        self.library.kernels_attend(True)
        self.library.kernels_others()
        self.library.kernels_unmixed()
        try:
            code = llama_cpp.llama_decode(self._context, batch)
            assert code == 0, code
        finally:
            self.unmixed, self.others = self.library.kernels_unmixed(), self.library.kernels_others()
            self.library.kernels_mix(None, 0, None, 0)
            self.library.kernels_attend(False)
        wanted = sum(span.outputs for span in spans)
        if not wanted:
            return np.empty((0, self.n_vocab), np.float32)
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), (wanted, self.n_vocab)).copy()

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)
        self.library.kernels_use(b"")

    def __enter__(self) -> Mixing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
