"""What calls of a model take: seconds a prompt token, and of a decode step by its rows and how deep they are."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from operators.engine.backend.interface import Decoder
from pipeline.api.meter import Clock

_ENOUGH_S = 0.3
_MOST_CALLS = 5
_SHARE = 0.4
"""Of the time that is left, for the prompt behind which steps are measured."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a decode step: `fixed`, and for each row `row`, and for each token that a row looks back on `cell`."""

    fixed: float
    row: float
    cell: float

    def total(self, steps: float, row_steps: float, cell_steps: float) -> float:
        """Seconds of so many `steps`. `row_steps`: their rows, summed up; `cell_steps`: what these looked back on."""
        return self.fixed * steps + self.row * row_steps + self.cell * cell_steps

    def times(self, factor: float) -> StepCost:
        """The same on a machine that takes `factor` times as long."""
        return StepCost(self.fixed * factor, self.row * factor, self.cell * factor)


@dataclass(frozen=True, slots=True)
class StepTime:
    """A measured step: its rows, how deep they are on average, its seconds."""

    rows: int
    depth: float
    seconds: float


def fitted(times: Seq[StepTime]) -> StepCost:
    """The cost that comes nearest to `times` (least squares), none of whose parts is negative."""
    terms = np.array([[1.0, t.rows, t.rows * t.depth] for t in times])
    seconds = np.array([t.seconds for t in times])
    # What does not vary cannot be told from what every row takes.
    kept = [*([0] if np.ptp(terms[:, 1]) else []), 1, *([2] if len({t.depth for t in times}) > 1 else [])]
    while True:
        found = np.linalg.lstsq(terms[:, kept], seconds, rcond=None)[0]
        if len(kept) == 1 or (found >= 0).all():
            break
        del kept[int(found.argmin())]
    cost = np.zeros(3)
    cost[kept] = np.maximum(found, 0)
    return StepCost(*cost.tolist())


def step_times(
    decoder: Decoder, rows: int, depth: int, prompt_s: float, step_s: float, seconds: float, clock: Clock
) -> list[StepTime]:
    """Steps of `rows` rows, `depth` tokens deep and less deep, and of fewer rows: as many as there is time for.

    What the decoder holds is forgotten.

    Args:
        prompt_s: seconds a prompt token takes, about.
        step_s: seconds a step takes, at most.
        seconds: how long this may take, about.
    """
    shape = decoder.shape
    until = clock() + seconds
    affordable = int(_SHARE * seconds / prompt_s) if prompt_s > 0 else depth
    # A step writes a token more behind each row.
    deepest = min(depth, affordable, shape.max_sequence_tokens - _MOST_CALLS, shape.cells // rows - _MOST_CALLS)
    found: list[StepTime] = []
    decoder.clear()
    done = 0
    for place in sorted({max(deepest // 4, 2), max(deepest, 2)}):
        _read(decoder, done, place)
        done = place
        sizes = [rows] if place < deepest or rows == 1 else [rows, -(-rows // 4)]
        for size in sizes:
            longest = max((t.seconds for t in found), default=step_s)
            if clock() + 2 * longest > until:
                return found
            found.append(StepTime(size, place, _step_s(decoder, size, place, clock)))
        for slot in range(1, rows):
            decoder.truncate(slot, 0)
    return found


def _read(decoder: Decoder, start: int, stop: int) -> None:
    """Put tokens [start, stop) of some text into slot 0."""
    piece = min(decoder.shape.n_batch, decoder.shape.n_ubatch)
    for first in range(start, stop, piece):
        ids = np.arange(first, min(first + piece, stop), dtype=np.int32) % 100
        decoder.batch.clear()
        decoder.batch.add_spans([ids], [first], [0], [min(2, len(ids))])
        decoder.decode()


def _step_s(decoder: Decoder, rows: int, depth: int, clock: Clock) -> float:
    """The median of some steps. The first is not timed: copies between slots are made in it."""
    for slot in range(1, rows):
        decoder.copy(0, slot, depth)
    seconds: list[float] = []
    _step(decoder, rows, depth)
    while len(seconds) < _MOST_CALLS and sum(seconds) < _ENOUGH_S:
        began = clock()
        _step(decoder, rows, depth)
        seconds.append(clock() - began)
    return float(np.median(seconds))


def _step(decoder: Decoder, rows: int, depth: int) -> None:
    decoder.batch.clear()
    decoder.batch.add_rows([1] * rows, [depth] * rows, list(range(rows)))
    decoder.decode()
    for slot in range(rows):
        decoder.truncate(slot, depth)
