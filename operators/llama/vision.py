"""LlamaVision: the vision encoder of a model (its mmproj file), by llama.cpp's libmtmd.

libmtmd's own resizing differs from that of the models' training, so images come resized (`resize`), and it copies them.
Attention is flash attention: bits do not depend on the number of threads, which holds without it, too; but then memory
grows with the square of an image's patches (17 GB for an image of 4096 tokens of a Qwen2-VL).
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from operators.engine.backend.images import Encoded, ImageCells, ImageSizes, Pixels
from operators.llama.library import forget_errors, initialise, last_errors, log_callback
from operators.llama.mmproj import APART, QWEN, Mmproj
from pipeline.api.errors import ConfigError, InputError

_TEXT, _IMAGE = 0, 1
"""MTMD_INPUT_CHUNK_TYPE_*."""
_LAYOUTS = 256
"""Sizes of images whose layouts are kept."""
BUILD = "`python -m pipeline build` (or `make build`)"
Part = npt.NDArray[np.int32] | ImageCells


@functools.cache
def libmtmd() -> Any:
    """Return the binding of libmtmd, whose log is ours. Raises ConfigError if this llama.cpp was built without."""
    initialise()
    try:
        binding = importlib.import_module("llama_cpp.mtmd_cpp")
    except (FileNotFoundError, RuntimeError, OSError, ImportError) as error:
        raise ConfigError(
            f"the installed llama-cpp-python {llama_cpp.__version__} has no libmtmd, which reads images ({error});"
            f" {BUILD} builds it"
        ) from error
    for set_log in (binding.mtmd_log_set, binding.mtmd_helper_log_set):
        set_log(log_callback, ctypes.c_void_p(0))
    return binding


class LlamaVision:
    """Implements operators.engine.backend.images.Vision. Raises InputError if libmtmd refuses the file, or it belongs
    to another model.

    Args:
        mmproj: the file.
        model: llama.cpp's model, or its vocabulary alone: then it can only make layouts.
        fingerprint: see Vision.
        resize: how images have to come.
        tokens: fewest and most tokens of an image ({min, max}), as `resize` has them; what is missing is libmtmd's.
        device: handle of the device that computes; None: the CPU does."""

    def __init__(
        self,
        mmproj: Mmproj,
        model: ctypes.c_void_p,
        *,
        fingerprint: str,
        resize: ImageSizes,
        threads: int,
        tokens: Mapping[str, int] | None = None,
        device: int | None = None,
    ) -> None:
        self._mtmd = mtmd = libmtmd()
        self._mmproj, self.fingerprint, self.resize = mmproj, fingerprint, resize
        params = mtmd.mtmd_context_params_default()
        params.use_gpu, params.device, params.n_threads = device is not None, device, threads
        params.print_timings = params.warmup = False
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        limits = dict(tokens or {})
        params.image_min_tokens, params.image_max_tokens = limits.get("min", -1), limits.get("max", -1)
        forget_errors()
        self._context = mtmd.mtmd_init_from_file(os.fsencode(mmproj.path), model, params)
        if not self._context:
            raise InputError(f"model.mmproj={mmproj.path} could not be loaded: {last_errors()}")
        self.width: int = llama_cpp.llama_model_n_embd_inp(model) or mmproj.width or 0
        self.apart = APART.get(mmproj.projector, "")
        self.causal = not mtmd.mtmd_decode_use_non_causal(self._context, None)
        self.mrope = bool(mtmd.mtmd_decode_use_mrope(self._context))
        self._encodes = threading.Lock()  # a context has one buffer for what it has encoded
        self._layouts = functools.lru_cache(_LAYOUTS)(self._layout)
        try:
            self._check_kind()
            with suppress(ValueError):  # an image of that size is not within the limits
                self.layout(*resize.size(64, 64))  # a vocabulary that lacks a line end is refused here
        except InputError:
            self.close()
            raise

    def layout(self, width: int, height: int) -> tuple[Part, ...]:
        """Return what stands in a prompt for a resized image of this size; see Vision. Raises InputError if the
        vocabulary lacks a token."""
        return self._layouts(width, height)[0]

    def encode(self, pixels: Pixels) -> list[Encoded]:
        """Encode a resized image; see Vision. Raises ValueError if this image cannot be encoded."""
        height, width = pixels.shape[:2]
        if self.resize.size(width, height) != (width, height):
            raise ValueError(f"an image of {width}x{height} was not resized to {self.resize.size(width, height)}")
        parts, offsets = self._layouts(width, height)
        cells = [part for part in parts if isinstance(part, ImageCells)]
        with self._chunks(width, height, np.ascontiguousarray(pixels, np.uint8)) as chunks, self._encodes:
            images = [chunk for kind, chunk in chunks if kind == _IMAGE]
            made = [self._encoded(chunk, part.tokens) for chunk, part in zip(images, cells, strict=True)]
        return [Encoded(*each) for each in zip(made, offsets, (part.positions for part in cells), strict=True)]

    def close(self) -> None:
        """Free it, after an image that is being encoded."""
        with self._encodes:
            context, self._context = self._context, None
            if context:
                self._mtmd.mtmd_free(context)

    def _check_kind(self) -> None:
        """Check that both files have, or lack, M-RoPE."""
        if self._mmproj.is_tested and self.mrope != (self._mmproj.projector in QWEN):
            kind = "a model with M-RoPE" if self.mrope else "a model without M-RoPE"
            raise InputError(
                f"model.mmproj={self._mmproj.path} is a {self._mmproj.projector}, which does not go with {kind}: it"
                " belongs to another model"
            )

    def _layout(self, width: int, height: int) -> tuple[tuple[Part, ...], list[npt.NDArray[np.int32] | None]]:
        """Return the layout, and Encoded.offsets of its blocks, which depend on the size alone, too."""
        parts: list[Part] = []
        offsets = []
        with self._chunks(width, height, None) as chunks:
            for kind, chunk in chunks:
                tokens = self._mtmd.mtmd_input_chunk_get_n_tokens(chunk)
                if kind == _IMAGE:
                    self._check_size(width, height, tokens)
                    parts.append(ImageCells(tokens, self._mtmd.mtmd_input_chunk_get_n_pos(chunk)))
                    offsets.append(self._offsets(chunk, tokens) if self.mrope else None)
                else:
                    parts.append(self._ids(chunk))
        return tuple(parts), offsets

    def _check_size(self, width: int, height: int, tokens: int) -> None:
        """Check, where the size alone says how many tokens an image has, that libmtmd does not resize it again."""
        if self._mmproj.has_limits and tokens * self._mmproj.cell**2 != width * height:
            raise ValueError(f"libmtmd would resize an image of {width}x{height}, as it gives it {tokens} tokens")

    def _ids(self, chunk: Any) -> npt.NDArray[np.int32]:
        count = ctypes.c_size_t()
        ids = self._mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
        tokens = np.array(ids[: count.value], np.int32)
        if (tokens < 0).any():  # llama_decode would take them for other content
            raise InputError(
                f"model.mmproj={self._mmproj.path}: the vocabulary of the model lacks a token that stands between the"
                f" parts of an image of a {self._mmproj.projector} (an empty line, or the end of a line)"
            )
        tokens.flags.writeable = False
        return tokens

    def _offsets(self, chunk: Any, tokens: int) -> npt.NDArray[np.int32]:
        image, place = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk), self._mtmd.mtmd_image_tokens_get_decoder_pos
        places = (place(image, 0, i) for i in range(tokens))
        offsets = np.array([(each.t, each.y, each.x, each.z) for each in places], np.int32).T.copy()
        offsets.flags.writeable = False
        return offsets

    def _encoded(self, chunk: Any, tokens: int) -> npt.NDArray[np.float32]:
        forget_errors()
        if self._mtmd.mtmd_encode_chunk(self._context, chunk):
            raise ValueError(f"the image could not be encoded: {last_errors()}")
        output = self._mtmd.mtmd_get_output_embd(self._context)
        embeddings = np.ctypeslib.as_array(output, (tokens, self.width)).copy()
        if not np.isfinite(embeddings).all():
            raise ValueError("the vision encoder makes numbers of the image that are not finite")
        return embeddings

    @contextmanager
    def _chunks(self, width: int, height: int, pixels: Pixels | None) -> Iterator[list[tuple[int, Any]]]:
        """Yield the kinds and chunks of an image. `pixels`: None for its size alone."""
        mtmd = self._mtmd
        if not self._context:
            raise ValueError("the model is closed")
        data = None if pixels is None else pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap, chunks = mtmd.mtmd_bitmap_init(width, height, data), mtmd.mtmd_input_chunks_init()
        try:
            part = mtmd.mtmd_input_part(text=None, bitmap=bitmap)
            parts = (ctypes.POINTER(mtmd.mtmd_input_part) * 1)(ctypes.pointer(part))
            if mtmd.mtmd_tokenize_from_parts(self._context, chunks, parts, 1, False):
                raise ValueError(f"an image of {width}x{height} cannot be given to the model: {last_errors()}")
            all_chunks = [mtmd.mtmd_input_chunks_get(chunks, i) for i in range(mtmd.mtmd_input_chunks_size(chunks))]
            yield [(mtmd.mtmd_input_chunk_get_type(chunk), chunk) for chunk in all_chunks]
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)
