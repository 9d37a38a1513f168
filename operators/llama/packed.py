"""The kernels of our own for quantised matrices and attention: found beside llama.cpp, tested, and put into its list.
docs/kernels.md has what they are. Where anything is off, llama.cpp's kernels compute, and the log says why, once.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from operators.llama.gguf_check import Tensor
from operators.settings.checks import usable_cores
from pipeline.system.machine import free_memory

LIBRARY = "libllama-batch-kernels.so"
"""In the folder of llama.cpp's own libraries; tools/build/kernels.py puts it there."""
TYPES = frozenset(GGMLQuantizationType[name] for name in ("Q8_0", "Q4_0", "IQ4_NL", "MXFP4", "Q4_K", "Q5_K", "Q6_K"))
"""Types of weights that the kernels multiply."""
FLOATS = frozenset(GGMLQuantizationType[name] for name in ("F32", "F16", "BF16"))
KV_TYPES = frozenset(("f16", "f32"))
"""Types of keys and values to which they compute attention: llama.cpp makes F16 of F32 before it."""
_SIZES: Mapping[int, tuple[int, int]] = {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
"""By type, the values of a block and its bytes."""
_ROWS = 16
"""Matrices whose rows are a multiple of this are packed."""
TABLE, OUTPUT = b"token_embd.weight", b"output.weight"
"""The table of tokens, and the last matrix: without one of its own the table is that, too."""
LOOKED_UP = (b"token_embd.", b"per_layer_token_embd.", b"position_embd.", b"token_types.", b"cls.")
"""Beginnings of the names of tables and heads, which the calls of an engine do not multiply with."""
_LOADED = re.compile(r"(/\S*/libggml-(base|cpu)\S*\.so\S*)$", re.MULTILINE)
_WHAT = "matrices and attention:"
BUILD = "`python -m pipeline build`"
log = logging.getLogger(__name__)
_one_at_a_time = threading.Lock()


class Packed(NamedTuple):
    """What kernels of our own compute of a model: so many matrices, by kernels of that version; and, in the calls of a
    context that asks for it, attention. Version 0: nothing."""

    version: int = 0
    tensors: int = 0

    @property
    def identity(self) -> str:
        """What tells their bits apart from those of llama.cpp's kernels; '' if they compute nothing."""
        return f"; kernels {self.version}, {self.tensors} matrices" if self.version else ""


def library_path() -> Path:
    """Return where the library is, if it is there."""
    return Path(llama_cpp.__file__).parent / "lib" / LIBRARY


@functools.cache
def library() -> ctypes.CDLL | None:
    """Open the library; None if it is not there, cannot be opened, or lacks what is called: it is an older one."""
    try:
        native = ctypes.CDLL(str(library_path()))
        for name in ("kernels_plug_in", "kernels_name", "kernels_sources"):
            getattr(native, name).restype = ctypes.c_char_p
        # For graphs that this thread computes from now on: a uint64 of each sequence, whose bits are its adapters, read
        # at each call (None: adapters are llama.cpp's), and how many; where each adapter's ranks begin in the bank (an
        # int32), and how many.
        native.kernels_mix.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int
        native.kernels_mix.restype = None
        native.kernels_unmixed.restype = ctypes.c_int  # operations whose rows were not known, since it was last asked
    except (OSError, AttributeError):
        return None
    return native


def state() -> tuple[ctypes.CDLL | None, str]:
    """Return the library with its kernels in llama.cpp's list, None where that cannot be, and a line that says what
    computes quantised matrices and attention in this process, and why not ours.

    The first call of a process tests them. It must come after `initialise` and before the first model is loaded.
    """
    with _one_at_a_time:
        return _state()


@functools.cache
def _state() -> tuple[ctypes.CDLL | None, str]:
    if (native := library()) is None:
        return None, f"{_WHAT} llama.cpp's kernels; {BUILD} adds faster ones (x86-64 with AVX2, Linux)"
    loaded = {kind: path for path, kind in _LOADED.findall(Path("/proc/self/maps").read_text(encoding="utf-8"))}
    refusal = native.kernels_plug_in(loaded.get("base", "").encode(), loaded.get("cpu", "").encode(), b"")
    if refusal is not None:
        why = refusal.decode("utf-8", "replace")
        return None, f"{_WHAT} llama.cpp's kernels, not those of this project: {why}; {BUILD} makes them anew"
    return native, f"{_WHAT} this project's kernels {native.kernels_version()} ({native.kernels_name().decode()})"


def load_model(
    path: Path, params: llama_cpp.llama_model_params, sizes: tuple[int, int], *, ours: bool, repacks: bool
) -> tuple[Any, Packed]:
    """Load a model with the kernels that it is to have.

    Args:
        path: its file.
        params: of llama.cpp, where this sets use_extra_bufts.
        sizes: of its matrices, see `packed_bytes`. Without memory for them llama.cpp's kernels compute, which need not
            have the whole file in memory; without memory for a second table of tokens they compute that.
        ours: whether kernels of our own compute what they can.
        repacks: whether llama.cpp may repack weights that ours do not compute.

    Returns:
        the model, None if llama.cpp refuses it, and what ours compute of it.
    """
    (size, tied), free = sizes, free_memory()
    if ours and size - tied > free:
        message = "%s: %s llama.cpp's kernels, as those of this project need %d bytes of memory, and %d are free"
        log.warning(message, path.name, _WHAT, size - tied, free)
        ours = False
    native, what_computes = state()  # also for a model that gets none: llama.cpp copies its list at the first model
    params.use_extra_bufts = repacks or (ours and native is not None)
    if native is None:
        if ours:
            log.info("%s: %s", path.name, what_computes)
        return llama_cpp.llama_model_load_from_file(os.fsencode(path), params), Packed()
    native.kernels_choose(ours, size <= free, repacks, usable_cores())
    try:
        model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        packed = Packed(native.kernels_version(), native.kernels_loaded_tensors()) if ours else Packed()
        if ours:
            log.info("%s: %s, %d quantised matrices", path.name, what_computes, packed.tensors)
        return model, packed
    finally:
        native.kernels_choose(False, False, True, 1)  # models that others load in this process have llama.cpp's


def packed_bytes(tensors: Mapping[bytes, Tensor]) -> tuple[int, int]:
    """Return the bytes of the matrices that kernels of our own multiply, and what of them is a table of tokens that is
    the last matrix, too: it is in memory twice then, once as it is in the file."""
    tied = 0 if OUTPUT in tensors else _size(tensors.get(TABLE))
    matrices = (tensor for name, tensor in tensors.items() if not name.startswith(LOOKED_UP))
    return sum(map(_size, matrices)) + tied, tied


def has_floats(tensors: Mapping[bytes, Tensor]) -> bool:
    """Return whether llama.cpp multiplies with a matrix in floating point, for which its kernels are others for a lone
    row: many files with experts or recurrent layers have some beside quantised ones. What it convolves counts, too."""
    return any(
        tensor.kind in FLOATS and len(tensor.lengths) > 1 and not name.startswith(LOOKED_UP)
        for name, tensor in tensors.items()
    ) or (OUTPUT not in tensors and TABLE in tensors and tensors[TABLE].kind in FLOATS)


def _size(tensor: Tensor | None) -> int:
    """Return the bytes of a matrix; 0 if it is not packed."""
    if tensor is None or len(tensor.lengths) < 2 or tensor.kind not in TYPES or tensor.lengths[1] % _ROWS:
        return 0
    return 0 if tensor.lengths[0] % _SIZES[tensor.kind][0] else bytes_of(tensor)


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor in its file; 0 if its type is not known here."""
    values, n_bytes = _SIZES.get(tensor.kind, (1, 0))
    return math.prod(tensor.lengths) // values * n_bytes
