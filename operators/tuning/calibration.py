"""Chooses how the model is run, by a calibration of a few seconds: slots, threads, KV layout, n_ubatch.

What is measured are calls on prompts of the job's own lengths; what is chosen is the least that comes within TOLERANCE
of the best, because more slots mean a longer tail and more memory. A value that the job file gives is never changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from operators.engine.backend.interface import Decoder
from operators.settings.checks import usable_cores
from operators.settings.runtime import MAX_SLOTS, EngineSettings
from pipeline.api.meter import Clock

TOLERANCE = 1.04
SLOTS = (4, 8, 16, 32, 64)
FEW_ROWS = 2 * SLOTS[-1]
"""So many rows at most are looked at one by one: the number of slots then depends on how many there are."""
UBATCHES = (128, 256, 512, 1024)
_LONGEST_CALL_S = 1.5
"""A call that takes longer is not made larger: it has long streamed the weights for more tokens than it pays."""
_MEMORY_SHARE = 0.5
"""Of the memory that is free, for the KV cache."""
_FEW_CORES = 2
"""So many are all used, without a measurement: half of them was never faster."""
_DEPTH = 512
"""Tokens of a prompt that are computed at most to measure what a step costs behind it."""

Lease = Callable[[EngineSettings], tuple[Decoder, Callable[[], None]]]


@dataclass
class Choice:
    """The settings that were chosen, and why, a line for each key."""

    values: dict[str, Any]
    reasons: list[str] = field(default_factory=list)

    def apply(self, settings: EngineSettings) -> EngineSettings:
        """`settings` with what was left open filled in."""
        return replace(settings, **{key: self.values[key] for key in settings.open_keys()})


class Calibration:
    """Measures a model's calls.

    Args:
        lease: gives a decoder for settings, and what frees it.
        settings: of the job; what is open in them is to be chosen.
        prompt_tokens: lengths of the first prompts.
        new_tokens: length of a completion at most.
        free_bytes: memory that may be used.
        clock: seconds.
        rows: rows that there are in all, where they are few; None for many.
    """

    def __init__(
        self,
        lease: Lease,
        settings: EngineSettings,
        prompt_tokens: Sequence[int],
        new_tokens: int,
        free_bytes: int,
        clock: Clock = time.perf_counter,
        rows: int | None = None,
    ) -> None:
        self._lease = lease
        self._settings = settings
        # Halfway through its completion a row is as deep as on average.
        middle = (np.median(prompt_tokens) if len(prompt_tokens) else 64) + new_tokens // 2
        self._depth = int(np.clip(middle, 2, _DEPTH))
        self._free_bytes = free_bytes
        self._clock = clock
        self._rows = rows
        self._open = settings.open_keys()

    def choose(self) -> Choice:
        """Measure, and choose."""
        choice = Choice({})
        known = self._settings.with_defaults()
        if "kv" in self._open:
            # Unified is measured last: it needs to be better where the text may depend on neighbours anyway.
            choice.values["kv"] = "per_sequence"
        if "threads" in self._open:
            self._choose_threads(known, choice)
        if "flash_attention" in self._open:
            self._choose_attention(known, choice)
        known = replace(known, **choice.values)
        if "n_ubatch" in self._open:
            self._choose_prefill(known, choice)
        if "slots" in self._open:
            self._choose_slots(known, choice)
        known = replace(known, **{k: v for k, v in choice.values.items() if k in self._open})
        if "kv" in self._open and not self._settings.deterministic:
            self._choose_layout(known, choice)
        choice.values["n_batch"] = max(choice.values.get("n_ubatch", known.n_ubatch), known.slots)
        return choice

    def _choose_threads(self, known: EngineSettings, choice: Choice) -> None:
        cores = usable_cores()
        if cores <= _FEW_CORES:
            choice.values["threads"] = cores
            return
        tried = {n: self._step_s(replace(known, slots=8, threads=n), [8])[8] for n in sorted({cores, -(-cores // 2)})}
        best = _least_within(tried)
        choice.values["threads"] = best
        choice.reasons.append(f"threads={best}: a step of 8 rows takes {_milliseconds(tried)} with as many threads")

    def _choose_attention(self, known: EngineSettings, choice: Choice) -> None:
        slots = 8
        tried = {
            on: self._step_s(replace(known, slots=slots, flash_attention=on, **choice.values), [slots])[slots]
            for on in (True, False)
        }
        # It saves memory, and prompts are read faster with it: without it a step must be clearly faster.
        best = tried[True] <= TOLERANCE * tried[False]
        choice.values["flash_attention"] = best
        named = {("with" if on else "without"): seconds for on, seconds in tried.items()}
        choice.reasons.append(
            f"flash_attention={str(best).lower()}: a step of {slots} rows {self._depth} tokens deep takes"
            f" {_milliseconds(named)}"
        )

    def _choose_slots(self, known: EngineSettings, choice: Choice) -> None:
        row_bytes = self._row_bytes(known)
        fit = max(1, int(_MEMORY_SHARE * self._free_bytes // row_bytes))
        # Never more than rows, and with few of them as many: each further round of a few rows costs whole steps.
        most = min(fit, MAX_SLOTS, self._rows or MAX_SLOTS)
        sizes = sorted({n for n in (*SLOTS, self._rows or 0) if 0 < n <= min(most, SLOTS[-1])} or {most})
        steps = self._step_s(replace(known, slots=sizes[-1]), sizes)
        each = {n: seconds / n for n, seconds in steps.items()}
        best = _least_within({n: seconds * self._rounds(n) for n, seconds in steps.items()})
        choice.values["slots"] = best
        choice.reasons.append(
            f"slots={best}: a token of one row takes {_milliseconds(each)} at as many rows;"
            f" {row_bytes / 2**20:.0f} MiB of KV cache a slot, and room for {fit} in half of the free memory"
            + (f"; there are {self._rows} rows" if self._rows else "")
        )

    def _rounds(self, slots: int) -> float:
        """How often so many slots are filled until all rows are done, of unknown many: relative to one slot."""
        return 1 / slots if self._rows is None else math.ceil(self._rows / slots)

    def _choose_prefill(self, known: EngineSettings, choice: Choice) -> None:
        largest = UBATCHES[-1]
        decoder, give_back = self._lease(
            replace(known, slots=2, n_ubatch=largest, n_batch=largest, max_sequence_tokens=None)
        )
        took: dict[int, float] = {}
        try:
            room = decoder.shape.max_sequence_tokens
            for size in UBATCHES:
                if size > room or (took and max(took.values()) > _LONGEST_CALL_S):
                    break
                took[size] = self._timed(partial(self._compute, decoder, 0, size))
        finally:
            give_back()
        each = {n: seconds / n for n, seconds in took.items()}
        sizes = {n: each[n] for n in each if n >= known.slots}
        best = _least_within(sizes) if sizes else UBATCHES[0]
        choice.values["n_ubatch"] = best
        choice.reasons.append(f"n_ubatch={best}: a prompt token takes {_milliseconds(each)} in calls of that size")

    def _choose_layout(self, known: EngineSettings, choice: Choice) -> None:
        rows = known.slots
        tried = {kv: self._step_s(replace(known, kv=kv), [rows])[rows] for kv in ("per_sequence", "unified")}
        best = min(tried, key=lambda kv: tried[kv])
        choice.values["kv"] = best
        choice.reasons.append(f"kv={best}: a step of {rows} rows takes {_milliseconds(tried)}")

    def _row_bytes(self, known: EngineSettings) -> int:
        """Bytes of the KV cache for a row of the greatest length, from those of two short ones: a recurrent state takes
        the same for any."""
        decoder, give_back = self._lease(replace(known, slots=2))
        size: dict[int, int] = {}
        try:
            for tokens in (32, 64):
                self._compute(decoder, 0, tokens)
                size[tokens] = len(decoder.save(0))
            return size[32] + (size[64] - size[32]) // 32 * (decoder.shape.max_sequence_tokens - 32)
        finally:
            give_back()

    def _step_s(self, settings: EngineSettings, sizes: Sequence[int]) -> dict[int, float]:
        """Seconds of a decode step of so many rows, each behind a prompt of the job's usual length.

        Of ascending sizes those that come after the first that gains nothing are left out.
        """
        # A context with no more cells than are needed: to make one takes time, too.
        depth = min(self._depth, (settings.max_sequence_tokens or self._depth + 1) - 1)
        batch = max(settings.n_batch, settings.n_ubatch, depth, max(sizes))
        decoder, give_back = self._lease(
            replace(settings, max_sequence_tokens=depth + 1, n_ctx=None, n_batch=batch, n_ubatch=batch)
        )
        try:
            self._compute(decoder, 0, depth)
            saved = decoder.save(0)
            took: dict[int, float] = {}
            for rows in sizes:
                for slot in range(len(took) and max(took), rows):
                    if slot:
                        decoder.restore(slot, saved)
                took[rows] = self._timed(
                    partial(self._step, decoder, rows, depth), partial(self._rewind, decoder, rows, depth, saved)
                )
                if len(took) > 1 and took[rows] / rows * TOLERANCE > min(took[n] / n for n in took if n < rows):
                    break
            return took
        finally:
            give_back()

    def _timed(self, call: Callable[[], None], undo: Callable[[], None] = lambda: None) -> float:
        """The faster of two calls, each of which is undone; the first may have memory to touch."""
        seconds = []
        for _ in range(2):
            began = self._clock()
            call()
            seconds.append(self._clock() - began)
            undo()
            if seconds[-1] > _LONGEST_CALL_S:
                break
        return min(seconds)

    def _compute(self, decoder: Decoder, slot: int, count: int) -> None:
        decoder.truncate(slot, 0)
        decoder.batch.clear()
        decoder.batch.add_spans([np.arange(count, dtype=np.int32) % 100], [0], [slot], [2])
        decoder.decode()

    def _step(self, decoder: Decoder, rows: int, depth: int) -> None:
        decoder.batch.clear()
        decoder.batch.add_rows([1] * rows, [depth] * rows, list(range(rows)))
        decoder.decode()

    def _rewind(self, decoder: Decoder, rows: int, depth: int, saved: bytes) -> None:
        """Have the `depth` tokens that were `saved` in each of the slots again, and no more."""
        for slot in range(rows):
            decoder.truncate(slot, depth if decoder.partial else 0)
            if not decoder.partial:
                decoder.restore(slot, saved)


def _least_within(cost: dict[int, float]) -> int:
    """The smallest key whose cost is within TOLERANCE of the least."""
    best = min(cost.values())
    return min(key for key, value in cost.items() if value <= TOLERANCE * best)


def _milliseconds(seconds: dict[Any, float]) -> str:
    return ", ".join(f"{value * 1e3:.2f} ms ({key})" for key, value in seconds.items())
