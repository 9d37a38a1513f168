"""The measurements of a model whose weights are converted to other types."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WeightsFigures:
    """A type of weights, as measured. None: not known.

    Args:
        weights: its name; as_is for the file as it is.
        size_bytes: of the file.
        memory_bytes: of the weights, and of the KV cache and outputs of the job's slots, by the header: a lower bound.
        prompt_tokens_per_s, decode_tokens_per_s: tokens of prompts, and of completions in steps of all slots.
        job_s: seconds of these speeds for the tokens of the job, every completion being as long as it may.
        perplexity: of the sample's tokens.
        mean_kl: mean divergence (Kullback-Leibler, nats) of the next token's distribution from that of the same weights
            in f16, at the sample's tokens. The file as it is has one, too: its kernels round more than its weights.
        same_top: share of them at which both have the same likeliest token.
        doubt: why a row's bits may depend on its neighbours; None: they are tested not to.
        refused: why it was not measured.
    """

    weights: str
    size_bytes: int | None = None
    memory_bytes: int | None = None
    prompt_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    job_s: float | None = None
    perplexity: float | None = None
    mean_kl: float | None = None
    same_top: float | None = None
    doubt: str | None = None
    refused: str | None = None
