"""Sequences and engines on the fake decoder."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from operators.decoding.autoregressive import Autoregressive
from operators.decoding.engine import Engine
from operators.decoding.fake import END_ID, FakeDecoder
from operators.decoding.model import DecoderShape
from operators.decoding.params import SamplingParams
from operators.decoding.sampler import Sampler
from operators.decoding.scheduler import Scheduler
from operators.decoding.sequence import Sequence
from pipeline.meter import StageMeter

GREEDY = SamplingParams(stop_ids=frozenset({END_ID}))
WARM = SamplingParams(temperature=1.0, top_k=20, stop_ids=frozenset({END_ID}))


class Table:
    """Keeps the rows of a metrics table."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def append(self, *values: object) -> None:
        self.rows.append(values)

    def extend(self, columns: Seq[Seq[object]]) -> None:
        self.rows.extend(zip(*columns, strict=True))


def shape(slots: int = 4, **sizes: int | bool) -> DecoderShape:
    return DecoderShape(**({"slots": slots, "max_sequence_tokens": 256, "n_batch": 256, "n_ubatch": 64} | sizes))  # type: ignore[arg-type]


def prompts(count: int, longest: int = 90, seed: int = 1) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, random.integers(1, longest + 1)).astype(np.int32) for _ in range(count)]


def sequences(texts: Seq[np.ndarray], params: SamplingParams = GREEDY, max_tokens: int = 30) -> list[Sequence]:
    return [Sequence(i, text, params, seed=1000 + i, max_tokens=max_tokens) for i, text in enumerate(texts)]


class Bench:
    """An engine whose steps the test calls itself, on one client."""

    def __init__(self, sizes: DecoderShape, refill: int = 1) -> None:
        self.decoder = FakeDecoder(sizes)
        self.decoder.keep_calls = True
        self.scheduler = Scheduler(sizes, self.decoder.move, refill)
        self.steps = Table()
        meters = (StageMeter("decode"), StageMeter("sample"))
        self.engine = Engine(self.decoder, self.scheduler, Autoregressive(self.decoder, Sampler()), self.steps, meters)
        self.woken = threading.Event()

    def client(self, depth: int = 1, capacity: int = 1000):
        client = self.engine.client(StageMeter("node"), depth, capacity, self.woken.set)
        self.engine.add(client)
        return client

    def run(self, rows: Seq[Sequence]) -> dict[object, list[int]]:
        """Complete `rows`; the tokens of each by its handle. Slots are checked after every step."""
        client = self.client()
        client.submit(rows)
        client.end()
        while self.scheduler.runnable:
            self.engine.step()
            self.scheduler.slots.check()
        return {row.handle: row.tokens for row in client.collect()}
