"""Canaries: hashes of what a model computes for fixed texts, to tell machines with other bits apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import Decoder, TokenIds

LENGTHS = (7, 40, 70)
"""Tokens of the texts; attention has another kernel from 64 on."""
STEPS = 4
"""Tokens that are drawn after each text by `canary`."""


def fixed_texts(n_vocab: int, longest: int) -> Iterator[TokenIds]:
    """Yield three texts, of ids below `n_vocab` and at most `longest` tokens."""
    for number, length in enumerate(LENGTHS):
        size = max(1, min(length, longest))
        yield ((np.arange(size, dtype=np.int64) + 1) * (7919 + 104729 * number) % n_vocab).astype(np.int32)


def canary(decoder: Decoder, n_vocab: int) -> str | None:
    """Read two fixed texts and continue them greedily, together; return a hash of all logits, to the bit.

    It does not depend on slots and sizes of calls, which may change on a resume.

    Args:
        decoder: with empty slots; they are empty again afterwards.
        n_vocab: the texts are ids below it.

    Returns:
        None if the texts do not fit into a call, or the backend failed.
    """
    shape, batch, digest = decoder.shape, decoder.batch, hashlib.blake2b(digest_size=8)
    longest = shape.block or min(LENGTHS[-1], shape.max_sequence_tokens - STEPS)
    room = min(shape.call_tokens, shape.n_ubatch, shape.cells // 2 - STEPS)
    if longest > room or shape.streams < 2:
        return None
    texts = list(fixed_texts(n_vocab, longest))[::2]
    if shape.block:  # a call takes whole blocks, and nothing is drawn after them here
        texts = [np.resize(text, shape.block) for text in texts]
    slots, drawn = range(len(texts)), []
    try:
        for slot, text in enumerate(texts):
            batch.clear()
            batch.add_spans([text], [0], [slot], [shape.block or 1])
            logits = decoder.decode()
            digest.update(logits.tobytes())
            drawn.append(int(logits[-1].argmax()))
        for step in range(0 if shape.block else STEPS):
            batch.clear()
            batch.add_rows(drawn, [len(text) + step for text in texts], slots)
            logits = decoder.decode()
            digest.update(logits.tobytes())
            drawn = logits.argmax(axis=1).tolist()
    except DecodeFailed:
        return None
    finally:
        batch.clear()
        for slot in slots:
            decoder.truncate(slot, 0)
    return digest.hexdigest()
