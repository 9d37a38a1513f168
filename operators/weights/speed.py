"""The speed of a model's calls at the slots and depth of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from operators.engine.backend.interface import Decoder, Model
from operators.settings.runtime import EngineSettings
from operators.tuning.calibration import StepTimer, faster_of_two, read
from pipeline.api.meter import Clock

_PROMPT_TOKENS = 256
"""Prompt tokens of a measured call, about: so many are read nearly as fast as more."""
_DEPTH = 512
"""Most tokens before a decode step: what lies deeper is attention, which no type of weights changes."""


@dataclass(frozen=True)
class Lengths:
    """The lengths of a job's rows: `prompt` and `new` tokens of a row, on average."""

    prompt: float
    new: float

    @classmethod
    def of(cls, prompts: Sequence[int], new: Sequence[int]) -> Lengths:
        return cls(float(np.mean(prompts)), float(np.mean(new)))

    @property
    def depth(self) -> int:
        """Tokens before a decode step, on average."""
        return int(np.clip(self.prompt + self.new / 2, 2, _DEPTH))


@dataclass(frozen=True)
class Speed:
    """Seconds per token of a prompt, and per token of a completion in steps of all slots."""

    prompt_token_s: float
    token_s: float

    def of_rows(self, rows: float, lengths: Lengths) -> float:
        """Return the seconds of so many rows."""
        return rows * (lengths.prompt * self.prompt_token_s + lengths.new * self.token_s)

    def best(self, other: Speed) -> Speed:
        """Return the faster of two measurements of one thing: what else runs only makes them slower."""
        return Speed(min(self.prompt_token_s, other.prompt_token_s), min(self.token_s, other.token_s))


class SpeedTest:
    """Measures a loaded model again and again, on one context. `close` frees it.

    Args:
        settings: of the job; the context has its slots, and as many cells as are needed.
    """

    def __init__(self, model: Model, settings: EngineSettings, lengths: Lengths, clock: Clock) -> None:
        usual, self._lengths, self._clock = settings.with_defaults(), lengths, clock
        self._slots = usual.slots
        room = min(lengths.depth + 1, model.n_ctx_train)
        batch = max(usual.n_batch, room)
        needed = replace(
            usual, max_sequence_tokens=room, n_batch=batch, kv="per_sequence", n_ctx=None, admission="reserve"
        )
        self._decoder, self.close = model.lease_apart(needed)

    def measure(self) -> Speed:
        """Make some calls of prompts and of decode steps."""
        decoder = self._decoder
        prompt = int(np.clip(self._lengths.prompt, 2, decoder.shape.max_sequence_tokens - 1))
        calls = min(max(1, min(decoder.shape.n_ubatch, _PROMPT_TOKENS) // prompt), self._slots)
        prompt_s = faster_of_two(lambda: _read_together(decoder, prompt, calls), self._clock)
        depth = decoder.shape.max_sequence_tokens - 1
        step_s = StepTimer(decoder, depth, self._clock).step_s(self._slots)
        return Speed(prompt_s / (prompt * calls), step_s / self._slots)


def _read_together(decoder: Decoder, tokens: int, slots: int) -> None:
    """Read prompts of so many tokens in one call, or one prompt that is longer than a call."""
    if slots == 1:
        read(decoder, tokens)
        return
    ids = np.arange(tokens, dtype=np.int32) % 100
    decoder.clear()
    decoder.batch.clear()
    decoder.batch.add_spans([ids] * slots, [0] * slots, list(range(slots)), [1] * slots)
    decoder.decode()
