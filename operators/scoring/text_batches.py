"""Compute the model's outputs at every token of whole texts, several texts per call.

Nothing is sampled or kept: texts of equal length are computed together, in the slots from 0 on, and cleared. The bits
of a text depend on the text alone, by the rules of operators/engine/scheduler/step_batch.py: only equal pieces share a
call, no piece has a single token, and all pieces are computed by the kernel for the whole text.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np

from operators.engine.backend.interface import Decoder, Logits, TokenIds
from operators.settings.runtime import KERNEL_TOKENS, EngineSettings

OUTPUT_BYTES = 256 << 20
"""Memory for the logits of a call. llama.cpp has a second buffer of that size."""
SLOTS = 16
"""Most texts per call. More would fill a call only with texts of fewer than 32 tokens, and each costs KV cache."""


@dataclass(frozen=True, slots=True)
class Part:
    """The model's outputs for consecutive tokens of a text.

    Args:
        index: which text.
        start: position of the first token.
        rows: float32 [tokens, n_vocab or n_embd], a view that holds until the next part is asked for.
    """

    index: int
    start: int
    rows: Logits


class Reader:
    """Reads texts with a decoder that has the settings of `reading_settings`, and Wanted.EVERY or EMBEDDINGS."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._room = min(decoder.shape.n_batch, decoder.shape.n_ubatch)
        self._least = KERNEL_TOKENS if decoder.shape.deterministic else 1

    def groups(self, lengths: Seq[int]) -> Iterator[list[int]]:
        """Group the indices of texts to read together: texts of equal length, as many as fit into a call."""
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        for length, same in itertools.groupby(order, lengths.__getitem__):
            texts = list(same)
            most = max(1, min(self._decoder.shape.slots, self._room // max(length, 2)))
            yield from (texts[start : start + most] for start in range(0, len(texts), most))

    def read(self, texts: Seq[TokenIds], first: Seq[int]) -> Iterator[Part]:
        """Read a group of texts; yield the outputs of each from position `first` or earlier.

        A text of one token gets a second one after it, which does not affect the first and whose output is dropped: the
        backend computes a lone token with other kernels.
        """
        decoder = self._decoder
        decoder.clear()
        lone = len(texts[0]) == 1 and decoder.shape.deterministic
        fed = [np.repeat(ids, 2) for ids in texts] if lone else list(texts)
        start = 0
        for count in pieces(len(fed[0]), self._room, self._least):
            end = start + count
            # At least two: the backend computes a lone output with other kernels.
            outputs = [min(count, max(2, end - since)) if end > since else 0 for since in first]
            decoder.batch.clear()
            decoder.batch.add_spans([ids[start:end] for ids in fed], [start] * len(fed), list(range(len(fed))), outputs)
            rows = decoder.decode()
            row = 0
            for index, given in enumerate(outputs):
                if given:
                    yield Part(index, end - given, rows[row : row + 1] if lone else rows[row : row + given])
                row += given
            start = end


def pieces(length: int, room: int, least: int) -> list[int]:
    """Return the sizes of the pieces of a text of `length` tokens, each at most `room`, the size of a call, and at
    least `least`."""
    found: list[int] = []
    while length > room:
        found.append(min(room, length - least))
        length -= found[-1]
    return [*found, length]


def reading_settings(settings: EngineSettings, n_vocab: int) -> EngineSettings:
    """Return `settings` for a decoder with an output per token: as many tokens per call as OUTPUT_BYTES allow."""
    settings = settings.with_defaults()
    least = 2 * KERNEL_TOKENS if settings.deterministic else 1
    tokens = max(least, min(settings.n_ubatch, OUTPUT_BYTES // (4 * n_vocab)))
    return replace(
        settings,
        slots=min(settings.slots, SLOTS, tokens),
        n_batch=tokens,
        n_ubatch=tokens,
        kv="per_sequence",
        n_ctx=None,
        admission="reserve",
        refill=1,
        contexts=1,
    )
