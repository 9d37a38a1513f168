"""Makes contexts of llama.cpp: their parameters, and the batch over arrays of ours."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import llama_cpp
import numpy as np
from gguf import GGMLQuantizationType

from operators.engine.backend.batch import BatchBuffer
from operators.engine.backend.interface import ROLLBACK_ROOM
from operators.engine.backend.placement import LayerPlacement
from operators.engine.backend.shape import DecoderShape, Wanted
from operators.llama.devices.no_room import no_room
from operators.llama.library import forget_errors, last_errors
from operators.settings.checks import usable_cores
from operators.settings.long_rows import FULL, SMALL, YARN, RopeSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError

MOST_AT_ONCE = 2048
"""Tokens that a device computes at once. It does not stop in between; between two such parts of a call the CPU does."""


class BatchView:
    """A llama_batch over the arrays of `buffer`, which must outlive it."""

    def __init__(self, buffer: BatchBuffer) -> None:
        self._counts = np.ones(buffer.capacity, np.int32)
        addresses = buffer.seq_id.ctypes.data + 4 * np.arange(buffer.capacity, dtype=np.uint64)
        self._addresses = addresses.astype(np.uintp)
        self._batch = llama_cpp.llama_batch(
            n_tokens=0,
            token=buffer.token.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            embd=None,
            pos=buffer.pos.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            n_seq_id=self._counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=self._addresses.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            logits=buffer.output.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def first(self, n_tokens: int) -> llama_cpp.llama_batch:
        """Return the batch of the first `n_tokens` tokens."""
        self._batch.n_tokens = n_tokens
        return self._batch


def check_calls(shape: DecoderShape, *, rolls_back: bool) -> None:
    """Raise ConfigError for calls that would end the process in llama.cpp: the blocks of all rows do not fit, or fewer
    tokens are computed at once than it takes to drop a draft (`rolls_back`)."""
    if shape.slots * shape.block > shape.call_tokens:
        raise ConfigError(
            f"{shape.slots} rows with a block of {shape.block} tokens each do not fit into a call of"
            f" {shape.call_tokens} tokens; raise runtime.n_batch and runtime.n_ubatch, or use fewer slots"
        )
    if rolls_back and shape.n_ubatch < shape.draft + ROLLBACK_ROOM:
        raise ConfigError(f"runtime.n_ubatch has to be {shape.draft + ROLLBACK_ROOM} or more, to drop a draft")


def causal_context(
    model: ctypes.c_void_p, params: llama_cpp.llama_context_params, shape: DecoderShape
) -> ctypes.c_void_p:
    """Make a context of a model that continues texts. Raises ConfigError if there is no memory for `shape`, or the
    model has no KV cache or is not causal."""
    context = new_context(model, params)
    if not context:
        why = no_room() or f"{last_errors()}; use fewer slots or shorter sequences"
        sizes = f"runtime.slots={shape.slots} x max_sequence_tokens={shape.max_sequence_tokens}"
        raise ConfigError(f"no context for {sizes} could be made: {why}")
    if not llama_cpp.llama_get_memory(context) or not llama_cpp.llama_get_causal_attn(context):
        llama_cpp.llama_free(context)
        raise ConfigError(
            "the model's architecture keeps no KV cache, or its attention is not causal (an encoder such as BERT, a"
            " diffusion model?); it can neither complete prompts nor score texts here"
        )
    return context


def new_context(model: ctypes.c_void_p, params: llama_cpp.llama_context_params) -> ctypes.c_void_p | None:
    """Make a context; None if llama.cpp refuses, and its log says why. Turns the model's own pooling of embeddings off:
    pooled by llama.cpp they would depend on the neighbours, which share the sums."""
    forget_errors()
    context: ctypes.c_void_p | None = llama_cpp.llama_init_from_model(model, params)
    if context and params.embeddings and llama_cpp.llama_pooling_type(context) != llama_cpp.LLAMA_POOLING_TYPE_NONE:
        llama_cpp.llama_free(context)
        params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE
        context = llama_cpp.llama_init_from_model(model, params)
    return context


def context_params(shape: DecoderShape, settings: EngineSettings, on_cpu: bool) -> llama_cpp.llama_context_params:
    """Return the parameters of a decoder's context."""
    params = common_params(settings, on_cpu)
    params.n_ctx = shape.kv_cells
    # With FULL what a window of attention no longer sees is still there for a row that shares it.
    params.swa_full = settings.window_cache == FULL
    params.n_seq_max = shape.streams
    params.n_batch = shape.n_batch
    params.n_ubatch = shape.n_ubatch
    params.n_outputs_max = shape.outputs
    if shape.wanted is Wanted.EMBEDDINGS:
        params.embeddings = True
    params.kv_unified = not shape.per_sequence
    return params


def for_placement(settings: EngineSettings, placement: LayerPlacement, *, whole: bool = False) -> EngineSettings:
    """Return `settings` as contexts of a model with that placement have them: with one thread where that is enough, and
    with fewer tokens that are computed at once, unless the cells of the cache follow from them, or calls cannot be cut
    (`whole`)."""
    if placement.on_cpu:
        return settings
    threads = settings.threads or (1 if placement.computes_all(settings) else None)
    if not whole and settings.window_cache != SMALL:
        settings = replace(settings, n_ubatch=min(settings.n_ubatch, MOST_AT_ONCE))
    return replace(settings, threads=threads)


def common_params(settings: EngineSettings, on_cpu: bool) -> llama_cpp.llama_context_params:
    """Return the parameters that any context has, by `settings`."""
    params = llama_cpp.llama_context_default_params()
    params.n_threads = params.n_threads_batch = settings.threads or usable_cores()
    params.type_k, params.type_v = (int(GGMLQuantizationType[kind.upper()]) for kind in settings.kv_types)
    scale_rope(params, settings.rope)
    flash = settings.flash_attention is not False
    params.flash_attn_type = getattr(llama_cpp, f"LLAMA_FLASH_ATTN_TYPE_{'AUTO' if flash else 'DISABLED'}")
    params.offload_kqv, params.op_offload = settings.kv_offload and not on_cpu, settings.op_offload and not on_cpu
    return params


def scale_rope(params: llama_cpp.llama_context_params, rope: RopeSettings) -> None:
    """Have positions scaled as `rope` says, whatever the model file says of it. Layers with a sliding window keep what
    the file says."""
    if rope.scaling is None or rope.factor is None:
        return
    params.rope_scaling_type = getattr(llama_cpp, f"LLAMA_ROPE_SCALING_TYPE_{rope.scaling.upper()}")
    params.rope_freq_scale = 1 / rope.factor
    params.yarn_ext_factor = float(rope.scaling == YARN)
    params.yarn_attn_factor = 1.0  # of the file's own scaling it would be a part
    params.yarn_orig_ctx = rope.original_tokens or 0  # then that of the file, see Attention.check
