"""Strategy: the interface of decode strategies to the step loop and its setup."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Self

from operators.engine.backend.interface import Decoder, DecoderShape, Logits, Model, max_sequence_tokens
from operators.engine.scheduler.step_batch import Chunking, StepBatch
from operators.engine.scheduler.waiting_queue import WaitingQueue
from operators.engine.sequence import Sequence
from operators.settings import DecodeSettings, ModelSettings, SamplingSettings
from operators.settings.runtime import EngineSettings


class Strategy(ABC):
    """A way to make completions: fills the batch of each call, and uses its logits.

    `decode.strategy` names a subclass. It is made from the config group `decode`, before there is a context; `bind`
    sets the context. The defaults are for sequences that decode one token per step.

    Attributes:
        decoder: the context, once bound; its batch is filled in place.
        block: tokens of a block that a sequence brings to each call, see DecoderShape; 0: none.
        draft: tokens that a sequence may bring to a call beyond one, see DecoderShape.
        draft_model: a second model, which drafts these tokens; None: it needs none.
    """

    decoder: Decoder
    block: int = 0
    draft: int = 0
    draft_model: ModelSettings | None = None

    def __init__(self, settings: DecodeSettings) -> None:
        self.settings = settings

    @abstractmethod
    def check(self, sampling: SamplingSettings, runtime: EngineSettings, model: ModelSettings) -> None:
        """Check everything that needs no loaded model; raise ConfigError if it cannot work with these settings."""

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

    def queue(self, settings: EngineSettings, shape: DecoderShape) -> WaitingQueue:
        """Return the queue for its sequences, set up for the sharing that is possible on a decoder of this shape."""
        return WaitingQueue(settings.optimise, shape.kernel_tokens)

    def chunking(self, shape: DecoderShape) -> Chunking:
        """Return the rule for splitting prompts on a decoder of this shape."""
        return Chunking(shape.kernel_tokens)

    def bind(self, decoder: Decoder, model: Model) -> Self:
        """Set the context, and return itself; raise ConfigError if it cannot work with `model`."""
        self.decoder = decoder
        return self

    def take_draft_model(self, model: Model, settings: EngineSettings) -> Callable[[], None]:
        """Make a context of its draft model, once it is bound; return a function that gives it back."""
        raise TypeError(f"{type(self).__name__} has no draft model")

    def prepare(self, batch: StepBatch) -> None:  # noqa: B027 - most strategies draft nothing
        """Make the drafts for `batch`, which is filled next; called if `draft` is not 0."""

    @abstractmethod
    def fill(self, batch: StepBatch) -> None:
        """Put the tokens of `batch` into the decoder's buffer."""

    @abstractmethod
    def advance(self, batch: StepBatch, logits: Logits) -> None:
        """Sample from the logits of `batch`, which was filled last and computed, and update its sequences."""

    def own_counts(self) -> Iterable[Any]:
        """Return the dataclasses of its counts beyond those of the engine, for `Runtime.numbers`."""
        return ()
