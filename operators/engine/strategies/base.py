"""What a decode strategy is to the step loop, and to what is set up around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from operators.engine.backend.interface import Decoder, DecoderShape, Logits, Model
from operators.engine.scheduler.prefill import Cut
from operators.engine.scheduler.step_batch import StepBatch
from operators.engine.scheduler.waiting_queue import Queue
from operators.engine.sequence import Sequence
from operators.settings import SamplingSettings
from operators.settings.runtime import EngineSettings


class Strategy(Protocol):
    """How completions are made on one context: what each call computes for its rows, and what becomes of the logits."""

    def fill(self, batch: StepBatch) -> None:
        """Put the tokens of `batch` into the decoder's buffer."""

    def advance(self, batch: StepBatch, logits: Logits) -> None:
        """Take the logits of `batch`, which was filled last, sample, and move its rows on."""

    def totals(self) -> Mapping[str, float]:
        """What it counted, beyond what the engine counts."""


class Method(Protocol):
    """A strategy as the settings have it, before there is a context: `decode.strategy` names a class, whose class
    method `method(settings)` makes it."""

    def check(self, sampling: SamplingSettings, runtime: EngineSettings) -> None:
        """Check what can be checked before anything is loaded.

        Raises:
            ConfigError: it cannot work with these settings.
        """

    def room(self, max_sequence_tokens: int) -> int:
        """Prompt and completion tokens of a row at most, where so many tokens fit into a slot."""

    def rows(self) -> Callable[..., Sequence]:
        """What makes a row: takes the arguments of Sequence."""

    def queue(self, settings: EngineSettings) -> Queue:
        """Where its rows wait, and what they may take from each other."""

    def cut(self, shape: DecoderShape) -> Cut:
        """How its rows are cut on a decoder of this shape."""

    def context(self, model: Model, settings: EngineSettings) -> tuple[Decoder, Callable[[], None]]:
        """A decoder of `model` that is made for it, and what gives it back."""

    def strategy(self, decoder: Decoder, model: Model) -> Strategy:
        """The strategy on a context of `model`.

        Raises:
            ConfigError: it cannot work with the model.
        """
