"""Sequences and engines on the fake decoder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import fields
from typing import Any

import numpy as np

from operators.engine.backend.fake import END_ID, FakeDecoder, FakeModel
from operators.engine.backend.interface import Decoder, Logits
from operators.engine.backend.shape import DecoderShape
from operators.engine.loop.engine import Engine
from operators.engine.loop.step_log import STEPS_SCHEMA, StepLog
from operators.engine.loop.step_loop import StepLoop
from operators.engine.loop.thread import EngineThread
from operators.engine.sampling.params import SamplingParams
from operators.engine.scheduler.scheduler import Scheduler
from operators.engine.scheduler.slots import SlotPool
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import NodeQueue, Slot
from operators.engine.strategies.autoregressive import Autoregressive
from operators.engine.strategies.base import Strategy
from operators.settings import DecodeSettings
from operators.settings.runtime import EngineSettings, OptimiseSettings
from pipeline.api.meter import Clock, StageMeter
from tests.operators.engine.rules import preempt

GREEDY = SamplingParams(stop_ids=frozenset({END_ID}))
WARM = SamplingParams(temperature=1.0, top_k=20, stop_ids=frozenset({END_ID}))


class RecordingDecoder(FakeDecoder):
    """Notes the slots of each call, in the order of its tokens, without repeats."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: list[tuple[int, ...]] = []

    def decode(self) -> Logits:
        logits = super().decode()
        self.calls.append(tuple(dict.fromkeys(self.batch.seq_id[: self.batch.n_tokens].tolist())))
        return logits


class Table:
    """Keeps the rows of a metrics table."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def append(self, *values: object) -> None:
        self.rows.append(values)

    def extend(self, columns: Seq[Seq[object]]) -> None:
        self.rows.extend(zip(*columns, strict=True))


def shape(slots: int = 4, **sizes: int | bool | None) -> DecoderShape:
    return DecoderShape(**({"slots": slots, "max_sequence_tokens": 256, "n_batch": 256, "n_ubatch": 128} | sizes))  # type: ignore[arg-type]


def prompts(count: int, longest: int = 90, seed: int = 1) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, random.integers(1, longest + 1)).astype(np.int32) for _ in range(count)]


def sequences(texts: Seq[np.ndarray], params: SamplingParams = GREEDY, max_tokens: int = 30) -> list[Sequence]:
    """Sequences of one node."""
    rows = [Sequence(i, text, params, seed=1000 + i, max_tokens=max_tokens) for i, text in enumerate(texts)]
    node = NodeQueue(StageMeter("node"), 1, 1000, lambda: None)
    for row in rows:
        row.owner = node
    return rows


def settings_for(sizes: DecoderShape, **settings: Any) -> EngineSettings:
    """The settings that give a decoder of this shape."""
    return EngineSettings(
        **(
            {
                "slots": sizes.slots,
                "max_sequence_tokens": sizes.max_sequence_tokens,
                "n_batch": sizes.n_batch,
                "n_ubatch": sizes.n_ubatch,
                "kv": "per_sequence" if sizes.per_sequence else "unified",
                "deterministic": sizes.deterministic,
                "n_ctx": sizes.n_ctx,
            }
            | settings
        )
    )


def only(**on: bool) -> OptimiseSettings:
    """All optimisations off but for those named."""
    return OptimiseSettings(**(dict.fromkeys((f.name for f in fields(OptimiseSettings)), False) | on))


def in_slot(row: Sequence, num_cached: int = 0) -> Sequence:
    """`row` in a slot of its own that has so many tokens in the KV cache."""
    row.slot = Slot(FakeDecoder(shape()), 0, num_cached=num_cached, row=row)
    return row


def worker_on(
    decoder: Decoder,
    settings: EngineSettings,
    make: Callable[[Decoder], Strategy] | None = None,
    steps: Table | None = None,
    clock: Clock = time.perf_counter,
) -> StepLoop:
    strategy = make(decoder) if make is not None else Autoregressive(DecodeSettings(), decoder, FakeModel())
    log = StepLog(steps or Table(), decoder.shape, (StageMeter("decode"), StageMeter("sample")), clock)
    return StepLoop(strategy, settings, log)


def check_pool(pool: SlotPool) -> None:
    """No slot is lost or given twice."""
    assert sorted(pool._free) == [slot.index for slot in pool.slots if slot.row is None]
    assert all(slot.row is None or slot.row.slot is slot for slot in pool.slots)


def check_slots(scheduler: Scheduler) -> None:
    """Slots are whole, and what they say is in the KV cache is there: on the fake, which can be asked."""
    check_pool(scheduler.slots)
    decoder = scheduler.slots.decoder
    if isinstance(decoder, FakeDecoder):
        assert [slot.num_cached for slot in scheduler.slots.slots] == decoder._length[: scheduler.slots.size].tolist()


class Bench:
    """An engine whose steps the test calls itself, on one client. `preempt_every`: see `preempt`."""

    def __init__(self, sizes: DecoderShape, *, preempt_every: int | None = None, **settings: Any) -> None:
        self.settings = settings_for(sizes, **settings)
        self.decoder = RecordingDecoder(sizes)
        self.steps = Table()
        self.woken = threading.Event()
        self._preempt_every = preempt_every
        self.use(None)

    def use(self, make: Callable[[Decoder], Strategy] | None) -> None:
        """Make the engine with the strategy that `make` makes; None: Autoregressive."""
        self.worker = worker_on(self.decoder, self.settings, make, self.steps)
        self.scheduler = self.worker.scheduler
        if self._preempt_every is not None:
            preempt(self.scheduler, self._preempt_every)
        self.queue = self.scheduler.queue
        self.engine = Engine(self.worker, EngineThread())

    def client(self, depth: int = 1, capacity: int = 1000):
        return self.engine.connect(StageMeter("node"), depth, capacity, self.woken.set, steps=False)

    def column(self, name: str) -> list[Any]:
        """A column of the steps."""
        return [row[STEPS_SCHEMA.get_field_index(name)] for row in self.steps.rows]

    def run(self, rows: Seq[Sequence]) -> dict[object, list[int]]:
        """Complete `rows`; the tokens of each by its handle. Slots are checked after every step."""
        client = self.client()
        client.submit(rows)
        client.end()
        while self.scheduler.runnable:
            self.worker.step()
            check_slots(self.scheduler)
        return {row.handle: row.tokens for row in client.collect()}
