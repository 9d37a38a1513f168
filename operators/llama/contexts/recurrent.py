"""Recurrent layers: the size of their state, what llama.cpp keeps of it to drop the tokens of a wrong draft, and where
drafts would change bits.

A state stands after the last token. With `n_rs_seq` llama.cpp (as vendored by llama-cpp-python 0.3.36) also keeps those
after the tokens before it, of the same call, for some architectures (llm_arch_supports_rs_rollback); `seq_rm` of the
last tokens then only notes which of them counts, and the next call of the sequence reads it. Traps:

- it goes back by any number up to n_rs_seq, also before the beginning of the call, where what it keeps is of older
  calls: the state is wrong then, without a word;
- it goes back once, and then not before the next call;
- what is noted is not copied with a sequence, and stays for whatever is copied into the sequence;
- n_ubatch of n_rs_seq + 1 or fewer ends the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping

import llama_cpp
import numpy as np
import numpy.typing as npt

from operators.engine.backend.interface import Buffer
from operators.llama.gguf_check import Tensor
from operators.llama.packed import FLOATS

ROLLS_BACK = frozenset({"lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe"})
"""Architectures whose states llama.cpp keeps. It does for some more, of which no test here has a model."""
_BY_SEQUENCE = {
    **dict.fromkeys(("lfm2", "lfm2moe"), (b".shortconv.in_proj.weight", b".shortconv.out_proj.weight")),
    **dict.fromkeys(("qwen35", "qwen35moe"), (b".ssm_out.weight",)),
}
"""Matrices that llama.cpp multiplies with the tokens of each sequence apart. In floating point it has one kernel for a
lone token and another for several, with other last bits; for quantised ones the two agree."""
_LAYERS = (b".ssm_conv1d.weight", b".shortconv.conv.weight", b".time_mix_first.weight", b".time_mix_w1.weight")
"""Each recurrent layer has one of these."""
_RWKV_SHIFTS = 2
_F32_BYTES = 4
_PARTIAL = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


def state_bytes(tensors: Mapping[bytes, Tensor], number: Callable[[str], int | None]) -> int:
    """Return the bytes of the state of a sequence in all recurrent layers; 0 if there are none. `number`: reads a key
    of the architecture (llama_hparams::n_embd_r and n_embd_s have the formulas)."""
    layers = len({name.split(b".")[1] for name in tensors if name.startswith(b"blk.") and name.endswith(_LAYERS)})
    width = number("embedding_length") or 0
    if head := number("wkv.head_size"):
        return _F32_BYTES * layers * width * (_RWKV_SHIFTS + head)
    if convolved := number("shortconv.l_cache"):
        return _F32_BYTES * layers * width * (convolved - 1)
    state, inner, groups = (number(f"ssm.{key}") or 0 for key in ("state_size", "inner_size", "group_count"))
    convolved = (number("ssm.conv_kernel") or 1) - 1
    return _F32_BYTES * layers * (convolved * (inner + 2 * groups * state) + state * inner)


def no_rollback(architecture: str | None) -> str | None:
    """Return why a model with recurrent layers cannot drop the tokens of a wrong draft; None if it can."""
    if architecture in ROLLS_BACK:
        return None
    return (
        f"it has recurrent layers, and of the architecture {architecture} nothing is kept to go back to when a draft"
        f" was wrong (it is for {', '.join(sorted(ROLLS_BACK))})"
    )


def drafts_change_bits(architecture: str | None, tensors: Mapping[bytes, Tensor]) -> str | None:
    """Return why a text of a model with recurrent layers may depend on its drafts; None if it does not."""
    names = _BY_SEQUENCE.get(architecture or "", ())
    found = sorted(name for name, tensor in tensors.items() if name.endswith(names) and tensor.kind in FLOATS)
    if not names or not found:
        return None
    return (
        f"{found[0].decode()} and {len(found) - 1} more of its matrices are in floating point, and llama.cpp multiplies"
        " them with several tokens of a row by another kernel than with one"
    )


class States:
    """The states that a context keeps of its recurrent layers, beside the last one of each sequence.

    Args:
        context, memory: of llama.cpp.
        sequences: how many it has.

    Attributes:
        most: how many it keeps of a sequence.
    """

    def __init__(self, context: ctypes.c_void_p, memory: ctypes.c_void_p, sequences: int) -> None:
        self.most: int = llama_cpp.llama_n_rs_seq(context)
        self._context, self._memory = context, memory
        self._kept = np.zeros(sequences, np.int64)
        self._noted: set[int] = set()

    def forget(self) -> None:
        """Go back in no sequence: a call has failed, or all were cleared."""
        self._kept[:] = 0
        self._noted.clear()

    def computed(self, sequences: npt.NDArray[np.int32]) -> None:
        """Note a call with tokens of these `sequences`."""
        counts = np.bincount(sequences, minlength=len(self._kept))
        had = counts > 0
        self._kept[had] = np.minimum(counts[had] - 1, self.most)
        self._noted.difference_update(np.flatnonzero(had).tolist())

    def goes_back(self, sequence: int, tokens: int) -> bool:
        """Return whether the last `tokens` of `sequence` can be dropped now, and note that they are."""
        if not 0 < tokens <= self._kept[sequence]:
            return False
        self._kept[sequence] = 0
        self._noted.add(sequence)
        return True

    def settle(self, sequence: int) -> bool:
        """Make the state that `sequence` went back to its own one, which can be copied; return whether that worked."""
        return sequence not in self._noted or self.restore(sequence, self.save(sequence))

    def empty(self, sequence: int) -> None:
        """Remove all of `sequence`, and what was noted of it."""
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        self.replaced(sequence)

    def replaced(self, sequence: int) -> None:
        """Note that the contents of `sequence` are of another one, or gone."""
        self._kept[sequence] = 0
        self._noted.discard(sequence)

    def save(self, sequence: int) -> Buffer:
        """Return the state of `sequence`, without its keys and values."""
        size = llama_cpp.llama_state_seq_get_size_ext(self._context, sequence, _PARTIAL)
        buffer = (ctypes.c_uint8 * size)()
        written = llama_cpp.llama_state_seq_get_data_ext(self._context, buffer, size, sequence, _PARTIAL)
        return memoryview(buffer)[:written]

    def restore(self, sequence: int, saved: Buffer) -> bool:
        """Put a saved state into `sequence`; return whether that worked."""
        first = ctypes.cast(np.frombuffer(saved, np.uint8).ctypes.data, ctypes.POINTER(ctypes.c_uint8))
        self.replaced(sequence)
        return bool(llama_cpp.llama_state_seq_set_data_ext(self._context, first, len(saved), sequence, _PARTIAL))
