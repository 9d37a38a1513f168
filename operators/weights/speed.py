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
_CALL_S = 0.7
"""Seconds of such a call, about: on a slow machine it has fewer prompts, but one."""
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
        together: prompts of a measured call, as many as in the test that this one is compared with; None: as many as
            are read in _CALL_S.
    """

    def __init__(
        self, model: Model, settings: EngineSettings, lengths: Lengths, clock: Clock, together: int | None = None
    ) -> None:
        usual, self._clock = settings.with_defaults(), clock
        self._slots = usual.slots
        room = min(lengths.depth + 1, model.n_ctx_train)
        batch = max(usual.n_batch, room)
        needed = replace(
            usual, max_sequence_tokens=room, n_batch=batch, kv="per_sequence", n_ctx=None, admission="reserve"
        )
        self._decoder, self.close = model.lease_apart(needed)
        shape = self._decoder.shape
        self._steps = StepTimer(self._decoder, shape.max_sequence_tokens - 1, clock)
        self._prompt = int(np.clip(lengths.prompt, 2, shape.max_sequence_tokens - 1))
        in_time = _CALL_S * (shape.max_sequence_tokens - 1) / max(self._steps.read_s, 1e-9)
        fit = int(min(shape.n_ubatch, _PROMPT_TOKENS, in_time)) // self._prompt
        self.together = min(max(1, fit), self._slots) if together is None else together

    def measure(self) -> Speed:
        """Make some calls of prompts and of decode steps."""
        prompt_s = faster_of_two(lambda: _read_together(self._decoder, self._prompt, self.together), self._clock)
        self._steps.clear()
        return Speed(prompt_s / (self._prompt * self.together), self._steps.step_s(self._slots) / self._slots)


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
