"""Calls of llama.cpp with the cells of images: their embeddings in place of tokens, and their positions."""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np
import numpy.typing as npt

from operators.engine.backend.batch import BatchBuffer, DecodeFailed
from operators.engine.backend.images import Encoded

_MALFORMED = -1
_COORDINATES = 4
"""Numbers of a position with M-RoPE: time, row, column, and one that is not used."""


class ImageCalls:
    """The images in the slots of a context.

    With M-RoPE the cells of an image have fewer positions than there are: all have the time of its first, and a row and
    a column. So positions of what comes behind it are lower than its place in the prompt. They are the same otherwise.

    Args:
        model: handle of a loaded llama_model.
        streams: sequence ids of the context.
        most_at_once: tokens that are computed at once.
        causal: False if the cells of an image see each other.
    """

    def __init__(self, model: ctypes.c_void_p, streams: int, most_at_once: int, *, causal: bool) -> None:
        self.causal = causal
        self._most_at_once = most_at_once
        self._width: int = llama_cpp.llama_model_n_embd_inp(model)
        kinds = llama_cpp.LLAMA_ROPE_TYPE_MROPE, llama_cpp.LLAMA_ROPE_TYPE_IMROPE
        self._has_coordinates = llama_cpp.llama_model_rope_type(model) in kinds
        self._blocks: list[list[tuple[int, int]]] = [[] for _ in range(streams)]
        """Of each slot with coordinates: where its images begin, and the cells that each has beyond its positions."""
        self._lag = np.zeros(streams, np.int32)
        """Their sums."""

    def place_tokens(self, batch: BatchBuffer) -> None:
        """Set the positions of the tokens of `batch`, which are places in prompts: none comes before an image of its
        slot."""
        if self._has_coordinates:
            n = batch.n_tokens
            batch.pos[:n] -= self._lag[batch.seq_id[:n]]

    def llama_batch(self, batch: BatchBuffer) -> tuple[llama_cpp.llama_batch, list[npt.NDArray[np.generic]]]:
        """Return the call of the images of `batch`, and the arrays that it reads. Raises DecodeFailed for a call that
        would end the process."""
        n = batch.n_tokens
        embeddings = np.ascontiguousarray(np.concatenate([image.embeddings for image in batch.images]))
        if embeddings.shape != (n, self._width):
            cells = f"{n} cells of images have embeddings of the shape {embeddings.shape}"
            raise DecodeFailed(_MALFORMED, f"{cells}, and the model takes {self._width} numbers for each")
        if not self.causal and n > self._most_at_once:
            raise DecodeFailed(_MALFORMED, f"{n} cells of an image do not fit into runtime.n_ubatch")
        positions = np.ascontiguousarray(self._positions(batch))
        counts = np.ones(n, np.int32)
        addresses = (batch.seq_id.ctypes.data + 4 * np.arange(n, dtype=np.uint64)).astype(np.uintp)
        call = llama_cpp.llama_batch(
            n_tokens=n,
            token=None,
            embd=embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            n_seq_id=counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=addresses.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            logits=batch.output.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
        return call, [embeddings, positions, counts, addresses]

    def computed(self, batch: BatchBuffer) -> None:
        """Note the images of `batch`, which are in the KV cache now."""
        if self._has_coordinates:
            for slot, start, image in self._spans(batch):
                lag = len(image.embeddings) - image.positions
                self._blocks[slot].append((start, lag))
                self._lag[slot] += lag

    def cut(self, slot: int, length: int) -> int:
        """Forget the images of `slot` behind the first `length` cells; return the position that comes next."""
        blocks = self._blocks[slot]
        while blocks and blocks[-1][0] >= length:
            self._lag[slot] -= blocks.pop()[1]
        return length - int(self._lag[slot])

    def copy(self, source: int, target: int, length: int) -> int:
        """Note that `target` has the first `length` cells of `source`; return the position that comes next."""
        self._blocks[target], self._lag[target] = list(self._blocks[source]), self._lag[source]
        return self.cut(target, length)

    def clear(self) -> None:
        """Forget the images of all slots."""
        for slot in range(len(self._blocks)):
            self.cut(slot, 0)

    def _positions(self, batch: BatchBuffer) -> npt.NDArray[np.int32]:
        """Return int32 [tokens], with coordinates [4, tokens]."""
        if not self._has_coordinates:
            return batch.pos[: batch.n_tokens]
        parts = []
        for slot, start, image in self._spans(batch):
            if image.offsets is None or image.offsets.shape != (_COORDINATES, len(image.embeddings)):
                raise DecodeFailed(_MALFORMED, "an image has no coordinates, which the model's positions need")
            part = image.offsets + np.int32(start - self._lag[slot])
            part[3] = 0
            parts.append(part)
        return np.concatenate(parts, axis=1)

    def _spans(self, batch: BatchBuffer) -> list[tuple[int, int, Encoded]]:
        """Return slot, first cell and image of each span of `batch`."""
        ends = np.cumsum([len(image.embeddings) for image in batch.images])
        starts = [0, *ends[:-1].tolist()]
        return [
            (int(batch.seq_id[at]), int(batch.pos[at]), image) for at, image in zip(starts, batch.images, strict=True)
        ]
