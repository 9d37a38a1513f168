"""Rules of scheduling that no setting gives, for tests that no rule changes a byte."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from operators.batch_by_length import BatchByLength
from operators.engine.scheduler import policy
from operators.engine.scheduler.scheduler import Scheduler
from operators.engine.scheduler.step_batch import StepBatch
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import Order


@contextmanager
def scheduled(*, shuffle: int | None = None, preempt_every: int | None = None) -> Iterator[None]:
    """Schedule by other rules within the block.

    Args:
        shuffle: have rows arrive, and of those that wait be admitted, in an order drawn with this seed; age and
            priority hold.
        preempt_every: of the schedulers that are made within the block, see `preempt`.
    """
    with ExitStack() as rules:
        if shuffle is not None:
            random, usual = np.random.default_rng(shuffle), policy.order

            def arrives(_: BatchByLength, rows: pa.RecordBatch) -> np.ndarray:
                return random.permutation(rows.num_rows)

            def admitted(seq: Sequence, number: int, *, longest_first: bool) -> Order:
                age, priority, *_ = usual(seq, number, longest_first=longest_first)
                return age, priority, int(random.integers(1 << 30)), number

            rules.enter_context(patch.object(BatchByLength, "_order", arrives))
            rules.enter_context(patch.object(policy, "order", admitted))
        if preempt_every is not None:
            make = Scheduler.__init__

            def made(scheduler: Scheduler, *args: Any) -> None:
                make(scheduler, *args)
                preempt(scheduler, preempt_every)

            rules.enter_context(patch.object(Scheduler, "__init__", made))
        yield


def preempt(scheduler: Scheduler, every: int) -> None:
    """Have a row lose its slot every so many decode calls, where each slot has a stream of its own."""
    calls, decode_batch = itertools.count(1), scheduler._decode_batch

    def preempting(*work: Any) -> StepBatch:
        if scheduler._shape.per_sequence and next(calls) % every == 0 and len(scheduler.slots) > 1:
            scheduler._preempt()
        return decode_batch(*work)

    scheduler._decode_batch = preempting  # type: ignore[method-assign, assignment]
