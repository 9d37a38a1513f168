"""Rows of block diffusion on a model: completed by the engine in this thread."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import asdict
from typing import Any

import numpy as np

from operators.engine.backend.interface import Model
from operators.engine.loop.engine import Engine
from operators.engine.loop.step_log import StepLog
from operators.engine.loop.step_loop import StepLoop
from operators.engine.loop.thread import EngineThread
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence, StopWatcher
from operators.engine.strategies.block_diffusion.denoise import BlockDiffusion
from operators.settings.block_diffusion import BlockDiffusionSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.meter import StageMeter
from tests.operators.engine.fixtures import Table, check_slots


class Done:
    """What came of a run: the rows by handle, the worker, and the table of steps."""

    def __init__(self, rows: Seq[Sequence], worker: StepLoop, steps: Table) -> None:
        self.rows = {row.handle: row for row in rows}
        self.ids = {row.handle: row.tokens for row in rows}
        self.worker = worker
        self.steps = steps
        (counts,) = worker.strategy.own_counts()
        self.totals: dict[str, float] = asdict(counts)


def prompts(count: int, least: int = 1, longest: int = 19, n_vocab: int = 256, seed: int = 3) -> list[np.ndarray]:
    """Prompts of all lengths from `least` to `longest`, in turn."""
    random = np.random.default_rng(seed)
    sizes = [least + i % (longest - least + 1) for i in range(count)]
    return [random.integers(0, n_vocab, size).astype(np.int32) for size in sizes]


def complete(
    model: Model,
    decode: BlockDiffusionSettings,
    texts: Seq[np.ndarray],
    max_tokens: int | Seq[int] = 22,
    params: SamplingParams | None = None,
    make: type[BlockDiffusion] = BlockDiffusion,
    stop: Seq[bytes] = (),
    adapters: Seq[int] | None = None,
    **settings: Any,
) -> Done:
    """Complete `texts`. After every step slots are checked, and that none holds more than whole blocks."""
    runtime = EngineSettings(**({"max_sequence_tokens": 256, "slots": 4} | settings))
    setup = make.setup(decode, make)
    decoder, give_back = model.lease(runtime, block=setup.block)
    steps = Table()
    log = StepLog(steps, decoder.shape, (StageMeter("decode"), StageMeter("sample")))
    worker = StepLoop(setup.bind(decoder, model), runtime, log)
    scheduler = worker.scheduler
    client = Engine(worker, EngineThread()).connect(StageMeter("node"), 1, 10_000, lambda: None, steps=False)
    lengths = [max_tokens] * len(texts) if isinstance(max_tokens, int) else max_tokens
    own = params or SamplingParams()
    rows = [setup.sequence_type()(i, text, own, i, lengths[i]) for i, text in enumerate(texts)]
    for row, kind in zip(rows, adapters or [0] * len(rows), strict=True):
        row.adapters = kind
        row.stops = StopWatcher(stop, model.pieces()) if stop else None
    client.submit(rows)
    client.end()
    try:
        while scheduler.runnable:
            worker.step()
            check_slots(scheduler)
            assert all(row.slot.num_cached % decode.block_length == 0 for row in scheduler.slots.rows())
    finally:
        give_back()
    return Done(client.collect(), worker, steps)
