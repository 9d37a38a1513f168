"""The config group `decode` for `decode=block_diffusion`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from operators.settings.model import DecodeSettings
from pipeline.api.keys import Rule, at_least, check_values, in_data, one_of


class Remasking(StrEnum):
    """The rule that says which masked tokens of a block are committed in a denoising step."""

    STATIC = "low_confidence_static"
    """Those with the highest confidence, as many as the schedule has for the step."""
    DYNAMIC = "low_confidence_dynamic"
    """All above `confidence_threshold`, if these are as many as the schedule has; or else as static."""
    SEQUENTIAL = "sequential"
    """The leftmost, as many as the schedule has."""
    ENTROPY = "entropy_bounded"
    """Those of the lowest entropy, as long as their sum stays below `eb_threshold`; one at least."""


_LENGTH: Rule = ("it is 1 to 1024", lambda value: 1 <= value <= 1024)
_SHARE: Rule = ("it is a probability, 0 to 1", lambda value: 0 <= value <= 1)


@dataclass
class BlockDiffusionSettings(DecodeSettings):
    """The denoising of blocks (`decode`). docs/block_diffusion.md has the algorithm.

    Args:
        block_length: tokens of a block, L; what the checkpoint was trained with (SDAR ships 4, 8, 16, 32 and 64).
        denoising_steps: in which a block is made; more than block_length counts as block_length; null: block_length.
        remasking: which tokens are committed in a step; see Remasking.
        confidence_threshold: of low_confidence_dynamic; confidences above it are committed.
        eb_threshold: of entropy_bounded, in nats.
        mask_token_id: what stands where a token is not known yet; null: the mask token that the GGUF names.
        shift_logits: read what is said of a token one position before it, as in models that were trained from ones that
            predict the next token (Dream, Fast-dLLM v2). SDAR reads it at its own position.
    """

    strategy: str = "operators.engine.strategies.block_diffusion.denoise:BlockDiffusion"
    block_length: int = in_data(4, *_LENGTH)
    denoising_steps: int | None = in_data(None, *at_least(1, "1 or more, or null for block_length"))
    remasking: str = in_data(Remasking.STATIC.value, *one_of(list(Remasking)))
    confidence_threshold: float = in_data(0.85, *_SHARE)
    eb_threshold: float = in_data(0.35, *at_least(0, "it is 0 nats or more"))
    mask_token_id: int | None = in_data(None, *at_least(0, "a token id, 0 or more, or null for the model's"))
    shift_logits: bool = False

    def __post_init__(self) -> None:
        check_values(self, "decode")

    @property
    def steps(self) -> int:
        """Denoising steps per block."""
        return min(self.denoising_steps or self.block_length, self.block_length)

    def committed(self, step: int) -> int:
        """Return the tokens that the schedule commits in `step` of a block, from 0: spread evenly, the first steps one
        more. It counts whole blocks, even if a prompt fills part of the block."""
        each, more = divmod(self.block_length, self.steps)
        return each + (step < more)
