"""The threshold of low_confidence_dynamic for a benchmark: one with which a step commits about half of a block.

A trained model passes 0.85 often; one with random weights never does, and how sure it is depends on its vocabulary. So
the threshold is looked for on the model itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from operators.bench.loop import complete_by
from operators.decoding.block_diffusion import BlockDiffusion
from operators.decoding.model import Model, TokenIds
from operators.decoding.params import SamplingParams
from operators.diffusion_settings import BlockDiffusionSettings, Remasking
from operators.engine_settings import EngineSettings

PROMPTS = 4
BLOCKS = 32
"""By which the first PROMPTS prompts are completed in a trial, together."""
TRIALS = 8
LEAST = 0.001
"""A probability of which almost every token passes."""
_PROMPT_TOKENS = 64


def likely_threshold(
    model: Model, prompts: Sequence[TokenIds], length: int, mask_token_id: int | None = None
) -> float | None:
    """The best of TRIALS thresholds from LEAST to 1, each in the middle of the range (of logarithms) that is left; None
    where no `mask_token_id` is given and the model names none."""
    if model.mask_id is None and mask_token_id is None:
        return None
    texts = [ids[:_PROMPT_TOKENS] for ids in prompts[:PROMPTS]]
    low, high, found = LEAST, 1.0, {}
    for _ in range(TRIALS):
        threshold = sqrt(low * high)
        decode = BlockDiffusionSettings(
            block_length=length,
            remasking=Remasking.DYNAMIC.value,
            confidence_threshold=threshold,
            mask_token_id=mask_token_id,
        )
        missed = _tokens_per_step(model, texts, decode) - length / 2
        found[threshold] = abs(missed)
        low, high = (threshold, high) if missed > 0 else (low, threshold)
    return min(found, key=lambda threshold: found[threshold])


def _tokens_per_step(model: Model, texts: Sequence[TokenIds], decode: BlockDiffusionSettings) -> float:
    """Tokens committed in a denoising step of a block, on average over completions of `texts`."""
    method, length = BlockDiffusion.method(decode), decode.block_length
    tokens = BLOCKS // len(texts) * length
    runtime = EngineSettings(slots=len(texts), max_sequence_tokens=_PROMPT_TOKENS + tokens + length)
    decoder, give_back = method.context(model, runtime)
    rows = [method.rows()(i, ids, SamplingParams(), i, tokens) for i, ids in enumerate(texts)]
    totals = complete_by(method, model, rows, decoder, runtime).totals
    give_back()
    return totals["committed_tokens"] / totals["denoise_passes"]
