"""The engine without the dataflow around it: the layers below the pipeline, and reused against fresh contexts.

`engine`: scheduler, batch filling and decode, with a sampler that takes token 0; `sampling`: with the sampler;
`blocks_reused`: block diffusion, one call per group of rows that fills the slots, on one context that is cleared
between calls; `blocks_fresh`: with a new context per call. No other file of the benchmark uses the engine's internals.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

import pyarrow as pa

from operators.batch_by_length import BatchByLength
from operators.engine.backend.interface import Decoder, Logits
from operators.engine.backend.loading import close_model, loader
from operators.engine.loop.engine import Engine
from operators.engine.loop.step_log import STEPS_SCHEMA, StepLog
from operators.engine.loop.step_loop import StepLoop
from operators.engine.loop.thread import EngineThread
from operators.engine.sampling.row_state import SampledRow
from operators.engine.sampling.sampler import Sampler
from operators.engine.sequence import Sequence
from operators.engine.strategies.autoregressive import Autoregressive
from operators.engine.strategies.base import Strategy
from operators.generation.requests import SequenceMaker
from operators.generation.seeds import RowSeeds
from operators.generation.wiring import decode_setup
from operators.settings import DecodeSettings
from operators.settings.block_diffusion import BlockDiffusionSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.meter import StageMeter
from pipeline.api.protocols import ListInbox
from pipeline.api.records import ROW, Batch
from tools.bench.contenders import Spec
from tools.bench.figures import Figures, of_steps


class NoSampler(Sampler):
    """Takes token 0 for every row, without reading the logits."""

    def draw(self, logits: Logits, rows: Seq[SampledRow], places: Seq[int] | None = None) -> list[int | None]:
        return [0] * len(rows if places is None else places)


def _measure(spec: Spec, *, sampler: type[Sampler] = Sampler, blocks: bool = False, fresh: bool = False) -> Figures:
    """Complete the rows of `spec`: all together, or with `blocks` in groups that fill the slots, each (`fresh`) on a
    new context."""
    model, engine, table = loader(spec.model)(spec.model), spec.runtime, spec.workload.rows

    setup = decode_setup(BlockDiffusionSettings(mask_token_id=spec.bench.mask_token_id) if blocks else DecodeSettings())

    def bind(decoder: Decoder) -> Strategy:
        if blocks:
            return setup.bind(decoder, model)
        return Autoregressive(setup.settings, decoder, model, sampler=sampler())

    room = engine.max_sequence_tokens or model.n_ctx_train
    requests = SequenceMaker(spec.sampling, model, room, RowSeeds(0, "generate"), setup.sequence_type())
    size = engine.slots if blocks else len(table)
    parts = [_sequences(table.slice(start, size), requests, engine) for start in range(0, len(table), size)]
    if not fresh:
        model.lease(engine, block=setup.block)[1]()  # leased and given back: it stays in the pool
    steps: list[dict[str, Any]] = []
    began = time.perf_counter()
    for rows in parts:
        decoder, give_back = model.lease(engine, block=setup.block)
        steps += complete(bind(decoder), rows, engine)
        if fresh:
            close_model(decoder)  # type: ignore[arg-type]  # whatever has a `close`
        else:
            give_back()
    return Figures(
        work_s=time.perf_counter() - began,
        prompt_tokens=sum(len(row.prompt) for rows in parts for row in rows),
        new_tokens=sum(len(row.tokens) for rows in parts for row in rows),
        **of_steps(steps),
    )


engine = partial(_measure, sampler=NoSampler)
sampling = _measure
blocks_reused = partial(_measure, blocks=True)
blocks_fresh = partial(_measure, blocks=True, fresh=True)


def _sequences(rows: pa.Table, requests: SequenceMaker, engine: EngineSettings) -> list[Sequence]:
    """Return the sequences that Generate would make from `rows`, in the order of BatchByLength."""
    numbered = rows.append_column(ROW, pa.array(range(len(rows)), ROW.type)).combine_chunks().to_batches()
    made: list[Sequence] = []
    for batch in BatchByLength(engine).run(ListInbox(Batch(0, data) for data in numbered)):
        if isinstance(batch, Batch):
            requested, rejects = requests.of(batch)
            if rejects:
                raise ValueError(rejects[0].rows[0].reason)
            made += requested
    return made


def complete(strategy: Strategy, rows: Seq[Sequence], engine: EngineSettings) -> list[dict[str, Any]]:
    """Complete `rows` in this thread on the decoder of `strategy`; return the steps as rows of
    metrics/steps.parquet."""
    steps = _Steps()
    log = StepLog(steps, strategy.decoder.shape, (StageMeter("decode"), StageMeter("sample")))
    loop = StepLoop(strategy, engine, log)
    client = Engine(loop, EngineThread()).connect(StageMeter("generate"), 1, len(rows), lambda: None, steps=False)
    client.submit(rows)
    client.end()
    while loop.scheduler.runnable:
        loop.step()
    client.collect()
    return [dict(zip(STEPS_SCHEMA.names, values, strict=True)) for values in steps.rows]


class _Steps:
    """A pipeline.api.protocols.Table that keeps its rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[object, ...]] = []

    def append(self, *values: object) -> None:
        self.rows.append(values)

    def extend(self, columns: Seq[Seq[object]]) -> None:
        self.rows.extend(zip(*columns, strict=True))
