"""MachineLimit: the least time that the machine needs for a call, by what has to be multiplied and read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.api.numbers import counted


class Peaks(NamedTuple):
    """What a machine does in a second at most, with the threads of an engine: multiplications of 8-bit numbers, and
    bytes that it reads from memory."""

    macs: float
    bytes: float


@dataclass(frozen=True)
class ModelWork:
    """What a model has to multiply and read in a call. What is not known is left out, so it is never too much.

    Args:
        macs: multiplications of a token by matrices that all tokens go through; `bytes`: of these matrices.
        expert_macs, expert_bytes: of all experts together, `experts` in number, of which a token goes through
            `experts_used`.
        output_macs, output_bytes: of the last matrix, for tokens whose logits are wanted.
        kv_values: numbers of a token in the KV cache, in all layers.
        attention_macs: multiplications of a token with an earlier one, in all layers.
        window: the earlier tokens that a token sees in some layer at most.
    """

    macs: int = 0
    bytes: int = 0
    expert_macs: int = 0
    expert_bytes: int = 0
    experts: int = 1
    experts_used: int = 1
    output_macs: int = 0
    output_bytes: int = 0
    kv_values: int = 0
    attention_macs: int = 0
    window: float = math.inf

    def macs_of(self, tokens: int, outputs: int, seen: float) -> float:
        """Return the multiplications of a call. `seen`: earlier tokens that its tokens see, those of each added up."""
        of_experts = self.expert_macs * self.experts_used / self.experts
        return tokens * (self.macs + of_experts) + outputs * self.output_macs + seen * self.attention_macs

    def bytes_of(self, tokens: int, outputs: int, cells: float, value_bytes: float) -> float:
        """Return the bytes that a call reads: each matrix once, of experts as many as so many tokens meet that choose
        by chance, and the `cells` of the KV cache, with numbers of `value_bytes`."""
        met = 1 - (1 - self.experts_used / self.experts) ** tokens
        weights = self.bytes + met * self.expert_bytes + (self.output_bytes if outputs else 0)
        return weights + cells * self.kv_values * value_bytes


@dataclass
class CallSums:
    """What the calls of an engine came to."""

    work_s: float = counted("calls of the model whose work is known", "s")
    work_limit_s: float = counted("least that the machine needs for calls whose work is known", "s")
    work_macs: float = counted("multiplications of calls whose work is known")
    work_macs_s: float = counted("least that the machine needs for these multiplications alone", "s")
    work_bytes: float = counted("read from memory by calls whose work is known", "bytes")
    work_bytes_s: float = counted("least that the machine needs to read these bytes alone", "s")


@dataclass
class MachineLimit:
    """Adds up the calls of an engine: what they had to do, how long they took, and the least that the machine needs: of
    each call the larger of its multiplications by their peak and its bytes by theirs. `value_bytes`: of a number in the
    KV cache."""

    peaks: Peaks
    work: ModelWork
    value_bytes: float
    sums: CallSums = field(default_factory=CallSums)

    def add(self, spans: Iterable[tuple[int, int]], outputs: int, seconds: float) -> None:
        """Add a call. `spans`: tokens of each row, and the tokens in its KV cache afterwards; `outputs`: tokens whose
        logits were wanted."""
        tokens, cells, seen = 0, 0.0, 0.0
        for count, depth in spans:
            tokens += count
            cells += min(depth, self.work.window)
            seen += count * min(max(depth - (count - 1) / 2, depth / 2), self.work.window)
        macs = self.work.macs_of(tokens, outputs, seen)
        n_bytes = self.work.bytes_of(tokens, outputs, cells, self.value_bytes)
        times = macs / self.peaks.macs, n_bytes / self.peaks.bytes
        sums = self.sums
        sums.work_s += seconds
        sums.work_limit_s += max(times)
        sums.work_macs += macs
        sums.work_macs_s += times[0]
        sums.work_bytes += n_bytes
        sums.work_bytes_s += times[1]
