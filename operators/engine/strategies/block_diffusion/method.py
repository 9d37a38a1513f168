"""Block diffusion before there is a context: what it can work with, and what it asks of rows, queue and context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from operators.engine.backend.interface import Decoder, DecoderShape, Model
from operators.engine.scheduler.waiting_queue import Queue
from operators.engine.strategies.base import Strategy
from operators.engine.strategies.block_diffusion.block_rows import BlockCut, BlockRow
from operators.settings import SamplingSettings
from operators.settings.block_diffusion import BlockDiffusionSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError

_BEHIND = "it looks back on the text before a token, which is not there yet when a block is made"
UNUSABLE = {
    "logprobs": "a token is chosen together with its neighbours, so it has no log-probability under the text before it",
    "structured": "a constraint is followed from left to right, and a block is not made in that order",
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


class Blockwise:
    """Implements operators.engine.strategies.base.Method for BlockDiffusion.

    Args:
        settings: the config group `decode`.
        make: makes the strategy of a context, from its decoder, the settings and the mask's id.
    """

    def __init__(
        self,
        settings: BlockDiffusionSettings,
        make: Callable[[Decoder, BlockDiffusionSettings, int], Strategy],
    ) -> None:
        self._length = settings.block_length
        self._settings = settings
        self._make = make

    def check(self, sampling: SamplingSettings, runtime: EngineSettings) -> None:
        """See Method.check."""
        for key, why in UNUSABLE.items():
            if _is_on(sampling, key):
                value = sampling.structured.kind if key == "structured" else repr(getattr(sampling, key))
                raise ConfigError(f"sampling.{key}={value} cannot work with decode=block_diffusion: {why}")
            if key in sampling.per_row:
                raise ConfigError(f"sampling.per_row: a column '{key}' cannot work with decode=block_diffusion: {why}")
        self._check_sizes(runtime)

    def _check_sizes(self, runtime: EngineSettings) -> None:
        if runtime.open_keys():
            raise ConfigError(
                "runtime=auto measures steps of one token a row, which are not those of decode=block_diffusion; give"
                f" values for {', '.join(f'runtime.{key}' for key in runtime.open_keys())}"
            )
        tokens = runtime.slots * self._length
        size = f"runtime.slots={runtime.slots} x decode.block_length={self._length}"
        for key in ("n_batch", "n_ubatch"):
            if tokens > getattr(runtime, key):
                raise ConfigError(
                    f"runtime.{key}={getattr(runtime, key)} is too small: a call has {size} = {tokens} tokens, which"
                    f" llama.cpp must compute at once; set runtime.{key}={tokens}, or use fewer slots"
                )

    def room(self, max_sequence_tokens: int) -> int:
        """See Method.room: whole blocks."""
        return max_sequence_tokens - max_sequence_tokens % self._length

    def rows(self) -> Callable[..., BlockRow]:
        """See Method.rows."""
        return partial(BlockRow, block_length=self._length)

    def queue(self, settings: EngineSettings) -> Queue:
        """See Method.queue: prompts of any length share with each other, since all are computed in pieces of one
        length; and no logits are shared."""
        return Queue(replace(settings.optimise, sample_sharing=False), 0)

    def cut(self, shape: DecoderShape) -> BlockCut:
        """See Method.cut."""
        return BlockCut(self._length, shift=self._settings.shift_logits)

    def context(self, model: Model, settings: EngineSettings) -> tuple[Decoder, Callable[[], None]]:
        """See Method.context."""
        return model.lease(settings, block=self._length)

    def strategy(self, decoder: Decoder, model: Model) -> Strategy:
        """See Method.strategy."""
        if not decoder.partial:
            raise ConfigError("decode=block_diffusion drops the end of what the model keeps of a row; this one cannot")
        mask_id = model.mask_id if self._settings.mask_token_id is None else self._settings.mask_token_id
        if mask_id is None:
            raise ConfigError(
                "decode=block_diffusion needs the id of the mask token, and the model's vocabulary names none: it may"
                " not be made for block diffusion; if it is, give decode.mask_token_id"
            )
        if mask_id >= model.n_vocab:
            raise ConfigError(
                f"decode.mask_token_id={mask_id} cannot work: the model's ids are 0 to {model.n_vocab - 1}"
            )
        return self._make(decoder, self._settings, mask_id)


def _is_on(sampling: SamplingSettings, key: str) -> bool:
    value = getattr(sampling, key)
    if key == "structured":
        return sampling.structured.kind is not None
    return value is not None if key == "logprobs" else bool(value) and value != getattr(SamplingSettings(), key)
