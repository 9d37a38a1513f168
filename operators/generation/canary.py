"""Canaries: hashes of what a model computes for three fixed texts, to tell machines with other bits apart."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator

import numpy as np

from operators.engine.backend.interface import TokenIds
from operators.engine.loop.engine import Engine
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence
from pipeline.api.meter import StageMeter

LENGTHS = (7, 40, 70)
"""Tokens of the texts; attention has another kernel from 64 on."""
TOKENS = 16


def fixed_texts(n_vocab: int, longest: int) -> Iterator[TokenIds]:
    """Yield three texts, of ids below `n_vocab` and at most `longest` tokens."""
    for number, length in enumerate(LENGTHS):
        size = max(1, min(length, longest))
        yield ((np.arange(size, dtype=np.int64) + 1) * (7919 + 104729 * number) % n_vocab).astype(np.int32)


def canary(engine: Engine, n_vocab: int, longest: int, sequence: Callable[..., Sequence]) -> str:
    """Complete three prompts greedily, and return a hash of tokens and log-probabilities, to the bit.

    Args:
        engine: it may complete other rows meanwhile.
        n_vocab: the prompts are ids below it.
        longest: tokens that a row may have.
        sequence: makes the rows.
    """
    woken = threading.Event()
    client = engine.connect(StageMeter("canary"), 0, len(LENGTHS), woken.set)
    params = SamplingParams(max_tokens=TOKENS, logprobs=0)
    rows = []
    for number, prompt in enumerate(fixed_texts(n_vocab, longest - TOKENS)):
        rows.append(sequence(number, prompt, params, number, max(1, min(TOKENS, longest - len(prompt)))))
    try:
        client.submit(rows)
        client.end()
        found: list[Sequence] = []
        while len(found) < len(rows):
            woken.wait()
            woken.clear()
            found += client.collect()
    finally:
        client.leave()
    digest = hashlib.blake2b(digest_size=8)
    for row in rows:
        digest.update(repr((row.tokens, row.error)).encode())
        digest.update(np.array([score.logprob for score in row.sampling.scores], "<f4").tobytes())
    return digest.hexdigest()
