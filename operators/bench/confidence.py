"""How sure a model is of the tokens of a block: what the threshold of low_confidence_dynamic is to be, so that it
commits about two tokens of a block of four in a step.

A trained model passes 0.85 often; one with random weights never does, and how sure it is depends on its vocabulary. So
the threshold of a benchmark is taken from the model itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from operators.decoding.model import Decoder, Logits, Model, TokenIds
from operators.decoding.remasking import Believing
from operators.engine_settings import EngineSettings

PASSING = 2 / 3
"""Of the tokens. In a step that commits those that pass, or the surest one, blocks of four then take two steps."""
PROMPTS = 8
_TOKENS = 256


def likely_threshold(model: Model, prompts: Sequence[TokenIds], length: int) -> float | None:
    """The confidence that PASSING of the likeliest tokens of blocks of `length` masks are above, each block behind the
    blocks before it of one of the first PROMPTS `prompts`; None if the model has no mask token.

    Raises:
        ValueError: no prompt has a token.
    """
    if model.mask_id is None:
        return None
    decoder, give_back = model.lease(EngineSettings(slots=1, max_sequence_tokens=_TOKENS), block=length)
    found = [sure for ids in prompts[:PROMPTS] for sure in _confidences(decoder, ids[:_TOKENS], length, model.mask_id)]
    give_back()
    return float(np.quantile(np.concatenate(found), 1 - PASSING))


def _confidences(decoder: Decoder, ids: TokenIds, length: int, mask_id: int) -> Iterator[Logits]:
    """Of the likeliest tokens of a masked block in the place of each block of a prompt, float32 [length]."""
    decoder.clear()
    believing, ones = Believing(), np.ones(length, np.float32)
    for first in range(0, max(1, len(ids) - length + 1), length):
        logits = _decode(decoder, np.full(length, mask_id, np.int32), first, wanted=True)
        logits[:, mask_id] = -np.inf
        yield np.reciprocal(believing.beliefs(logits, ones, entropies=False).sums)
        decoder.truncate(0, first)
        if first + 2 * length <= len(ids):
            _decode(decoder, ids[first : first + length], first, wanted=False)


def _decode(decoder: Decoder, block: TokenIds, first: int, *, wanted: bool) -> Logits:
    decoder.batch.clear()
    decoder.batch.add_blocks(block[None], [first], [0], np.full((1, len(block)), wanted))
    return decoder.decode()
