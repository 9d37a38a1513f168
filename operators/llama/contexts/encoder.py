"""A llama.cpp context as an Encoder: whole texts, each of whose tokens may see all of its text."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp
import numpy as np

from operators.engine.backend.batch import BatchBuffer, DecodeFailed
from operators.engine.backend.interface import Logits, TokenIds
from operators.engine.backend.shape import Wanted, padded
from operators.llama.contexts.context import CODES, IS_SET
from operators.llama.contexts.context_params import BatchView, common_params
from operators.llama.devices.no_room import no_room
from operators.llama.library import forget_errors, last_errors
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError

MOST_SPANS = 64
"""Sequence ids of a context. llama.cpp reserves memory for a number of tokens that it rounds up to a multiple of this,
and does not round up that of the outputs; a head that pools a mean ends the process if the two differ."""


class EncoderContext:
    """Implements operators.engine.backend.interface.Encoder. Raises ConfigError if there is not enough memory.

    Pooling is left to the caller, since llama.cpp sums a mean over all texts of a call; a classifier head is applied
    by llama.cpp.

    Args:
        model: handle of a loaded llama_model.
        most_tokens: tokens of a call, a multiple of MOST_SPANS. They are computed at once; more would end the process.
        labels: outputs of the classifier head, for Wanted.HEAD.
        on_cpu, abort: see LlamaContext."""

    def __init__(
        self,
        model: ctypes.c_void_p,
        settings: EngineSettings,
        most_tokens: int,
        wanted: Wanted,
        *,
        labels: int,
        on_cpu: bool,
        abort: ctypes.Array[ctypes.c_char],
    ) -> None:
        self.most_tokens = most_tokens
        self._batch = BatchBuffer(most_tokens)
        self._llama_batch = BatchView(self._batch)
        self._head = wanted is Wanted.HEAD
        self._width: int = labels if self._head else llama_cpp.llama_model_n_embd_out(model)
        params = common_params(settings, on_cpu)
        params.n_ctx = padded(most_tokens)
        params.n_batch = params.n_ubatch = params.n_outputs_max = most_tokens
        params.n_seq_max = self.most_spans = MOST_SPANS
        params.kv_unified = True
        params.embeddings = True
        pooling = "RANK" if self._head else "NONE"
        params.pooling_type = getattr(llama_cpp, f"LLAMA_POOLING_TYPE_{pooling}")
        forget_errors()
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            shorter = "shorter runtime.max_sequence_tokens"
            why = no_room(shorter) or f"{last_errors()}; use {shorter}"
            raise ConfigError(f"no context for texts of {most_tokens} tokens could be made: {why}")
        llama_cpp.llama_set_abort_callback(self._context, IS_SET, ctypes.cast(abort, ctypes.c_void_p))
        self._memory = llama_cpp.llama_get_memory(self._context)
        self.packs = not self._memory
        encodes = self.packs or llama_cpp.llama_model_has_encoder(model)
        self._compute = llama_cpp.llama_encode if encodes else llama_cpp.llama_decode

    def encode(self, spans: Sequence[TokenIds]) -> Logits:
        self.clear()
        counts = [len(ids) for ids in spans]
        if len(spans) > self.most_spans:
            raise DecodeFailed(-1, f"{len(spans)} texts are more than the {self.most_spans} of a call")
        self._batch.add_spans(spans, [0] * len(spans), range(len(spans)), counts)
        if code := self._compute(self._context, self._llama_batch.first(self._batch.n_tokens)):
            raise DecodeFailed(code, f"llama.cpp failed with {code}: {CODES.get(code, last_errors())}")
        if self._head:
            outputs = [llama_cpp.llama_get_embeddings_seq(self._context, i) for i in range(len(spans))]
            return np.array([np.ctypeslib.as_array(each, (self._width,)) for each in outputs])
        first = llama_cpp.llama_get_embeddings(self._context)
        return np.ctypeslib.as_array(first, (self._batch.n_tokens, self._width))

    def clear(self) -> None:
        """Forget the last call."""
        self._batch.clear()
        if self._memory:
            llama_cpp.llama_memory_clear(self._memory, False)

    def close(self) -> None:
        """Free the context."""
        if self._context:
            llama_cpp.llama_free(self._context)
            self._context = None
