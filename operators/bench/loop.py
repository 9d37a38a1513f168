"""Our step loop without the dataflow around it. What the benchmark knows of the engine's insides is in this file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from operators.batch_by_length import BatchByLength
from operators.decoding.autoregressive import Autoregressive
from operators.decoding.engine import Engine
from operators.decoding.model import Decoder, Logits, Model
from operators.decoding.queue import Queue, queue_for
from operators.decoding.sampler import Sampler
from operators.decoding.scheduler import Scheduler
from operators.decoding.sequence import Sequence
from operators.decoding.sharing import Counts
from operators.decoding.step_log import STEPS_SCHEMA
from operators.decoding.strategy import Method, Strategy
from operators.decoding.worker import Worker
from operators.engine_settings import EngineSettings
from operators.requests import Requests
from operators.settings import SamplingSettings
from pipeline.given import Given
from pipeline.meter import StageMeter
from pipeline.records import ROW, Batch


class NoSampler(Sampler):
    """Takes the same token for every row, without a look at the logits."""

    def draw(self, logits: Logits, rows: Seq[Sequence], places: Seq[int] | None = None) -> list[int | None]:
        """Token 0 for each row."""
        return [0] * len(rows if places is None else places)


@dataclass(frozen=True)
class Loop:
    """What ran: the rows, finished, the steps (as metrics/steps.parquet has them), what was shared, and what
    the strategy counted."""

    rows: list[Sequence]
    steps: list[dict[str, Any]]
    counts: Counts
    totals: Mapping[str, float]

    @property
    def new_tokens(self) -> int:
        """Completion tokens of all rows."""
        return sum(len(row.tokens) for row in self.rows)


def sequences(
    rows: pa.Table,
    model: Model,
    sampling: SamplingSettings,
    runtime: EngineSettings,
    room: int,
    make: Callable[..., Sequence] = Sequence,
) -> list[Sequence]:
    """The sequences that Generate would `make` of `rows` (`prompt_ids`, `max_tokens`), in the order of BatchByLength.

    Raises:
        ValueError: a row cannot be generated.
    """
    numbered = rows.append_column(ROW, pa.array(range(len(rows)), ROW.type)).combine_chunks().to_batches()
    batches = BatchByLength(runtime).run(Given(Batch(0, data) for data in numbered))
    requests = Requests(sampling, model, room, 0, "generate", None, make)
    made = [row for batch in batches if isinstance(batch, Batch) for row in requests.sequences(batch)]
    refused = [row for row in made if not isinstance(row, Sequence)]
    if refused:
        raise ValueError(refused[0].reason)
    return [row for row in made if isinstance(row, Sequence)]


def complete(rows: Seq[Sequence], decoder: Decoder, sampler: Sampler, runtime: EngineSettings) -> Loop:
    """Complete `rows` on `decoder` in this thread, one token a step."""
    queue = queue_for(runtime)
    return _run(rows, decoder, queue, Scheduler(decoder, queue, runtime), Autoregressive(decoder, sampler))


def complete_by(method: Method, model: Model, rows: Seq[Sequence], decoder: Decoder, runtime: EngineSettings) -> Loop:
    """Complete `rows`, which are such as `method` makes, on `decoder`, a context that it has from `model`."""
    queue = method.queue(runtime)
    scheduler = Scheduler(decoder, queue, runtime, method.cut(decoder.shape))
    return _run(rows, decoder, queue, scheduler, method.strategy(decoder, model))


def _run(rows: Seq[Sequence], decoder: Decoder, queue: Queue, scheduler: Scheduler, strategy: Strategy) -> Loop:
    steps = _Steps()
    meters = (StageMeter("decode"), StageMeter("sample"))
    worker = Worker(decoder, scheduler, strategy, meters)
    engine = Engine([worker], queue, steps)
    client = engine.client(StageMeter("generate"), 1, len(rows), lambda: None)
    engine.add(client)
    client.submit(rows)
    client.end()
    while worker.scheduler.runnable:
        engine.step()
    named = [dict(zip(STEPS_SCHEMA.names, values, strict=True)) for values in steps.rows]
    return Loop(client.collect(), named, scheduler.counts, strategy.totals())


class _Steps:
    """Keeps the rows of a metrics table."""

    def __init__(self) -> None:
        self.rows: list[tuple[object, ...]] = []

    def append(self, *values: object) -> None:
        """See pipeline.protocols.Table."""
        self.rows.append(values)

    def extend(self, columns: Seq[Seq[object]]) -> None:
        """See pipeline.protocols.Table."""
        self.rows.extend(zip(*columns, strict=True))
