"""The process of probe.py that may die: loads the vocabulary of a model file, then the model, and decodes two tokens.

    python probe_child.py FOLDER_OF_LLAMA_CPP FILE vocabulary|model|head BYTES_OF_MEMORY
    python probe_child.py FOLDER_OF_LLAMA_CPP FILE images BYTES_OF_MEMORY VISION_ENCODER

With a vision encoder it loads the vocabulary alone, and encodes an image.
Imports the binding and nothing around it, which would take five times as long as a small model. Ends with 0; with
REFUSED where llama.cpp refuses the file, and says why on stderr; or as llama.cpp lets it end.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

REFUSED = 3
_TOKENS, _CELLS, _SIDE = 2, 256, 64
_TEXT = "Grüße, 世界! it's 12345 times\n\n\t<s> </s> 🦙  ".encode()


class Probe:
    """The file in llama.cpp. `binding`: the module llama_cpp.llama_cpp, which has no types."""

    def __init__(self, binding: Any, path: str) -> None:
        self._llama = binding
        self._path = os.fsencode(path)

    def load(self, *, vocab_only: bool) -> Any:
        """Return the loaded model; end the process if llama.cpp refuses it."""
        params = self._llama.llama_model_default_params()
        params.vocab_only = vocab_only
        params.use_extra_bufts = False  # repacked weights would be a copy of the file in memory
        params.split_mode, params.main_gpu = self._llama.LLAMA_SPLIT_MODE_NONE, -1  # no GPU, and none is made ready
        return self._llama.llama_model_load_from_file(self._path, params) or sys.exit(REFUSED)

    def read(self, vocab: Any) -> None:
        """Read all tokens, and tokenize every byte and a text."""
        llama = self._llama
        texts = [*(bytes([value]) for value in range(256)), _TEXT]
        if llama.llama_vocab_type(vocab) == llama.LLAMA_VOCAB_TYPE_UGM:  # a table in the file says how each is read
            texts.append("".join(map(chr, range(0x20, 0xD800))).encode())
        for text in texts:
            room = (ctypes.c_int32 * (8 * len(text) + 8))()
            for special in (False, True):
                llama.llama_tokenize(vocab, text, len(text), room, len(room), False, special)
        piece = ctypes.create_string_buffer(64)
        for token in range(llama.llama_vocab_n_tokens(vocab)):
            llama.llama_token_to_piece(vocab, token, piece, len(piece), 0, False)
            llama.llama_vocab_get_attr(vocab, token)

    def compute(self, model: Any, *, head: bool) -> None:
        """Compute two tokens of two rows, then one more of each, with and without flash attention; of an encoder all of
        two texts, and what its head says of them."""
        llama = self._llama
        for flash in (-1, 0):
            context = self._context(model, flash)
            memory = llama.llama_get_memory(context) if context else None
            if memory and llama.llama_get_causal_attn(context) and not llama.llama_model_has_encoder(model):
                self._decode(context, memory)
            else:
                self._encode(model, flash, llama.LLAMA_POOLING_TYPE_NONE)
            if context:  # without one a run says why
                llama.llama_free(context)
        if head:
            self._encode(model, -1, llama.LLAMA_POOLING_TYPE_RANK)

    def _context(self, model: Any, flash: int, pooling: int | None = None) -> Any:
        """Return a context, for vectors if `pooling` is given; None if llama.cpp makes none."""
        params = self._llama.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.n_threads, params.n_threads_batch = 2 * _CELLS, 2, 1, 1
        params.n_batch = params.n_ubatch = params.n_outputs_max = 64
        params.flash_attn_type = flash
        params.offload_kqv = params.op_offload = False
        params.swa_full = True
        if pooling is not None:
            params.embeddings, params.pooling_type, params.kv_unified = True, pooling, True
        return self._llama.llama_init_from_model(model, params)

    def _decode(self, context: Any, memory: Any) -> None:
        llama = self._llama
        if llama.llama_decode(context, self._batch(0, _TOKENS)):
            return
        llama.llama_memory_seq_rm(memory, 1, -1, -1)
        llama.llama_memory_seq_cp(memory, 0, 1, -1, -1)
        llama.llama_decode(context, self._batch(_TOKENS, 1))
        size = llama.llama_state_seq_get_size(context, 0)
        saved = (ctypes.c_uint8 * size)()
        llama.llama_state_seq_get_data(context, saved, size, 0)
        llama.llama_state_seq_set_data(context, saved, size, 1)

    def _encode(self, model: Any, flash: int, pooling: int) -> None:
        llama = self._llama
        if context := self._context(model, flash, pooling):
            encodes = not llama.llama_get_memory(context) or llama.llama_model_has_encoder(model)
            (llama.llama_encode if encodes else llama.llama_decode)(context, self._batch(0, _TOKENS))
            llama.llama_free(context)

    def _batch(self, start: int, count: int) -> Any:
        """Return a batch of `count` tokens behind the first `start` ones in each of two rows."""
        batch = self._llama.llama_batch_init(2 * count, 0, 1)
        batch.n_tokens = 2 * count
        for i in range(batch.n_tokens):
            row, place = divmod(i, count)
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = i % 2, start + place, 1, True
            batch.seq_id[i][0] = row
        return batch


def _binding(folder: str) -> Any:
    """Import llama_cpp.llama_cpp without llama_cpp, and load the backends, see library.initialise."""
    package = types.ModuleType("llama_cpp")
    package.__path__ = [folder]
    sys.modules["llama_cpp"] = package
    from llama_cpp import llama_cpp as binding

    if not binding._lib.ggml_backend_reg_count():
        binding._lib.ggml_backend_load_all_from_path(ctypes.c_char_p(os.fsencode(Path(folder) / "lib")))
    binding.llama_backend_init()
    return binding


def _read_image(path: bytes, vocabulary: Any) -> None:
    """Encode a block of a black image; end the process if libmtmd refuses the file or the image."""
    from llama_cpp import llama_cpp as llama
    from llama_cpp import mtmd_cpp as mtmd

    params = mtmd.mtmd_context_params_default()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    params.use_gpu, params.n_threads, params.warmup = False, len(cores), False
    params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
    context = mtmd.mtmd_init_from_file(path, vocabulary, params) or sys.exit(REFUSED)
    pixels, chunks = (ctypes.c_uint8 * (3 * _SIDE * _SIDE))(), mtmd.mtmd_input_chunks_init()
    part = mtmd.mtmd_input_part(text=None, bitmap=mtmd.mtmd_bitmap_init(_SIDE, _SIDE, pixels))
    parts = (ctypes.POINTER(mtmd.mtmd_input_part) * 1)(ctypes.pointer(part))
    if mtmd.mtmd_tokenize_from_parts(context, chunks, parts, 1, False):
        sys.exit(REFUSED)
    listed = [mtmd.mtmd_input_chunks_get(chunks, i) for i in range(mtmd.mtmd_input_chunks_size(chunks))]
    images = [each for each in listed if mtmd.mtmd_input_chunk_get_type(each) == mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE]
    if mtmd.mtmd_encode_chunk(context, images[0]):
        sys.exit(REFUSED)


def main(arguments: Sequence[str]) -> None:
    """Try the file, in as much memory as is said."""
    folder, path, what, memory, *encoder = arguments
    if sys.platform == "linux":  # a parent that is killed cannot end this process
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory), resource.getrlimit(resource.RLIMIT_DATA)[1]))
    llama = _binding(folder)
    probe = Probe(llama, path)
    model = probe.load(vocab_only=True)
    if encoder:
        _read_image(os.fsencode(encoder[0]), model)
        return
    probe.read(llama.llama_model_get_vocab(model))
    if what != "vocabulary":
        llama.llama_model_free(model)
        probe.compute(probe.load(vocab_only=False), head=what == "head")


if __name__ == "__main__":
    main(sys.argv[1:])
