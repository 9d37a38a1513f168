"""Choose slots and flash attention by timing decode steps for a few seconds.

The steps come after prompts of the job's own lengths. The least number of slots is chosen that comes within TOLERANCE
of the best, because more slots mean a longer tail and more memory. Threads are one a physical core, and each row has
its own KV stream. A value that the job file gives is never changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import psutil

from operators.engine.backend.interface import Buffer, Decoder
from operators.settings.checks import usable_cores
from operators.settings.runtime import EngineSettings
from pipeline.api.meter import Clock

TOLERANCE = 1.04
SLOTS = (4, 8, 16, 32, 64)
FEW_ROWS = 2 * SLOTS[-1]
"""Up to this many rows are counted before they begin, so that the number of slots can depend on their number."""
_ATTENTION_ROWS = 8
_MEMORY_SHARE = 0.5
"""Share of the free memory for the KV cache."""
_FEW_CORES = 2
"""With up to this many cores all are used, though they may be one physical core: half of them was never faster."""
_DEPTH = 512
"""Most tokens of a prompt to compute before a decode step is measured."""
_LONGEST_STEP_S = 1.5
"""A step that takes longer is not repeated."""

Lease = Callable[[EngineSettings], tuple[Decoder, Callable[[], None]]]


@dataclass
class Choice:
    """The chosen settings, and the reasons: one line per measurement. A choice of an older version may have values for
    keys that are not open any more."""

    values: dict[str, Any]
    reasons: list[str] = field(default_factory=list)

    def apply(self, settings: EngineSettings) -> EngineSettings:
        """Return `settings` with the open keys filled in."""
        return replace(settings, **{key: self.values[key] for key in settings.open_keys()})


@dataclass
class Calibration:
    """Times decode steps of a model, to choose the open keys of `settings`.

    Args:
        lease: gives a decoder for settings, and a function that frees it.
        prompt_tokens: lengths of the first prompts.
        new_tokens: length of a completion at most.
        free_bytes: memory that may be used.
        rows: number of all rows, if they are few; None for many.
        draft: see DecoderShape.
    """

    lease: Lease
    settings: EngineSettings
    prompt_tokens: Sequence[int]
    new_tokens: int
    free_bytes: int
    clock: Clock = time.perf_counter
    rows: int | None = None
    draft: int = 0

    @property
    def _depth(self) -> int:
        """A row's average depth: that halfway through its completion."""
        middle = (np.median(self.prompt_tokens) if len(self.prompt_tokens) else 64) + self.new_tokens // 2
        most = _DEPTH if self.settings.max_sequence_tokens is None else self.settings.max_sequence_tokens - 1
        return int(np.clip(middle, 2, min(_DEPTH, most)))

    def choose(self) -> Choice:
        cores = usable_cores()
        physical = psutil.cpu_count(logical=False) or cores
        threads = cores if cores <= _FEW_CORES else min(cores, physical)
        opened = self.settings.open_keys()
        choice = Choice({k: v for k, v in (("kv", "per_sequence"), ("threads", threads)) if k in opened})
        usual = self.settings.with_defaults()
        for key, measure in (("flash_attention", self._choose_attention), ("slots", self._choose_slots)):
            if key in opened:
                choice.values[key], reason = measure(replace(usual, **choice.values))
                choice.reasons.append(f"{key}={str(choice.values[key]).lower()}: {reason}")
        return choice

    def _choose_attention(self, settings: EngineSettings) -> tuple[bool, str]:
        with self._decoder(settings, slots=1, max_sequence_tokens=self._depth + 1, n_ctx=None) as decoder:
            if decoder.shape.exact:
                return True, "this project's kernels compute it, and no rule of llama.cpp's kernels is needed"
        rows = min(_ATTENTION_ROWS, settings.n_ubatch)
        tried = {
            on: self._step_s(replace(settings, slots=rows, flash_attention=on), [rows])[rows] for on in (True, False)
        }
        named = {("with" if on else "without"): seconds for on, seconds in tried.items()}
        # Flash attention saves memory and speeds up prompts, so it stays on unless steps are clearly faster without.
        best = tried[True] <= TOLERANCE * tried[False]
        return best, f"a step of {rows} rows {self._depth} tokens deep takes {_milliseconds(named)}"

    def _choose_slots(self, settings: EngineSettings) -> tuple[int, str]:
        row_bytes = self._row_bytes(settings)
        fit = max(1, int(_MEMORY_SHARE * self.free_bytes // row_bytes))
        # Never more slots than rows; as many if rows are few, since another round for a few rows costs whole steps.
        most = min(fit, SLOTS[-1], settings.n_ubatch, self.rows or SLOTS[-1])
        sizes = sorted({n for n in (*SLOTS, self.rows or 0) if 0 < n <= most} or {most})
        steps = self._step_s(replace(settings, slots=sizes[-1]), sizes)
        # Relative to one slot if the number of rows is unknown.
        cost = {n: s * (1 / n if self.rows is None else math.ceil(self.rows / n)) for n, s in steps.items()}
        best = min(n for n in cost if cost[n] <= TOLERANCE * min(cost.values()))
        reason = (
            f"a token of one row takes {_milliseconds({n: s / n for n, s in steps.items()})} at as many rows;"
            f" {row_bytes / 2**20:.0f} MiB of KV cache a slot, and room for {fit} in half of the free memory"
        )
        return best, f"{reason}; there are {self.rows} rows" if self.rows else reason

    def _row_bytes(self, settings: EngineSettings) -> int:
        """Return the bytes of KV cache for a row of the greatest length, extrapolated from two short ones: a recurrent
        state has the same size for any length, and there is one more for each token of a draft."""
        with self._decoder(settings, slots=2) as decoder:
            size: dict[int, int] = {}
            for tokens in (32, 64):
                _read(decoder, tokens)
                size[tokens] = len(decoder.save(0))
            states = 0 if decoder.partial or not self.draft else self.draft * len(decoder.mark(0))
            return size[32] + (size[64] - size[32]) // 32 * (decoder.shape.max_sequence_tokens - 32) + states

    def _step_s(self, settings: EngineSettings, sizes: Sequence[int]) -> dict[int, float]:
        """Return the seconds of a decode step by number of rows, each after a prompt of the job's usual length. `sizes`
        ascend; those after the first that gains nothing are not measured."""
        took: dict[int, float] = {}
        # A context with only the cells it needs, since making one takes time.
        with self._decoder(settings, max_sequence_tokens=self._depth + 1, n_ctx=None) as decoder:
            _read(decoder, self._depth)
            prompt = decoder.save(0)
            for ready, rows in pairwise((1, *sizes)):
                for slot in range(ready, rows):
                    decoder.restore(slot, prompt)
                took[rows] = min(self._steps(decoder, prompt, rows))
                if len(took) > 1 and took[rows] / rows * TOLERANCE > min(took[n] / n for n in took if n < rows):
                    break
        return took

    def _steps(self, decoder: Decoder, prompt: Buffer, rows: int) -> Iterator[float]:
        """Yield the seconds of two steps of `rows` rows, each of which is undone afterwards: the first may touch memory
        for the first time. Yield only one if it takes long."""
        for _ in range(2):
            began = self.clock()
            decoder.batch.clear()
            decoder.batch.add_rows([1] * rows, [self._depth] * rows, list(range(rows)))
            decoder.decode()
            yield (seconds := self.clock() - began)
            for slot in range(rows):
                decoder.truncate(slot, self._depth if decoder.partial else 0)
                if not decoder.partial:
                    decoder.restore(slot, prompt)
            if seconds > _LONGEST_STEP_S:
                return

    @contextmanager
    def _decoder(self, settings: EngineSettings, **changes: Any) -> Iterator[Decoder]:
        decoder, give_back = self.lease(replace(settings, **changes))
        try:
            yield decoder
        finally:
            give_back()


def _milliseconds(seconds: dict[Any, float]) -> str:
    return ", ".join(f"{value * 1e3:.2f} ms ({key})" for key, value in seconds.items())


def _read(decoder: Decoder, count: int) -> None:
    """Fill slot 0 with `count` tokens, and clear all others."""
    decoder.clear()
    piece = min(decoder.shape.n_batch, decoder.shape.n_ubatch)
    for first in range(0, count, piece):
        ids = np.arange(first, min(first + piece, count), dtype=np.int32) % 100
        decoder.batch.clear()
        decoder.batch.add_spans([ids], [first], [0], [min(2, len(ids))])
        decoder.decode()
