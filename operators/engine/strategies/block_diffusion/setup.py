"""BlockDiffusionSetup: what block diffusion needs of sampling settings, call sizes and models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from operators.engine.backend.interface import Decoder, Model
from operators.engine.strategies.base import DecodeSetup, Strategy
from operators.engine.strategies.block_diffusion.block_rows import BlockRow
from operators.settings import DecodeSettings, ModelSettings, SamplingSettings
from operators.settings.block_diffusion import BlockDiffusionSettings
from operators.settings.long_rows import FULL
from operators.settings.runtime import EngineSettings
from operators.settings.sampling import KEYS, is_unset
from operators.settings.structured import StructuredSettings
from pipeline.api.errors import ConfigError


class BlockDiffusionSetup(DecodeSetup):
    """Answers for block diffusion."""

    name = "block_diffusion"
    takes_images = False

    def __init__(self, settings: DecodeSettings, strategy: type[Strategy]) -> None:
        if not isinstance(settings, BlockDiffusionSettings):
            raise ConfigError(
                f"decode.strategy='{settings.strategy}' has settings of its own; use decode=block_diffusion"
            )
        super().__init__(settings, strategy)
        self.block = settings.block_length

    def check(self, sampling: SamplingSettings, engine: EngineSettings, model: ModelSettings) -> None:
        check_sampling(sampling)
        check_sizes(engine, self.block)
        if engine.window_cache != FULL:
            raise ConfigError("decode=block_diffusion needs runtime.window_cache=full: it cuts rows back to a block")

    def sequence_type(self) -> Callable[..., BlockRow]:
        return partial(BlockRow, block_length=self.block)


def check_sampling(sampling: SamplingSettings) -> None:
    """Raise ConfigError for a setting of `sampling` that does not work with blocks, as the key itself says."""
    for key, facts in KEYS.items():
        why, value = facts.get("blocks", True), getattr(sampling, key)
        if isinstance(value, StructuredSettings):
            value = value.kind
        if why is not True and not is_unset(key, value):
            shown = value if key == "structured" else repr(value)
            raise ConfigError(f"sampling.{key}={shown} cannot work with decode=block_diffusion: {why}")
        if why is not True and key in sampling.per_row:
            raise ConfigError(f"sampling.per_row: a column '{key}' cannot work with decode=block_diffusion: {why}")


def check_sizes(engine: EngineSettings, block_length: int) -> None:
    """Raise ConfigError if the blocks of all slots do not fit into a call, or the number of slots is still open."""
    if engine.open_keys():
        raise ConfigError(
            "runtime=auto measures steps of one token a row, which are not those of decode=block_diffusion; give"
            f" values for {', '.join(f'runtime.{key}' for key in engine.open_keys())}"
        )
    tokens = engine.slots * block_length
    size = f"runtime.slots={engine.slots} x decode.block_length={block_length}"
    for key in ("n_batch", "n_ubatch"):
        if tokens > getattr(engine, key):
            raise ConfigError(
                f"runtime.{key}={getattr(engine, key)} is too small: a call has {size} = {tokens} tokens, which"
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
