"""BlockDiffusionSetup: what block diffusion needs of sampling settings, call sizes and models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from operators.engine.backend.interface import Decoder, Model
from operators.engine.strategies.base import DecodeSetup, Strategy
from operators.engine.strategies.block_diffusion.block_rows import BlockRow
from operators.settings import DecodeSettings, ModelSettings, SamplingSettings
from operators.settings.block_diffusion import BlockDiffusionSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError

_BEHIND = "it looks back on the text before a token, which is not there yet when a block is made"
UNUSABLE = {
    "logprobs": "a token is chosen together with its neighbours, so it has no log-probability under the text before it",
    "structured": "a constraint is followed from left to right, and a block is not made in that order",
    "thinking_budget": "a closing tag is forced from left to right, and a block is not made in that order",
    "min_tokens": "whether a block holds the end is known when all of it is",
    "repetition_penalty": _BEHIND,
    "presence_penalty": _BEHIND,
    "frequency_penalty": _BEHIND,
    "dry_multiplier": _BEHIND,
    "bad_words": _BEHIND,
    "mirostat": _BEHIND,
    "xtc_probability": "it is not built for blocks",
    "dynatemp_range": "it is not built for blocks: confidences are taken at one temperature",
    "logit_bias": "it is not built for blocks",
}
"""Sampling settings that must be off, and why."""


class BlockDiffusionSetup(DecodeSetup):
    """Answers for block diffusion."""

    def __init__(self, settings: DecodeSettings, strategy: type[Strategy]) -> None:
        if not isinstance(settings, BlockDiffusionSettings):
            raise ConfigError(
                f"decode.strategy='{settings.strategy}' has settings of its own; use decode=block_diffusion"
            )
        super().__init__(settings, strategy)
        self.block = settings.block_length

    def check(self, sampling: SamplingSettings, runtime: EngineSettings, model: ModelSettings) -> None:
        check_sampling(sampling)
        check_sizes(runtime, self.block)

    def sequence_type(self) -> Callable[..., BlockRow]:
        return partial(BlockRow, block_length=self.block)


def check_sampling(sampling: SamplingSettings) -> None:
    """Raise ConfigError for a setting of `sampling` that does not work with blocks."""
    defaults = SamplingSettings()
    for key, why in UNUSABLE.items():
        structured = key == "structured"
        value = sampling.structured.kind if structured else getattr(sampling, key)
        default = None if structured else getattr(defaults, key)
        if value != default and (value or key == "logprobs"):
            shown = value if structured else repr(value)
            raise ConfigError(f"sampling.{key}={shown} cannot work with decode=block_diffusion: {why}")
        if key in sampling.per_row:
            raise ConfigError(f"sampling.per_row: a column '{key}' cannot work with decode=block_diffusion: {why}")


def check_sizes(runtime: EngineSettings, block_length: int) -> None:
    """Raise ConfigError if the blocks of all slots do not fit into a call, or the number of slots is still open."""
    if runtime.open_keys():
        raise ConfigError(
            "runtime=auto measures steps of one token a row, which are not those of decode=block_diffusion; give"
            f" values for {', '.join(f'runtime.{key}' for key in runtime.open_keys())}"
        )
    tokens = runtime.slots * block_length
    size = f"runtime.slots={runtime.slots} x decode.block_length={block_length}"
    for key in ("n_batch", "n_ubatch"):
        if tokens > getattr(runtime, key):
            raise ConfigError(
                f"runtime.{key}={getattr(runtime, key)} is too small: a call has {size} = {tokens} tokens, which"
                f" llama.cpp must compute at once; set runtime.{key}={tokens}, or use fewer slots"
            )


def mask_of(decoder: Decoder, model: Model, mask_token_id: int | None) -> int:
    """Return the id of the mask: `mask_token_id`, or if that is None the one in the vocabulary. Raises ConfigError if
    there is none, or the decoder cannot truncate."""
    if not decoder.partial:
        raise ConfigError("decode=block_diffusion drops the end of what the model keeps of a row; this one cannot")
    mask_id = model.mask_id if mask_token_id is None else mask_token_id
    if mask_id is None:
        raise ConfigError(
            "decode=block_diffusion needs the id of the mask token, and the model's vocabulary names none: it may"
            " not be made for block diffusion; if it is, give decode.mask_token_id"
        )
    if mask_id >= model.n_vocab:
        raise ConfigError(f"decode.mask_token_id={mask_id} cannot work: the model's ids are 0 to {model.n_vocab - 1}")
    return mask_id
