"""Strategy: how completions are made on a context; DecodeSetup: what is asked of one before there is a context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

from operators.engine.backend.interface import Decoder, Logits, Model
from operators.engine.backend.loading import inspect_model
from operators.engine.backend.shape import max_sequence_tokens
from operators.engine.sampling.reduced import why_all
from operators.engine.sampling.sampler import Sampler
from operators.engine.scheduler.step_batch import Chunking, StepBatch
from operators.engine.sequence import Sequence
from operators.settings import DecodeSettings, ModelSettings, SamplingSettings
from operators.settings.long_rows import SMALL
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError

IMAGE_ROW_TOKENS = 4096
"""Tokens of a row of a model that reads images, unless runtime.max_sequence_tokens says otherwise."""
DraftContext = tuple[Decoder, Model]
"""A context of a draft model, empty, and that model."""


class DecodeSetup:
    """Answers what is asked of a decode strategy before there is a context. The defaults are for sequences that decode
    one token per step, with any settings and models.

    Args:
        settings: the config group `decode`.
        strategy: the class that `decode.strategy` names.

    Attributes:
        block: tokens of a block that a sequence brings to each call, see DecoderShape; 0: none.
        draft: tokens that a sequence may bring to a call beyond one, see DecoderShape.
        draft_model: a second model, which drafts these tokens; None: it needs none.
        name: the option of `decode`.
        takes_images: whether prompts may have images.
    """

    name: ClassVar[str] = "autoregressive"
    takes_images: ClassVar[bool] = True
    block: int = 0
    draft: int = 0
    draft_model: ModelSettings | None = None

    def __init__(self, settings: DecodeSettings, strategy: type[Strategy]) -> None:
        self.settings = settings
        self._strategy = strategy

    def check(self, sampling: SamplingSettings, engine: EngineSettings, model: ModelSettings) -> None:
        """Check everything that needs no loaded model; raise ConfigError if it cannot work with these settings."""

    def check_device_sampling(self, sampling: SamplingSettings, engine: EngineSettings, model: ModelSettings) -> None:
        """Raise ConfigError if runtime.device_sampling=true could do nothing: no call would be reduced."""
        if engine.device_sampling is not True:
            return
        facts = inspect_model(model)
        keeps_all = facts.sizes is None or not facts.sizes.recurrent
        if facts.attention is not None and facts.attention.keeps_window_alone(engine):
            keeps_all = False
        reasons = {
            f"decode={self.name} draws from the logits of several tokens of a row": bool(self.block or self.draft),
            "a call whose words are equally likely is made again, and this model cannot go back (recurrent layers, or"
            " runtime.window_cache=small)": not keeps_all,
            why_all(sampling) or "": why_all(sampling) is not None,
        }
        if (reason := next((each for each, holds in reasons.items() if holds), None)) is not None:
            raise ConfigError(
                f"runtime.device_sampling=true cannot work: {reason}; leave it at auto, with which such rows have all"
                " logits"
            )

    def check_images(self, engine: EngineSettings, model: ModelSettings) -> None:
        """Raise ConfigError if prompts with images cannot be computed with these settings."""
        sizes = inspect_model(model).sizes
        refused = {
            f"decode={self.name}": not self.takes_images,
            "runtime.kv=unified": engine.kv == "unified",
            "runtime.window_cache=small": engine.window_cache == SMALL,
            "model.adapters": bool(model.adapters),
            "a model with recurrent layers": sizes is not None and sizes.recurrent,
        }
        if (reason := next((name for name, refuses in refused.items() if refuses), None)) is not None:
            raise ConfigError(f"prompts have images, which {reason} does not take yet; leave one of them out")

    def of_images(self, settings: EngineSettings, model: ModelSettings) -> EngineSettings:
        """Return `settings` for a `model` that may read images: cells that see each other are computed at once, and an
        image has more tokens than most texts."""
        if model.mmproj is None:
            return settings
        usual = min(IMAGE_ROW_TOKENS, inspect_model(model).n_ctx_train or IMAGE_ROW_TOKENS)
        longest = usual if settings.max_sequence_tokens is None else settings.max_sequence_tokens
        return replace(settings, max_sequence_tokens=longest, n_ubatch=max(settings.n_ubatch, settings.n_batch))

    def settled(self, settings: EngineSettings) -> EngineSettings:
        """Return `settings` without the open keys for which only one value works."""
        return settings

    def room(self, settings: EngineSettings, n_ctx_train: int) -> int:
        """Return the most prompt and completion tokens of a sequence: whole blocks, and in the unified layout at most
        the KV cache. Raises ConfigError if more than `n_ctx_train` was asked for."""
        longest = max_sequence_tokens(settings, n_ctx_train)
        longest = longest if settings.n_ctx is None else min(longest, settings.n_ctx)
        return longest - longest % max(self.block, 1)

    def sequence_type(self) -> Callable[..., Sequence]:
        """Return a constructor of sequences, with the arguments of Sequence."""
        return Sequence

    def bind(self, decoder: Decoder, model: Model, draft: DraftContext | None = None) -> Strategy:
        """Return the strategy for the context `decoder` of `model`; `draft`: given if there is a `draft_model`. Raises
        ConfigError if it cannot work with `model`."""
        return self._strategy(self.settings, decoder, model, draft)


class Strategy(ABC):
    """A way to make completions on one context: fills the batch of each call, and uses its logits. `decode.strategy`
    names a subclass.

    Attributes:
        setup: answers what is asked before there is a context.
        drafts: whether `draft` is to be called.
        decoder: the context; its batch is filled in place.
        chunking: the rule for splitting prompts.
    """

    setup: ClassVar[type[DecodeSetup]] = DecodeSetup
    drafts: ClassVar[bool] = False

    def __init__(
        self,
        settings: DecodeSettings,
        decoder: Decoder,
        model: Model,
        draft: DraftContext | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self.settings = settings
        self.decoder = decoder
        self.chunking = Chunking(decoder.shape.kernel_tokens, decoder.most_shared)
        self.sampler = sampler or Sampler()

    def draft(self, batch: StepBatch) -> None:  # noqa: B027 - most strategies draft nothing
        """Make the drafts for `batch`, which is filled next."""

    @abstractmethod
    def fill(self, batch: StepBatch) -> None:
        """Put the tokens of `batch` into the decoder's buffer."""

    def decode(self, batch: StepBatch) -> Logits:
        """Compute the filled `batch`, and return its logits for `advance`. Raises as StepBatch.decode does."""
        return batch.decode(self.decoder)

    @abstractmethod
    def advance(self, batch: StepBatch, logits: Logits) -> None:
        """Sample from the logits of `batch`, which was filled last and computed, and update its sequences."""

    def own_counts(self) -> Iterable[Any]:
        """Return the dataclasses of its counts beyond those of the engine, for `Runtime.numbers`."""
        return ()
