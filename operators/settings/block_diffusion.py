"""The config group `decode` for `decode=block_diffusion`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from operators.settings.checks import check, check_one_of
from operators.settings.model import DecodeSettings


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
    block_length: int = 4
    denoising_steps: int | None = None
    remasking: str = Remasking.STATIC.value
    confidence_threshold: float = 0.85
    eb_threshold: float = 0.35
    mask_token_id: int | None = None
    shift_logits: bool = False

    def __post_init__(self) -> None:
        steps, mask = self.denoising_steps, self.mask_token_id
        check(1 <= self.block_length <= 1024, "decode.block_length", self.block_length, "it is 1 to 1024")
        check(steps is None or steps >= 1, "decode.denoising_steps", steps, "1 or more, or null for block_length")
        check_one_of("decode.remasking", self.remasking, list(Remasking))
        threshold = self.confidence_threshold
        check(0 <= threshold <= 1, "decode.confidence_threshold", threshold, "it is a probability, 0 to 1")
        check(self.eb_threshold >= 0, "decode.eb_threshold", self.eb_threshold, "it is 0 nats or more")
        check(mask is None or mask >= 0, "decode.mask_token_id", mask, "a token id, 0 or more, or null for the model's")

    @property
    def steps(self) -> int:
        """Denoising steps per block."""
        return min(self.denoising_steps or self.block_length, self.block_length)

    def committed(self, step: int) -> int:
        """Return the tokens that the schedule commits in `step` of a block, from 0: spread evenly, the first steps one
        more. It counts whole blocks, even if a prompt fills part of the block."""
        each, more = divmod(self.block_length, self.steps)
        return each + (step < more)
