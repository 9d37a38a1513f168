"""Strategy: what a decode strategy is to the step loop, and to what is set up around it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Self

from operators.engine.backend.interface import Decoder, DecoderShape, Logits, Model, max_sequence_tokens
from operators.engine.scheduler.chunking import Chunking
from operators.engine.scheduler.step_batch import StepBatch
from operators.engine.scheduler.waiting_queue import WaitingQueue
from operators.engine.sequence import Sequence
from operators.settings import DecodeSettings, SamplingSettings
from operators.settings.runtime import KERNEL_TOKENS, EngineSettings


class Strategy(ABC):
    """How completions are made: what each call computes for its sequences, and what becomes of the logits.

    `decode.strategy` names a subclass. It is made of the config group `decode` and answers what is asked before there
    is a context; `bind` gives it one. What is not overridden is what sequences need that decode a token a step.

    Args:
        settings: the config group.

    Attributes:
        decoder: the context, once it is bound; its batch is filled in place.
        block: tokens of a block that a sequence brings to each call, see DecoderShape; 0: none.
    """

    decoder: Decoder
    block: int = 0

    def __init__(self, settings: DecodeSettings) -> None:
        self.settings = settings

    @abstractmethod
    def check(self, sampling: SamplingSettings, runtime: EngineSettings) -> None:
        """Check what can be checked before anything is loaded.

        Raises:
            ConfigError: it cannot work with these settings.
        """

    def room(self, settings: EngineSettings, n_ctx_train: int) -> int:
        """Return prompt and completion tokens of a sequence at most: whole blocks, and in the unified layout not more
        than the KV cache holds. `n_ctx_train`: tokens that the model was trained for.

        Raises:
            ConfigError: more was asked for.
        """
        longest = max_sequence_tokens(settings, n_ctx_train)
        longest = longest if settings.n_ctx is None else min(longest, settings.n_ctx)
        return longest - longest % max(self.block, 1)

    def sequence_type(self) -> Callable[..., Sequence]:
        """Return what makes a sequence: it takes the arguments of Sequence."""
        return Sequence

    def queue(self, settings: EngineSettings) -> WaitingQueue:
        """Return where its sequences wait; it says what they may take from each other."""
        return WaitingQueue(settings.optimise, KERNEL_TOKENS if settings.deterministic else 0)

    def chunking(self, shape: DecoderShape) -> Chunking:
        """Return how prompts are cut on a decoder of this shape."""
        return Chunking(KERNEL_TOKENS if shape.deterministic else 0)

    def bind(self, decoder: Decoder, model: Model) -> Self:
        """Work on `decoder`, a context of `model`; returns itself.

        Raises:
            ConfigError: it cannot work with the model.
        """
        self.decoder = decoder
        return self

    @abstractmethod
    def fill(self, batch: StepBatch) -> None:
        """Put the tokens of `batch` into the decoder's buffer."""

    @abstractmethod
    def advance(self, batch: StepBatch, logits: Logits) -> None:
        """Take the logits of `batch`, which was filled last and is computed; sample, and move its sequences on."""

    def totals(self) -> Mapping[str, float]:
        """Return what it counted, beyond what the engine counts."""
        return {}
