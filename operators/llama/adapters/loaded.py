"""The adapters of a loaded model as llama.cpp has them: side by side in one bank, or each by itself."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt

from operators.engine.backend.batch import DecodeFailed
from operators.llama.adapters.prepared import PreparedAdapters
from operators.llama.library import last_errors, unlogged
from pipeline.api.errors import InputError

MOST_SETS = 64
"""Sets of adapters that a model has in memory where rows of several cannot share a call: as many as adapters."""


class LoadedAdapters:
    """The adapters of one model, loaded when a context first asks for them. llama.cpp frees them with the model.

    Args:
        model: handle of the loaded model.
        files: the adapters, made ready for it.
    """

    def __init__(self, model: ctypes.c_void_p, files: PreparedAdapters) -> None:
        self._model, self._files = model, files
        self._of_mask: dict[int, ctypes.c_void_p] = {}
        self._loading = threading.Lock()  # llama.cpp notes each in the model, and contexts of several threads may load
        self.begins = np.ascontiguousarray(files.begins, np.int32)
        """int32 [adapters + 1]: where the ranks of each begin in the bank."""

    @functools.cached_property
    def _bank(self) -> ctypes.c_void_p:
        return self._load(self._files.bank())

    def set_bank(self, context: ctypes.c_void_p | None) -> None:
        """Give `context` all adapters; kernels of our own compute for each row those that it has (docs/kernels.md)."""
        _set(context, [self._bank])

    def mix(self, kernels: ctypes.CDLL, masks: npt.NDArray[np.uint64]) -> None:
        """Say which adapters the rows of the graphs have that this thread has computed from now on: `masks` has those
        of each sequence id, read at each call."""
        kernels.kernels_mix(masks.ctypes.data, len(masks), self.begins.ctypes.data, len(self.begins) - 1)

    def set_for_all(self, context: ctypes.c_void_p | None, mask: int) -> None:
        """Give all rows of `context` the adapters whose bits are set: several are one file, since llama.cpp adds them
        up in an order that nothing promises."""
        if mask and mask not in self._of_mask:
            if len(self._of_mask) == MOST_SETS:
                raise DecodeFailed(
                    -1,
                    f"its adapters are set number {MOST_SETS + 1}, and each is in memory where rows of several cannot"
                    " share a call; use kernels of our own, or make one adapter of those that go together",
                )
            self._of_mask[mask] = self._load(self._files.joined(mask))
        _set(context, [self._of_mask[mask]] if mask else [])

    def _load(self, path: Path) -> ctypes.c_void_p:
        with self._loading, unlogged():  # it warns of each matrix whose packed memory an adapter does not share
            adapter: ctypes.c_void_p | None = llama_cpp.llama_adapter_lora_init(self._model, os.fsencode(path))
        if not adapter:
            raise InputError(f"the adapters in {path} could not be loaded: {last_errors()}")
        return adapter


def _set(context: ctypes.c_void_p | None, adapters: Sequence[ctypes.c_void_p]) -> None:
    count = len(adapters)
    handles = (llama_cpp.llama_adapter_lora_p_ctypes * count)(*adapters)
    llama_cpp.llama_set_adapters_lora(context, handles, count, (ctypes.c_float * count)(*[1.0] * count))
