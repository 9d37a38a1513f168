"""A llama_batch over the arrays of a BatchBuffer."""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np

from operators.engine.backend.batch import BatchBuffer


class PointerTables:
    """A llama_batch whose arrays are those of `buffer`. Holds all that it points to.

    Args:
        buffer: the tokens of a call.
    """

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

    def batch(self, n_tokens: int) -> llama_cpp.llama_batch:
        """The batch with its first `n_tokens` tokens."""
        self._batch.n_tokens = n_tokens
        return self._batch
