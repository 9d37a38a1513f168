"""A llama.cpp context as a Decoder, its batch and logits used in place."""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace

import llama_cpp
import numpy as np

from operators.engine.backend.batch import BatchBuffer, DecodeFailed
from operators.engine.backend.interface import Buffer, Logits
from operators.engine.backend.shape import DecoderShape, Wanted
from operators.llama.adapters.loaded import LoadedAdapters
from operators.llama.contexts.context_params import BatchView, causal_context, check_calls, context_params
from operators.llama.contexts.image_calls import ImageCalls
from operators.llama.contexts.recurrent import States
from operators.llama.devices import has_accelerator
from operators.llama.library import last_errors, unlogged
from operators.settings.long_rows import SMALL
from operators.settings.runtime import EngineSettings

_MALFORMED, _ABORTED = -1, 2
CODES = {1: "there is no room in the KV cache", _ABORTED: "it was aborted", _MALFORMED: "the batch is malformed"}
# llama.cpp asks between any two operations of a call whether to go on. A Python function would be asked a thousand
# times a step and need the interpreter each time, beside threads that compute in it. The C library has a function that
# says of a byte whether it is set: strlen, of the text that begins there.
IS_SET = llama_cpp.ggml_abort_callback(ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value)


class LlamaContext:
    """Implements operators.engine.backend.interface.Decoder. Raises ConfigError if there is not enough memory, the
    model's attention is not causal, or the blocks of all rows do not fit into a call.

    Args:
        model: handle of a loaded llama_model.
        n_vocab: words of its vocabulary.
        shape: the sizes, as `settings` give them.
        lone_tokens: see Decoder.
        on_cpu: keep every operation on the CPU.
        rolls_back: whether states of recurrent layers are kept, to drop as many tokens of a row as a draft has.
        kernels: our own, which compute attention; None: llama.cpp's do.
        adapters: of the model, for rows to have; None without any.
        causal_images: False if the cells of an image see each other.
        abort: while this text is not empty, the running call and all later ones fail with code 2. It must outlive the
            context."""

    mixes_adapters = True

    def __init__(
        self,
        model: ctypes.c_void_p,
        n_vocab: int,
        shape: DecoderShape,
        settings: EngineSettings,
        *,
        lone_tokens: int,
        on_cpu: bool,
        rolls_back: bool,
        kernels: ctypes.CDLL | None,
        adapters: LoadedAdapters | None,
        causal_images: bool,
        abort: ctypes.Array[ctypes.c_char],
    ) -> None:
        check_calls(shape, rolls_back=rolls_back)
        if llama_cpp.llama_model_is_recurrent(model):
            shape = replace(shape, flash_attention=False)  # there is no attention
        self.shape, self.lone_tokens = shape, lone_tokens
        self.batch = BatchBuffer(shape.call_tokens, shape.streams)
        self._llama_batch, self._copies_wait = BatchView(self.batch), False
        self._kernels, self._adapters, self._adapters_set = kernels, adapters, 0
        self._width: int = llama_cpp.llama_model_n_embd_out(model) if shape.wanted is Wanted.EMBEDDINGS else n_vocab
        recurrent = llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model)
        window = llama_cpp.llama_model_n_swa(model)
        small = window > 0 and settings.window_cache == SMALL
        self.partial = not (recurrent or small)
        # In one stream llama.cpp gives cells that a row's window has passed to other rows. In a small cache a row does
        # so itself; its beginning up to the window is there whole, in the same cells as in any other row.
        self.most_shared = math.inf if not window else 0 if not shape.per_sequence else window if small else math.inf
        params = context_params(shape, settings, on_cpu)
        params.n_rs_seq = shape.draft if rolls_back else 0
        self._context: ctypes.c_void_p | None = causal_context(model, params, shape)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._states = States(self._context, self._memory, shape.streams)
        self.rollback = self._states.most
        self._images = ImageCalls(model, shape.streams, shape.n_ubatch, causal=causal_images)
        if shape.block:
            llama_cpp.llama_set_causal_attn(self._context, False)
        try:
            self._prove()
        except BaseException:  # a file of adapters could not be made
            self.close()
            raise
        llama_cpp.llama_set_abort_callback(self._context, IS_SET, ctypes.cast(abort, ctypes.c_void_p))

    def _prove(self) -> None:
        """Find out whether calls are exact, and whether rows of several adapters may share them."""
        # BLAS takes products of many tokens from our kernels, and the trial has few.
        kernels = None if has_accelerator() else self._kernels
        self.mixes_adapters = self._adapters is None or (kernels is not None and self.shape.per_sequence)
        if self._adapters is not None and self.mixes_adapters:
            self._adapters.set_bank(self._context)
        if kernels is not None and self._is_exact(kernels):
            self.shape, self.lone_tokens = replace(self.shape, exact=True), self.shape.max_sequence_tokens
        if not self.mixes_adapters:
            # llama.cpp multiplies with adapters by another kernel where a row is alone.
            self.shape, self.lone_tokens = replace(self.shape, exact=False), 0

    def decode(self) -> Logits:
        if self._adapters is not None and not self.mixes_adapters:
            self._set_adapters(self._adapters)
        outputs = int(np.count_nonzero(self.batch.output[: self.batch.n_tokens]))
        if self.batch.images:
            code = self._decode_images()
        else:
            self._images.place_tokens(self.batch)
            code = self._decode(self._llama_batch.first(self.batch.n_tokens))
        if code != _MALFORMED:  # then nothing was done at all
            self._copies_wait = False
        if code:
            self._states.forget()
            raise DecodeFailed(code, f"llama_decode failed with {code}: {CODES.get(code, last_errors())}")
        if self._mixing and self._kernels is not None and self._kernels.kernels_unmixed():
            raise DecodeFailed(_MALFORMED, "a call could not tell which adapters its rows have")
        if self.rollback:
            self._states.computed(self.batch.seq_id[: self.batch.n_tokens])
        if not outputs:
            return np.empty((0, self._width), np.float32)
        embeds = self.shape.wanted is Wanted.EMBEDDINGS
        get = llama_cpp.llama_get_embeddings if embeds else llama_cpp.llama_get_logits
        first = ctypes.addressof(get(self._context).contents)
        flat = (ctypes.c_float * (outputs * self._width)).from_address(first)
        return np.ctypeslib.as_array(flat).reshape(outputs, self._width)

    @property
    def _mixing(self) -> bool:
        return self._adapters is not None and self.mixes_adapters

    def _set_adapters(self, adapters: LoadedAdapters) -> None:
        """Give the context the adapters of the rows in the batch, which all have the same."""
        (mask,) = set(self.batch.adapters[self.batch.seq_id[: self.batch.n_tokens]].tolist())
        if mask != self._adapters_set:
            adapters.set_for_all(self._context, mask)
            self._adapters_set = mask

    def _is_exact(self, kernels: ctypes.CDLL) -> bool:
        """Return whether kernels of our own compute each operation of a call that may depend on other rows. They count
        those that they do not, when llama.cpp plans the call; then it is aborted. Without all of the adapters' among
        them rows of several adapters cannot share a call.

        It is a call of one thread. With more, OpenMP would make a team for it beside that of the thread which decodes,
        and where there are more threads than cores, they sleep and wake at each operation.
        """
        threads = llama_cpp.llama_n_threads(self._context), llama_cpp.llama_n_threads_batch(self._context)
        llama_cpp.llama_set_n_threads(self._context, 1, 1)
        at_once = ctypes.create_string_buffer(b"!")
        llama_cpp.llama_set_abort_callback(self._context, IS_SET, ctypes.cast(at_once, ctypes.c_void_p))
        self.batch.clear()
        # Several tokens of several rows, and another number of outputs: else a row that is mapped wrongly looks right.
        rows, tokens, outputs = (1, 1, [1]) if self._adapters is None else (2, 3, [1, 0])
        if self.shape.streams < rows:
            rows, outputs = 1, [2]
        ids = [np.zeros(min(tokens, self.batch.capacity // rows), np.int32)] * rows
        self.batch.add_spans(ids, [0] * rows, range(rows), outputs)
        kernels.kernels_others(), kernels.kernels_unmixed()
        with unlogged():
            code = self._decode(self._llama_batch.first(self.batch.n_tokens))
        llama_cpp.llama_set_n_threads(self._context, *threads)
        self.batch.clear()
        self.clear()
        unmixed = kernels.kernels_unmixed()
        if self._adapters is not None and self.mixes_adapters and (unmixed or code != _ABORTED):
            self._adapters.set_for_all(self._context, 0)
            self.mixes_adapters = False
        return code == _ABORTED and kernels.kernels_others() == 0

    def _decode_images(self) -> int:
        """Have llama.cpp compute the images of the batch; return its code."""
        call, _read = self._images.llama_batch(self.batch)
        if self._images.causal:
            code = self._decode(call)
        else:
            llama_cpp.llama_set_causal_attn(self._context, False)
            code = self._decode(call)
            llama_cpp.llama_set_causal_attn(self._context, True)
        if not code:
            self._images.computed(self.batch)
        return code

    def _decode(self, batch: llama_cpp.llama_batch) -> int:
        """Have llama.cpp compute `batch`; return its code."""
        if self._kernels is None:
            return int(llama_cpp.llama_decode(self._context, batch))
        self._kernels.kernels_attend(True)  # in the graphs that this thread has computed
        if self._mixing and self._adapters is not None:
            self._adapters.mix(self._kernels, self.batch.adapters)
        try:
            return int(llama_cpp.llama_decode(self._context, batch))
        finally:
            self._kernels.kernels_attend(False)
            if self._mixing:
                self._kernels.kernels_mix(None, 0, None, 0)

    def truncate(self, slot: int, length: int) -> None:
        position = self._images.cut(slot, length)
        if not length:
            self._states.empty(slot)
            return
        dropped = 0 if self.partial else llama_cpp.llama_memory_seq_pos_max(self._memory, slot) + 1 - length
        allowed = dropped <= 0 or self._states.goes_back(slot, dropped)
        if not allowed or not llama_cpp.llama_memory_seq_rm(self._memory, slot, position, -1):
            raise DecodeFailed(_MALFORMED, f"llama.cpp cannot cut what it has in slot {slot} to {length} tokens")

    def mark(self, slot: int) -> Buffer:
        return self._states.save(slot)

    def rewind(self, slot: int, length: int, mark: Buffer) -> None:
        if not self._states.restore(slot, mark) or not llama_cpp.llama_memory_seq_rm(self._memory, slot, length, -1):
            raise DecodeFailed(1, f"slot {slot} cannot go back to {length} tokens: {last_errors()}")

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy a slot; between streams llama.cpp copies the stream's buffer before the next decode."""
        held = llama_cpp.llama_memory_seq_pos_max(self._memory, source) + 1
        if not self.partial:
            if held != length or not self._states.settle(source):
                raise DecodeFailed(
                    _MALFORMED, f"slot {source} has a state after {held} tokens, and none after {length}"
                )
            self._states.empty(target)
        position = self._images.copy(source, target, length)
        if self.shape.per_sequence:
            # Only whole rows can be copied between streams; to copy a part aborts the process.
            llama_cpp.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            self._copies_wait = True
            if self.partial:
                llama_cpp.llama_memory_seq_rm(self._memory, target, position, -1)
        else:
            llama_cpp.llama_memory_seq_rm(self._memory, target, -1, -1)
            llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, position)

    def save(self, slot: int) -> Buffer:
        self._finish_copies(slot)
        size = llama_cpp.llama_state_seq_get_size(self._context, slot)
        buffer = (ctypes.c_uint8 * size)()
        written = llama_cpp.llama_state_seq_get_data(self._context, buffer, size, slot)
        return memoryview(buffer)[:written]

    def restore(self, slot: int, saved: Buffer) -> None:
        self._finish_copies(slot)
        self._states.replaced(slot)
        first = ctypes.cast(np.frombuffer(saved, np.uint8).ctypes.data, ctypes.POINTER(ctypes.c_uint8))
        if not llama_cpp.llama_state_seq_set_data(self._context, first, len(saved), slot):
            raise DecodeFailed(1, f"the state of a row ({len(saved)} bytes) could not be restored: {last_errors()}")

    def _finish_copies(self, slot: int) -> None:
        """Make llama.cpp do its pending copies between streams now; by itself it does them at the next decode.

        A row that is saved before that would have the old content, and one that is restored would be overwritten. So
        this decodes a token behind what is in `slot` and removes it again. A recurrent state cannot remove it; the
        scheduler saves no row between a copy and the next call.
        """
        if self._copies_wait:
            end = llama_cpp.llama_memory_seq_pos_max(self._memory, slot) + 1
            if end and not self.partial:
                raise DecodeFailed(_MALFORMED, f"slot {slot} cannot be saved before copies between slots are computed")
            self.batch.clear()
            self.batch.add_spans([np.zeros(1, np.int32)], [end], [slot], [0])
            self.decode()
            llama_cpp.llama_memory_seq_rm(self._memory, slot, end, -1)

    def clear(self) -> None:
        """Forget all rows; the buffers are not zeroed."""
        self._states.forget()
        self._images.clear()
        llama_cpp.llama_memory_clear(self._memory, False)

    def close(self) -> None:
        """Free the context."""
        if self._context:
            llama_cpp.llama_free(self._context)
            self._context = None
